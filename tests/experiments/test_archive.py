"""Results carried from one machine to another as one file."""

import io
import json
import tarfile
from dataclasses import replace

import pytest

from nanode.experiments import archive
from nanode.experiments.archive import check_target, restore, write_records, write_unfinished
from nanode.training import RunRecord
from tests.experiments.runs import execute, outcomes

pytestmark = pytest.mark.usefixtures("perceptron")


def until(steps, count):
    return lambda: steps.count >= count


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_there_and_back(tmp_path, runs):
    there, here, path = tmp_path / "there", tmp_path / "here", tmp_path / "some.tar.gz"
    records = execute(runs[:2], there)
    (there / runs[0].name / "fit.json").write_text('{"train_accuracy": 1.0}')
    (there / "memory").mkdir()
    (there / "memory/memory.json").write_text("{}")
    (there / "table2/moving-mnist").mkdir(parents=True)
    (there / "table2/moving-mnist/trivial.json").write_text("{}")
    (there / "notes.txt").write_text("not of a run")
    write_records(path, there)
    assert restore(path, here) == ["memory", "some/seed0", "some/seed1", "table2/moving-mnist"]
    assert files(here) == [
        "memory/memory.json",
        "some/seed0/fit.json",
        "some/seed0/log.jsonl",
        "some/seed0/run.json",
        "some/seed1/log.jsonl",
        "some/seed1/run.json",
        "table2/moving-mnist/trivial.json",
    ]
    for name in files(here):
        assert (here / name).read_bytes() == (there / name).read_bytes()
    # Without weights they are over all the same.
    assert execute(runs[:2], here) == records
    assert restore(path, here) == []  # nothing in it is further


def test_an_unfinished_run_goes_on_elsewhere(tmp_path, runs, steps):
    there, here, path = tmp_path / "there", tmp_path / "here", tmp_path / "some.tar.gz"
    (whole,) = execute(runs[:1], tmp_path / "whole")
    steps.count = 0
    list(outcomes(runs[:1], there, stop=until(steps, 13)))
    write_unfinished(path, there)
    assert restore(path, here) == ["some/seed0"]
    assert files(here) == [
        f"some/seed0/{name}"
        for name in (
            "checkpoints/step-00000013/state.pt",
            "checkpoints/step-00000013/weights.safetensors",
            "log.jsonl",
            "run.json",
        )
    ]
    (record,) = execute(runs[:1], here)
    assert steps.count == 20  # bit for bit the uninterrupted run, no step made twice
    assert (record.metrics, record.curves) == (whole.metrics, whole.curves)
    write_unfinished(path, here)
    assert not path.exists()  # nothing is unfinished any more


def test_a_run_that_is_only_to_be_measured_is_not_trained_again(tmp_path, runs, steps, monkeypatch):
    there, here, path = tmp_path / "there", tmp_path / "here", tmp_path / "some.tar.gz"
    run = replace(runs[0], measure="fit")

    def interrupted(name, folder):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("nanode.experiments.execution.measure", interrupted)
        with pytest.raises(KeyboardInterrupt):
            execute([run], there)
    trained = steps.count
    write_unfinished(path, there, {run.name})
    assert restore(path, here) == [run.name]
    assert "some/seed0/final.safetensors" in files(here)
    execute([run], here)
    assert steps.count == trained
    assert (here / run.name / "fit.json").exists()


def test_several_unfinished_runs(tmp_path, runs, steps):
    list(outcomes(runs[1:2], tmp_path / "root", stop=until(steps, 3)))
    list(outcomes(runs[:1], tmp_path / "root", stop=until(steps, 6)))
    write_unfinished(tmp_path / "some.tar.gz", tmp_path / "root")
    assert restore(tmp_path / "some.tar.gz", tmp_path / "here") == ["some/seed0", "some/seed1"]


def test_a_run_that_another_process_goes_on_with(tmp_path, runs, steps, monkeypatch):
    """Between a look at its folder and the reading of it, a later checkpoint takes its place."""
    root, path, moves = tmp_path / "root", tmp_path / "some.tar.gz", []
    list(outcomes(runs[:1], root, stop=until(steps, 6)))

    def last_checkpoint(folder):
        found = original(folder)
        if len(moves) < 2:
            moves.append(found.rename(found.with_name(f"step-{7 + len(moves):08d}")))
        return found

    original = archive.last_checkpoint
    monkeypatch.setattr(archive, "last_checkpoint", last_checkpoint)
    write_unfinished(path, root)
    monkeypatch.undo()
    assert restore(path, tmp_path / "here") == ["some/seed0"]
    assert [name for name in files(tmp_path / "here") if "step" in name] == [
        "some/seed0/checkpoints/step-00000008/state.pt",
        "some/seed0/checkpoints/step-00000008/weights.safetensors",
    ]


def test_a_checkpoint_that_lacks_a_file_costs_no_archive(tmp_path, runs, steps, monkeypatch):
    root, path = tmp_path / "root", tmp_path / "some.tar.gz"
    list(outcomes(runs[:1], root, stop=until(steps, 6)))
    write_unfinished(path, root)
    before = path.read_bytes()
    next(root.rglob("state.pt")).unlink()
    monkeypatch.setattr(archive.time, "sleep", lambda seconds: None)
    with pytest.raises(ValueError, match=r"can't archive .*some/seed0: its checkpoint lacks a fil"):
        write_unfinished(path, root)
    assert path.read_bytes() == before


def test_what_is_further_stays(tmp_path, runs, steps):
    root, early, late = tmp_path / "root", tmp_path / "early.tar.gz", tmp_path / "late.tar.gz"
    over = tmp_path / "over.tar.gz"
    for path, end in ((early, 3), (late, 6)):
        list(outcomes(runs[:1], root, stop=until(steps, end)))
        write_unfinished(path, root)
    (record,) = execute(runs[:1], root)
    write_records(over, root)
    here = tmp_path / "here"
    assert restore(late, here) == ["some/seed0"]
    assert restore(early, here) == []
    assert restore(over, here) == ["some/seed0"]
    assert restore(late, here) == []
    assert RunRecord.load(here / "some/seed0/run.json") == record
    # A measurement made elsewhere is news of a run that is over.
    (root / "some/seed0/fit.json").write_text("{}")
    write_records(over, root)
    assert restore(over, here) == ["some/seed0"]
    assert (here / "some/seed0/fit.json").exists()


@pytest.mark.parametrize(("first", "then"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_gpus_measurement_replaces_a_cpus(tmp_path, first, then):
    path = tmp_path / "some.tar.gz"
    for place, device in (("here", first), ("there", then)):
        (tmp_path / place / "table2").mkdir(parents=True)
        text = json.dumps({"hardware": {"device": device}})
        (tmp_path / place / "table2/memory.json").write_text(text)
    write_records(path, tmp_path / "there")
    assert restore(path, tmp_path / "here") == (["table2"] if then == "cuda" else [])
    assert "cuda" in (tmp_path / "here/table2/memory.json").read_text(encoding="utf-8")


def test_a_run_made_again_replaces_the_older_one(tmp_path, runs):
    """And never the other way round, however little the newer folder holds."""
    once, again, here = (tmp_path / name for name in ("once", "again", "here"))
    paths = [tmp_path / "once.tar.gz", tmp_path / "again.tar.gz"]
    for root, path in zip((once, again), paths, strict=True):
        execute(runs[:1], root)
        if root is once:
            (once / runs[0].name / "fit.json").write_text("{}")
        else:
            record = again / runs[0].name / "run.json"
            years = {"started": "2100-01-01T00:00:00", "ended": "2100-01-01T00:01:00"}
            record.write_text(json.dumps(json.loads(record.read_text(encoding="utf-8")) | years))
        write_records(path, root)
    own = here / runs[0].name
    assert restore(paths[0], here) == [runs[0].name]
    assert restore(paths[1], here) == [runs[0].name]
    new = (again / runs[0].name / "run.json").read_bytes()
    assert (own / "run.json").read_bytes() == new
    assert not (own / "fit.json").exists()  # it was measured on other weights
    (own / "log.jsonl").unlink()
    assert restore(paths[0], here) == []
    assert (own / "run.json").read_bytes() == new


# ---- archives that are no such thing


def packed(path, name, kind=tarfile.REGTYPE, text=b'{"status": "finished", "config": {}}'):
    """An archive of one good record and one member more."""
    with tarfile.open(path, "w:gz") as archive:
        for member_name, member_kind in (("good/run.json", tarfile.REGTYPE), (name, kind)):
            member = tarfile.TarInfo(member_name)
            member.type, member.size, member.linkname = member_kind, len(text), "/etc/passwd"
            archive.addfile(member, io.BytesIO(text))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../run.json", tarfile.REGTYPE),
        ("a/../../run.json", tarfile.REGTYPE),
        ("a/../../checkpoints/step-00000001/state.pt", tarfile.REGTYPE),
        ("/a/run.json", tarfile.REGTYPE),
        ("a//run.json", tarfile.REGTYPE),
        (".a/run.json", tarfile.REGTYPE),
        ("run.json", tarfile.REGTYPE),
        ("a/run.sh", tarfile.REGTYPE),
        ("a/state.pt", tarfile.REGTYPE),
        ("a/step-00000001/state.pt", tarfile.REGTYPE),
        ("a/run.json", tarfile.SYMTYPE),
        ("a/run.json", tarfile.LNKTYPE),
        ("a/run.json", tarfile.DIRTYPE),
        ("a/run.json", tarfile.CHRTYPE),
    ],
)
def test_the_unexpected_is_refused_and_nothing_written(tmp_path, name, kind):
    packed(tmp_path / "some.tar.gz", name, kind)
    with pytest.raises(ValueError, match="which isn't expected"):
        restore(tmp_path / "some.tar.gz", tmp_path / "root")
    assert [path.name for path in tmp_path.iterdir()] == ["some.tar.gz"]


def test_damaged_archives(tmp_path):
    path, root = tmp_path / "some.tar.gz", tmp_path / "root"
    packed(path, "a/run.json", text=json.dumps({"status": "finished", "config": {}}).encode())
    whole = path.read_bytes()
    for wrong in (whole[:-20], whole[:30], b"no archive", whole[:-8] + bytes(8)):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match=r"can't read the archive .*some\.tar\.gz"):
            restore(path, root)
        assert not root.exists()
    packed(path, "a/run.json", text=b"{")
    with pytest.raises(ValueError, match=r"can't read the run record .*run\.json"):
        restore(path, root)
    assert files(root) == []
    with pytest.raises(FileNotFoundError):
        restore(tmp_path / "none.tar.gz", root)


def test_places_where_none_can_be_written(tmp_path):
    check_target(tmp_path / "some.tar.gz")
    with pytest.raises(ValueError, match=r"a file \.tar\.gz, got"):
        check_target(tmp_path / "some.zip")
    with pytest.raises(ValueError, match="folder doesn't exist"):
        check_target(tmp_path / "none/some.tar.gz")
