"""What is measured on final weights: against the training record and plain torch."""

from dataclasses import replace

import pytest
import torch

from nanode.block import flows
from nanode.data import load
from nanode.experiments import Options, measurements
from nanode.experiments.measurements import TOLERANCE, _Coarse, fewest_steps, measure, measured
from nanode.experiments.memory import measured_once, memory_section
from nanode.fields import BatchNorm
from nanode.gradients import Backprop
from nanode.models import create
from nanode.training import load_model, train
from nanode.training.calibration import calibrate
from nanode.training.setup import later_images, prepare


@pytest.fixture
def config(config):
    return replace(config, model="t-nanode-2", options={"steps": 3}, epochs=1, average=None)


def normalised(images):
    mean, std = (torch.tensor(per)[:, None, None] for per in (images.mean, images.std))
    return (images.images / 255 - mean) / std


def test_fit(config, tmp_path):
    train(config, tmp_path)
    measure("fit", tmp_path)
    model, _ = load_model(tmp_path)
    images = load("digits").hold_out().train
    with torch.no_grad():
        logits = model(normalised(images))
    found = measured("fit", tmp_path)
    right = (logits.argmax(1) == images.labels).double().mean().item()
    assert found["train_accuracy"] == pytest.approx(right, abs=1.5 / len(images))
    loss = torch.nn.functional.cross_entropy(logits, images.labels).item()
    assert found["train_loss"] == pytest.approx(loss, rel=1e-4)  # batches round otherwise


def test_steps(config, tmp_path):
    record = train(config, tmp_path)
    measure("steps", tmp_path)
    found = measured("steps", tmp_path)
    assert [grid["steps"] for grid in found["grids"]] == [3, 2, 1]
    # On the trained grid both are what the run itself found: by the statistics it found anew over
    # the same batches, and by those that it stored.
    trained = record.metrics.validation_accuracy
    assert found["grids"][0]["validation_accuracy"] == trained
    assert found["grids"][0]["interpolated_accuracy"] == trained
    for grid in found["grids"][1:]:
        assert grid["validation_accuracy"] == by_hand(config, tmp_path, grid["steps"])
    kept = [g["validation_accuracy"] >= trained - TOLERANCE for g in found["grids"]]
    fewest = 3 - (kept.index(False) if False in kept else 3) + 1
    assert found["fewest_steps"] == fewest


def test_fewest_steps():
    found = {4: 0.80, 3: 0.82, 2: 0.75, 1: 0.79}
    grids = [{"steps": n, "validation_accuracy": accuracy} for n, accuracy in found.items()]
    assert [fewest_steps(grids, least) for least in (0.81, 0.80, 0.78, 0.75)] == [None, 3, 3, 1]


@pytest.mark.parametrize(("fewest", "test", "looks"), [(3, True, 0), (2, True, 1), (2, False, 0)])
def test_the_run_has_read_test_images_on_its_own_grid(
    config, tmp_path, monkeypatch, fewest, test, looks
):
    record = train(replace(config, test=test), tmp_path)
    images, original, seen = load("digits").test, _Coarse.accuracy, []

    def accuracy(self, model, given):
        seen.append(torch.equal(given.images, images.images))
        return original(self, model, given)

    monkeypatch.setattr(_Coarse, "accuracy", accuracy)
    monkeypatch.setattr(measurements, "fewest_steps", lambda grids, least: fewest)
    found = measurements.steps(tmp_path)["fewest_test_accuracy"]
    assert sum(seen) == looks
    assert looks or found == record.metrics.test_accuracy


def test_grids_are_not_compiled(config):
    model = create(config.model, preset=config.preset, channels=1, steps=3, compile=True)
    (block,) = flows(_Coarse(model, config).calibrated(2)).values()
    assert (block.steps, type(block.gradient)) == (2, Backprop)


def by_hand(config, folder, steps):
    """The trained weights in a model made for so many steps, its statistics found anew."""
    trained, _ = load_model(folder)
    model = create(config.model, preset=config.preset, channels=1, steps=steps)
    own = model.state_dict()
    fitting = {k: v for k, v in trained.state_dict().items() if v.shape == own[k].shape}
    assert set(dict(model.named_parameters())) <= set(fitting)
    model.load_state_dict(fitting, strict=False)
    setup = prepare(config)
    later = later_images(setup.batches, config.epochs, config.calibration)
    calibrate(model, model, later)
    held = setup.data.validation
    with torch.no_grad():
        logits = model.eval()(normalised(held))
    assert [block.steps for block in flows(model).values()] == [steps]
    return (logits.argmax(1) == held.labels).sum().item() / len(held)


def test_a_broken_measurement_names_its_file(tmp_path):
    assert measured("steps", tmp_path) is None
    (tmp_path / "steps.json").write_text("{")
    with pytest.raises(ValueError, match=r"steps\.json.*delete it"):
        measured("steps", tmp_path)
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.json").write_text("{")
    with pytest.raises(ValueError, match=r"memory\.json.*delete it"):
        memory_section(tmp_path)


def test_what_a_cpu_measured_is_measured_again_on_a_gpu(tmp_path, monkeypatch):
    devices = iter(["cpu", "cuda", "never"])

    def measure(options):
        return {"hardware": {"device": next(devices)}}

    def found(budget="short"):
        return measured_once(tmp_path / "a/m.json", measure, Options(budget=budget))["hardware"]

    assert found() == found() == {"device": "cpu"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert found("tiny") == {"device": "cpu"}
    assert found() == found() == {"device": "cuda"}


def test_statistics_on_another_grid_are_those_of_its_own_states(config):
    """Of the first norm, whose first evaluation is of what the flow is given."""
    torch.manual_seed(0)
    model = create(config.model, preset=config.preset, channels=1, steps=3)
    found = _Coarse(model, config).calibrated(2)
    (block,) = flows(found).values()
    norm = next(part for part in block.modules() if isinstance(part, BatchNorm))
    starts = []
    block.register_forward_pre_hook(lambda _, inputs: starts.append(inputs[0]))
    with torch.no_grad():
        for images in later_images(prepare(config).batches, config.epochs, config.calibration):
            found(images)
    mean = torch.stack([x.mean((0, 2, 3)) for x in starts]).mean(0)
    assert norm.running_mean.shape[0] == 2
    torch.testing.assert_close(norm.running_mean[0], mean, rtol=1e-4, atol=1e-5)
    assert mean.abs().max() > 0.05
