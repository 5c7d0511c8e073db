"""What the loop makes of its steps: losses, averages, and the epoch that is kept."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from nanode.data.mixing import Mixed
from nanode.training import train
from nanode.training.checkpoints import weights_notes
from nanode.training.evaluation import Score
from nanode.training.loop import Loop
from nanode.training.setup import Setup, prepare


def test_labels_are_smoothed_mixed_or_not(config, perceptron):
    loop = Loop.__new__(Loop)
    loop.setup = prepare(replace(config, options={}, label_smoothing=0.1))
    logits, labels, others = torch.randn(8, 10), torch.arange(8), torch.arange(8).flip(0)

    def smoothed(right):
        log_p = logits.log_softmax(1)
        return -(0.9 * log_p[torch.arange(8), right] + 0.1 * log_p.mean(1)).mean()

    plain = loop._loss(logits, Mixed(logits, labels, labels, share=0.0))
    torch.testing.assert_close(plain, smoothed(labels))
    mixed = loop._loss(logits, Mixed(logits, labels, others, share=0.25))
    torch.testing.assert_close(mixed, 0.75 * smoothed(labels) + 0.25 * smoothed(others))


def test_the_average_that_is_kept_is_over_every_step(tmp_path, config, perceptron, monkeypatch):
    path, step = [], Loop._step

    def watched(loop, *batch):
        weights = dict(loop.setup.model.named_parameters())
        if not path:
            path.append({name: p.detach().clone() for name, p in weights.items()})
        found = step(loop, *batch)
        path.append({name: p.detach().clone() for name, p in weights.items()})
        return found

    monkeypatch.setattr(Loop, "_step", watched)
    train(replace(config, options={}, average=0.5), tmp_path)
    final = load_file(tmp_path / "final.safetensors")
    assert len(path) == 1 + 20
    mean = path[0]
    for n, weights in enumerate(path[1:]):
        beta = min(0.5, (1 + n) / (10 + n))  # of the decay, which starts lower
        mean = {name: beta * mean[name] + (1 - beta) * w for name, w in weights.items()}
    for name, expected in mean.items():
        torch.testing.assert_close(final[name], expected)


@pytest.mark.parametrize("average", [None, 0.5])
def test_the_first_of_the_best_epochs_is_kept(tmp_path, config, perceptron, monkeypatch, average):
    accuracies = iter([0.3, 0.5, 0.5, 0.1, 0.1])  # of three epochs, then of the final weights
    monkeypatch.setattr(Setup, "score", lambda self, images: Score(1.0, next(accuracies)))
    options = {"epochs": 3, "calibration": 0, "select": "best", "average": average}
    train(replace(config, options={}, **options), tmp_path)
    assert weights_notes(tmp_path / "best.safetensors")["epoch"] == 2
    final, best = (load_file(tmp_path / f"{name}.safetensors") for name in ("final", "best"))
    assert all(torch.equal(w, best[name]) for name, w in final.items())
