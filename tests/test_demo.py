import runpy
from dataclasses import asdict, replace

import pytest
import torch

import nanode
from nanode.demo import __main__ as demos
from nanode.demo import crossing, digits
from nanode.training import RunRecord, recipe

# ---- digits


@pytest.fixture(scope="module")
def quick():
    """The demo's recipe in a second."""
    base = recipe("digits-tiny")
    return replace(base, epochs=1, batch_size=256, options={"steps": 2}, progress=False)


def test_models_differ_in_nothing_else(quick):
    configs = digits.configurations(quick, seeds=2)
    assert len({(config.model, config.seed) for config in configs}) == len(configs) == 8
    for config in configs:
        found, base = asdict(config), asdict(quick)
        assert found.pop("options") == {"steps": 2, "gradient": digits.ROWS[config.model]}
        assert {key for key in found if found[key] != base[key]} <= {"model", "seed"}


@pytest.mark.filterwarnings("ignore:b-nanode-10 takes 2 steps")
def test_the_table_shows_what_was_recorded(quick, tmp_path, capsys):
    digits.main(tmp_path, quick, seeds=1, workers=1)
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(table) == 1 + len(digits.ROWS)
    for line in table[1:]:
        model, accuracy, _, held, kept, _ = (cell.strip() for cell in line.strip("|").split("|"))
        record = RunRecord.load(tmp_path / "runs" / f"{model}-seed0" / "run.json")
        assert accuracy == f"{100 * record.metrics.test_accuracy:.2f}"
        assert held == str(round(record.costs.flow_activation_bytes / 1000))
        # Three convolutions and the scales and shifts of three norms, in kB of float32.
        sets = {"auto": 1, "con-resnet": 1, "b-nanode-10": 10, "t-nanode-10": 21}[model]
        weights = 16 * 4 + 4 * 4 * 9 + 4 * 16 + 2 * (16 + 4 + 4)
        assert kept == f"{4 * sets * weights / 1000:.1f}"
    assert (tmp_path / "digits.png").stat().st_size > 1000


def test_again_over_what_an_earlier_demo_left(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(digits, "ROWS", {"auto": "backprop"})
    digits.main(tmp_path, quick, seeds=1, workers=1)
    digits.main(tmp_path, replace(quick, label_smoothing=0.1), seeds=1, workers=1)
    record = RunRecord.load(tmp_path / "runs" / "auto-seed0" / "run.json")
    assert record.config.label_smoothing == 0.1


@pytest.mark.parametrize(("cores", "seeds"), [(1, 1), (2, 2), (64, 2)])
def test_the_demo_fits_the_machine(quick, tmp_path, monkeypatch, cores, seeds):
    asked = []

    def train_all(configs, folder, workers):
        asked.append((len(configs), workers))
        raise KeyboardInterrupt

    monkeypatch.setattr(digits, "_cores", lambda: cores)
    monkeypatch.setattr(digits, "train_all", train_all)
    with pytest.raises(KeyboardInterrupt):
        digits.main(tmp_path, quick)
    assert asked == [(4 * seeds, min(cores, 4 * seeds))]


def test_another_process_finds_the_same(quick, tmp_path):
    config = digits.configurations(quick, seeds=2)[-1]
    (here,) = digits.train_all([config], tmp_path / "here", workers=1)
    (there,) = digits.train_all([config], tmp_path / "there", workers=2)
    assert there.metrics == here.metrics
    assert there.hardware["threads"] == 1


# ---- crossing


def test_moving_weights_learn_what_constant_ones_cannot():
    # The floor for constant weights is the mean of x² over the 65 points: all sent to 0.
    floor = float(torch.linspace(-1, 1, 65).square().mean())
    still, moving = (
        crossing.make_field(nanode.Constant()),
        crossing.make_field(nanode.Trigonometric(order=10)),
    )
    crossing.fit(still)
    crossing.fit(moving)
    assert crossing.error(crossing.paths(still, crossing.STEPS)[1]) > 0.95 * floor
    assert crossing.error(crossing.paths(moving, crossing.STEPS)[1]) < 1e-2
    # Solved finely, order is kept on the line, so the error is back above the floor.
    _, fine = crossing.paths(moving, crossing.FINE)
    assert bool((fine[-1].diff() >= -1e-6).all())
    assert crossing.error(fine) > 0.95 * floor


def test_the_picture_is_written(tmp_path):
    path = tmp_path / "deep" / "crossing.png"
    field = crossing.make_field(nanode.Constant())
    crossing.draw({"a": (field, 2), "b": (field, 3)}, path)
    assert path.stat().st_size > 1000


# ---- by name


def test_a_missing_extra_is_named_in_a_line(monkeypatch):
    def plotting():
        raise ImportError("figures need matplotlib: pip install nanode[plots]")

    monkeypatch.setattr(crossing, "main", plotting)
    monkeypatch.setattr("sys.argv", ["nanode.demo", "crossing"])
    with pytest.raises(SystemExit, match="figures need matplotlib"):
        runpy.run_path(demos.__file__, run_name="__main__")


def test_demos_by_name(monkeypatch):
    called = []
    for name in demos.DEMOS:
        monkeypatch.setitem(demos.DEMOS, name, lambda name=name: called.append(name))
    demos.main([])
    demos.main(["crossing"])
    assert called == ["digits", "crossing"]
    with pytest.raises(ValueError, match="Did you mean 'crossing'"):
        demos.main(["crosing"])
