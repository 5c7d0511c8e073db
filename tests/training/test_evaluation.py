"""What is evaluated: which weights, which statistics, which images."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from nanode.data import load
from nanode.gradients import compiled
from nanode.training import (
    OptimizerConfig,
    ScheduleConfig,
    evaluate,
    load_model,
    train,
)
from nanode.training.checkpoints import last_checkpoint
from nanode.training.evaluation import score
from nanode.training.setup import Setup, make_fabric, prepare


def test_evaluation_is_of_the_stored_weights_and_statistics(tmp_path, config):
    record = train(config, tmp_path)
    found = evaluate(tmp_path)
    assert (found.loss, found.accuracy) == (record.metrics.test_loss, record.metrics.test_accuracy)
    held = evaluate(tmp_path, "validation")
    assert held.accuracy == record.metrics.validation_accuracy
    model, _ = load_model(tmp_path)
    assert not model.training
    with pytest.raises(ValueError, match=r"train, validation, test; got 'tset'.*'test'"):
        evaluate(tmp_path, "tset")


def test_nothing_is_compiled_to_evaluate_on_a_cpu(tmp_path, config, monkeypatch):
    options = config.options | {"compile": True}
    monkeypatch.setattr(compiled, "WORTH_COMPILING", 2**30)  # quicker to train
    record = train(replace(config, options=options, epochs=1), tmp_path)
    monkeypatch.setattr(compiled, "WORTH_COMPILING", 0)
    monkeypatch.setattr(torch, "compile", None)
    assert evaluate(tmp_path).accuracy == record.metrics.test_accuracy


@pytest.mark.parametrize("average", [0.9, None])
def test_the_average_is_what_is_evaluated(tmp_path, config, perceptron, average):
    config = replace(config, options={}, epochs=1, average=average, calibration=0)
    record = train(config, tmp_path)
    kept = load_file(last_checkpoint(tmp_path) / "weights.safetensors")
    expected = {name: w for name, w in kept.items() if not name.startswith("average/")}
    means = {name.removeprefix("average/"): w for name, w in kept.items() if name not in expected}
    assert bool(means) == (average is not None)
    assert average is None or not torch.equal(means["1.weight"], expected["1.weight"])
    expected |= means  # buffers are the model's own
    for name in ("best", "final"):
        found = load_file(tmp_path / f"{name}.safetensors")
        assert all(torch.equal(w, expected[key]) for key, w in found.items())
    held = evaluate(tmp_path, "validation")
    assert record.curves[0].validation_loss == record.metrics.validation_loss == held.loss


def test_the_first_loss_by_hand(tmp_path, config, losses):
    config = replace(config, epochs=1, label_smoothing=0.1)
    train(config, tmp_path)
    setup = prepare(config)
    images, labels = setup.batches.batch(0, 0)
    log_p = torch.log_softmax(setup.model(images), 1).detach()
    right, all_classes = log_p.gather(1, labels[:, None]), log_p.mean(1, keepdim=True)
    expected = -(0.9 * right + 0.1 * all_classes).mean()
    # Rounding of float32, summed in another order.
    assert losses(tmp_path)[0][1] == pytest.approx(expected.item(), rel=1e-5)


def test_a_score_does_not_depend_on_the_batches(config):
    setup = prepare(config)
    found = setup.score(setup.data.test)
    setup.config = replace(config, batch_size=7)
    other = setup.score(setup.data.test)
    assert other.accuracy == found.accuracy
    # The same sum of float32 losses in another order.
    assert other.loss == pytest.approx(found.loss, rel=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_a_score_leaves_the_mode_alone_and_shows_batches_of_one_size(config, training):
    """Compiled code would be compiled once more for the last, smaller one."""
    model, sizes = nn.Linear(64, 10).train(training), []

    def forward(images):
        sizes.append(len(images))
        assert not model.training
        return nn.functional.linear(images.flatten(1), model.weight)

    model.forward = forward
    score(model, load("digits").test, replace(config, batch_size=100), make_fabric(config))
    assert sizes == [100] * 4  # of 360
    assert model.training is training


def test_a_run_that_must_not_look_at_the_test_images(tmp_path, config, perceptron, monkeypatch):
    seen = []
    original = Setup.score
    monkeypatch.setattr(
        Setup, "score", lambda self, images: seen.append(images.name) or original(self, images)
    )
    config = replace(config, options={}, test=False)
    assert train(config, tmp_path / "choice").metrics.test_accuracy is None
    assert set(seen) == {"digits validation"}
    seen.clear()
    train(replace(config, test=True), tmp_path / "final")
    assert seen.count("digits test") == 1
    seen.clear()
    record = train(replace(config, test=True, validation=0), tmp_path / "all")
    assert seen == ["digits test"]
    assert record.metrics.validation_accuracy is None


def test_the_best_weights_on_request(tmp_path, config, perceptron):
    # So large a rate at the end that the last epoch is not the best.
    config = replace(config, options={}, epochs=4, calibration=0, select="best", average=None)
    config = replace(
        config,
        optimizer=OptimizerConfig(lr=20.0),
        schedule=ScheduleConfig(warmup=0.9, start=1e-3),
    )
    record = train(config, tmp_path)
    accuracies = [point.validation_accuracy for point in record.curves]
    assert max(accuracies) > accuracies[-1]
    assert record.metrics.validation_accuracy == max(accuracies)
