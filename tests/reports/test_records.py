from dataclasses import replace

import pytest

from nanode.reports import Cell, find_record
from nanode.training import Epoch


def test_a_cell(make):
    records = (make(accuracy=0.83), make(accuracy=0.87, seed=2), make(accuracy=0.85, seed=1))
    cell = Cell(records)
    assert str(cell) == "85.00 ± 2.00 (seeds 0, 1, 2)"
    assert str(Cell(records[:1])) == "83.00 (seed 0)"
    assert str(Cell()) == "–"
    assert str(Cell(note="choice still open")) == "choice still open"


def test_failed_runs_show_and_do_not_count(make):
    cell = Cell((make(accuracy=0.83), make(seed=1, status="failed")))
    assert cell.accuracy.mean == 83.0
    assert str(cell) == "83.00 (seed 0); failed (seed 1)"
    assert str(Cell((make(status="failed"),))) == "failed (seed 0)"


def test_untested_runs_have_no_number(make):
    assert Cell((make(accuracy=None),)).accuracy is None


def test_a_mean_ends_where_a_seed_does(make):
    """Without one that diverged the others would seem to recover."""
    losses = ([2.0, 9.0], [4.0, 1.0, 0.5])
    records = [
        replace(
            make(seed=seed),
            curves=tuple(Epoch(epoch=n, step=n, train_loss=x) for n, x in enumerate(found, 1)),
        )
        for seed, found in enumerate(losses)
    ]
    curve = Cell(tuple(records)).curve("train_loss", 10)
    assert [(epoch, found.mean) for epoch, found in curve] == [(1, 30.0), (2, 50.0)]
    assert Cell(tuple(records)).curve("validation_accuracy") == [(1, None), (2, None)]
    assert Cell().curve("train_loss") == []
    held_out = replace(records[0].curves[0], validation_accuracy=0.5)
    records[0] = replace(records[0], curves=(held_out, *records[0].curves[1:]))
    assert Cell(tuple(records)).curve("validation_accuracy") == [(1, None), (2, None)]


def test_runs_of_two_configurations_are_not_one_mean(tmp_path, make):
    for seed, smoothing in enumerate((0.1, 0.0)):
        folder = tmp_path / f"row/seed{seed}"
        folder.mkdir(parents=True)
        record = make(seed=seed, accuracy=0.75)
        other = replace(record.config, label_smoothing=smoothing)
        replace(record, config=other).save(folder / "run.json")
    found = str(Cell.read(tmp_path, ["row/seed0", "row/seed1"]))
    assert "**not one configuration**: label_smoothing" in found
    assert "not one" not in str(Cell.read(tmp_path, ["row/seed0"]))


def test_reading(tmp_path, make):
    for seed, status in enumerate(("finished", "running", "failed")):
        folder = tmp_path / f"row/seed{seed}"
        folder.mkdir(parents=True)
        make(seed=seed, status=status, accuracy=0.75).save(folder / "run.json")
    assert find_record(tmp_path, "row/seed1") is None
    assert find_record(tmp_path, "row/seed9") is None
    cell = Cell.read(tmp_path, [f"row/seed{n}" for n in range(4)])
    assert str(cell) == "75.00 (seed 0); failed (seed 2)"


def test_every_seed_in_a_folder(tmp_path, make):
    for seed in (10, 9):
        folder = tmp_path / f"row/seed{seed}"
        folder.mkdir(parents=True)
        make(seed=seed, accuracy=0.75).save(folder / "run.json")
    assert str(Cell.seeds(tmp_path, "row")) == "75.00 ± 0.00 (seeds 9, 10)"
    assert str(Cell.seeds(tmp_path, "another", "open")) == "open"


def test_copies_beside_the_seeds_do_not_count(tmp_path, make):
    for name in ("seed0", "seed0-old", "seed1.bak", "seeds", "seed01"):
        folder = tmp_path / "row" / name
        folder.mkdir(parents=True)
        make(accuracy=0.75).save(folder / "run.json")
    assert str(Cell.seeds(tmp_path, "row")) == "75.00 (seed 0)"


def test_a_folder_of_another_seed_is_refused(tmp_path, make):
    (tmp_path / "row/seed3").mkdir(parents=True)
    make(seed=0).save(tmp_path / "row/seed3/run.json")
    with pytest.raises(ValueError, match=r"row/seed3 holds a run of seed 0; .*seed0, or move it"):
        Cell.seeds(tmp_path, "row")
    (tmp_path / "row/seed0").mkdir()
    with pytest.raises(ValueError, match=r"row/seed3 holds a run of seed 0; move it elsewhere"):
        Cell.seeds(tmp_path, "row")
