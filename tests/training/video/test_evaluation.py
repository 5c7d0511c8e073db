"""Evaluation of runs: what is measured, on which frames, and what it must not depend on."""

from dataclasses import replace

import pytest
import torch

from nanode.training.video import (
    evaluate_video,
    load_video_model,
    setup,
    train_video,
    trivial_scores,
)
from nanode.training.video.evaluation import (
    _compared,
    best_samples,
    norm_statistics,
    open_task,
)
from nanode.training.video.generation import columns_of
from nanode.training.video.metrics import psnr, ssim
from tests.training.video.conftest import squares

pytestmark = pytest.mark.usefixtures("unmeasured")


@pytest.fixture
def run(tmp_path, config):
    train_video(replace(config, steps=6), tmp_path / "run")
    return tmp_path / "run"


def test_scores_are_of_the_best_sample_and_of_predicted_frames(run):
    score = evaluate_video(run, sequences=3, samples=4, seed=2)
    task = open_task(run, seed=2)
    indices = torch.arange(3)
    truth = task.truth(indices)
    made = task.generated(indices, truth, 4)
    assert made.shape == (3, 4, 8, 1, 16, 16)
    psnrs, ssims = [], []
    for n in range(3):
        found = []
        for s in range(4):
            pairs = [(made[n, s, t][None], truth[n, t][None]) for t in range(3, 8)]
            found.append(([psnr(*pair).item() for pair in pairs], [ssim(*p).item() for p in pairs]))
        best = max(found, key=lambda pair: sum(pair[1]))
        psnrs.append(best[0])
        ssims.append(best[1])
    expected = torch.tensor(psnrs).mean(0).tolist(), torch.tensor(ssims).mean(0).tolist()
    assert score.psnr == pytest.approx(expected[0], rel=1e-4)
    assert score.ssim == pytest.approx(expected[1], abs=1e-5)
    assert score.best_psnr == pytest.approx(sum(expected[0]) / 5, rel=1e-4)
    assert (score.sequences, score.samples, score.n_past, score.length) == (3, 4, 3, 8)


def test_openstl_is_of_the_expected_prediction(run):
    score = evaluate_video(run, sequences=4, samples=1)
    task = open_task(run)
    truth = task.truth(torch.arange(4))
    expected = task.expected(truth)[:, 3:]
    error = (expected - truth[:, 3:]).square().sum(dim=(2, 3, 4)).mean().item()
    assert score.openstl_mse == pytest.approx(error, rel=1e-5)


def test_predictions_that_need_no_model(run, config):
    found = trivial_scores(config, sequences=3, n_past=3, length=8)
    truth = open_task(run).truth(torch.arange(3))
    future = truth[:, 3:]
    for name, made in (
        ("black frames", torch.zeros_like(future)),
        ("the last given frame", truth[:, 2:3].expand_as(future)),
    ):
        error = (made - future).square()
        score = found[name]
        assert score.openstl_mse == pytest.approx(error.sum(dim=(2, 3, 4)).mean().item(), rel=1e-5)
        ratios = -10 * error.mean(dim=(2, 3, 4)).log10()
        assert score.psnr == pytest.approx(ratios.clamp(max=100).mean(0).tolist(), rel=1e-4)
        similar = [ssim(made[:, t], future[:, t]).mean().item() for t in range(5)]
        assert score.ssim == pytest.approx(similar, abs=1e-5)


def test_more_samples_are_no_worse_and_begin_alike(run):
    few, many = (evaluate_video(run, sequences=2, samples=n) for n in (2, 6))
    assert many.best_ssim >= few.best_ssim
    task = open_task(run)
    truth = task.truth(torch.arange(2))
    two = task.generated(torch.arange(2), truth, 2)
    assert torch.allclose(two, task.generated(torch.arange(2), truth, 6)[:, :2], atol=1e-6)


def test_neither_batches_nor_other_clips_matter(run):
    whole = evaluate_video(run, sequences=5, samples=3, rows=100)
    told = []
    parts = evaluate_video(run, sequences=5, samples=3, rows=6, progress=lambda *n: told.append(n))
    assert told == [(2, 5), (4, 5), (5, 5)]
    # Other batch sizes round otherwise.
    assert whole.psnr == pytest.approx(parts.psnr, rel=1e-5)
    assert whole.ssim == pytest.approx(parts.ssim, abs=1e-5)


def test_the_seed_decides(run):
    a, b, c = (evaluate_video(run, sequences=2, samples=2, seed=seed) for seed in (0, 0, 1))
    assert a == b
    assert a.psnr != c.psnr
    assert a.openstl_mse == c.openstl_mse  # no latents are drawn there


def test_another_horizon_and_split(run):
    score = evaluate_video(run, sequences=1, samples=1, n_past=2, length=12, split="train")
    assert (len(score.psnr), score.split, score.n_past) == (10, "train", 2)


def test_a_run_that_was_moved_names_its_data(run, monkeypatch):
    asked = []
    inner = setup.load

    def load(name, *, root, device, **options):
        asked.append(root)
        return inner(name, root=root, device=device, **options)

    monkeypatch.setattr(setup, "load", load)
    open_task(run)
    open_task(run, data_root="elsewhere")
    assert asked == [None, "elsewhere"]


def test_all_clips_where_there_are_fewer(run):
    assert evaluate_video(run, sequences=100, samples=1).sequences == 6


def test_norms_of_each_batch_leave_the_model_as_it_was(run):
    model, _ = load_video_model(run)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with norm_statistics(model, "batch"):
        assert model.training
        model(torch.rand(2, 4, 1, 16, 16), 2)
    assert not model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    stored, batch = (
        evaluate_video(run, sequences=4, samples=1, norms=n) for n in ("stored", "batch")
    )
    assert stored.psnr != batch.psnr


@pytest.mark.parametrize(("sequences", "rows", "parts"), [(5, 2, [2, 3]), (4, 3, [2, 2])])
def test_norms_of_each_batch_never_see_one_clip_alone(run, sequences, rows, parts):
    told = []
    options = {"samples": 1, "rows": rows, "norms": "batch"}
    evaluate_video(run, sequences=sequences, progress=lambda *n: told.append(n[0]), **options)
    assert told == [sum(parts[: i + 1]) for i in range(len(parts))]


def test_films_by_norms_of_the_batch(run):
    task = open_task(run, norms="batch")
    columns = columns_of(task, sequences=3, samples=3, shown=2)
    assert list(columns) == ["truth", "posterior", "best", "sample 1", "sample 2"]
    # All clips are one batch, and each row is of its own clip.
    truth = task.truth(torch.arange(3))
    made = task.generated(torch.arange(3), truth, 3)
    best, _ = best_samples(made[:, :, task.n_past :], truth[:, task.n_past :])
    for i, b in enumerate(best.tolist()):
        assert torch.equal(columns["best"][i], made[i, b])
        others = [n for n in range(3) if n != b]
        assert torch.equal(columns["sample 2"][i], made[i, others[1]])


def test_networks_of_the_user_see_predicted_frames(run):
    seen = []

    def network(truth, made):
        seen.append((truth, made))
        return torch.tensor(7.0)

    score = evaluate_video(run, sequences=5, samples=2, rows=4, networks={"fvd": network})
    assert score.networks == {"fvd": 7.0}
    ((truth, made),) = seen
    assert truth.shape == made.shape == (5, 5, 1, 16, 16)
    task = open_task(run)
    assert torch.equal(truth, task.truth(torch.arange(5))[:, 3:])


def test_the_best_sample_has_the_best_mean_similarity():
    torch.manual_seed(0)
    future = torch.rand(2, 3, 1, 16, 16)
    noise = torch.tensor([0.3, 0.05, 0.2])[None, :, None, None, None, None]
    made = (future[:, None] + noise * torch.randn(2, 3, 3, 1, 16, 16)).clamp(0, 1)
    best, values = best_samples(made, future)
    assert best.tolist() == [1, 1]
    assert values.shape == (2, 3, 3)


def test_all_frames_are_of_the_one_sample_that_is_best_on_average():
    """Another one is better at the first frame, and another at the last."""
    future = torch.rand(1, 3, 1, 16, 16)
    noise = torch.tensor([[0.3, 0.3, 0.0], [0.01, 0.01, 0.3], [0.0, 0.3, 0.3]])
    noise = noise[None, :, :, None, None, None]
    made = (future[:, None] + noise * torch.randn(1, 3, 3, 1, 16, 16)).clamp(0, 1)
    best, similar = best_samples(made, future)
    assert best.tolist() == [1]
    assert similar[0, :, 2].argmax() == 0
    found = _compared(made, future)
    for name, metric in (("psnr", psnr), ("ssim", ssim)):
        every = torch.stack([metric(sample, future[0]) for sample in made[0]])
        torch.testing.assert_close(found[name][0], every[1], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[f"average_{name}"][0], every.mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 13}, "12 frames a clip, too few for length = 13"),
        ({"length": 3}, "length counts the given frames too .* above n_past = 3, got 3"),
        ({"n_past": 0}, "n_past must be"),
        ({"samples": 0}, "samples must be"),
        ({"norms": "batch"}, "statistics of several clips"),
        ({"norms": "stord"}, "Did you mean 'stored'"),
        ({"split": "validation"}, "split must be one of train, test"),
    ],
)
def test_bad_input(run, options, message):
    with pytest.raises(ValueError, match=message):
        evaluate_video(run, **{"sequences": 1, "samples": 1} | options)


@pytest.mark.parametrize("shape", [(1, 32), (3, 16)])
def test_frames_of_another_shape(run, clips, shape):
    channels, size = shape
    other = squares(6, size=size).repeat(channels, axis=2)
    clips(train=other, test=other)
    there = f"{channels}×{size}×{size}"
    with pytest.raises(ValueError, match=rf"trained on 1×16×16 frames, squares has {there}"):
        evaluate_video(run, data="squares", sequences=1, samples=1)
