"""Video models on a GPU."""

from dataclasses import replace

import pytest
import torch

from nanode.gradients import repeats
from nanode.models.video import create
from nanode.training.video import evaluate_video, train_video, video_recipe
from nanode.training.video.setup import prepare

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("gradient", ["backprop", "checkpointed"])
def test_a_gpu_computes_what_a_cpu_does(gradient):
    torch.manual_seed(0)
    shape = {"size": 16, "width": 4, "g_dim": 8, "z_dim": 3, "rnn_size": 8}
    frames, noise = torch.rand(2, 5, 1, 16, 16).double(), torch.randn(2, 4, 3).double()
    here = create("svg-nanode", gradient=gradient, **shape).double()
    there = create("svg-nanode", gradient=gradient, channels_last=True, **shape).double().cuda()
    there.load_state_dict(here.state_dict())
    found = []
    for model, device in ((here, "cpu"), (there, "cuda")):
        made = model(frames.to(device), 3, noise.to(device)).frames
        made.square().sum().backward()
        found.append([made.cpu(), *(p.grad.cpu() for p in model.encoder.parameters())])
    # Double precision: sums in another order.
    assert all(torch.allclose(a, b, rtol=1e-8, atol=1e-10) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("model", ["svg", "svg-nanode"])
def test_a_step_waits_for_nothing(model, monkeypatch):
    """Clips included: indices travel from pinned memory."""
    monkeypatch.setattr(repeats, "TRIALS", 0)  # passes that are looked at are waited for
    changes = {"device": "cuda", "precision": "bf16-mixed", "channels_last": True, "clip": 1.0}
    setup = prepare(replace(video_recipe("moving-mnist-tiny"), model=model, **changes))
    setup.step(setup.batch(0))  # tables, and the optimizer's state
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = [setup.step(setup.batch(step)) for step in (1, 2)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(bool(torch.isfinite(terms).all()) for terms in found)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "svg", "compile": True},
        {"compile": True},
        {"options": {"width": 8, "gradient": "checkpointed"}},
        {"options": {"width": 8, "gradient": "checkpointed", "compile": True}},
        {"options": {"width": 8, "compile": True}},
    ],
    ids=str,
)
def test_runs(tmp_path, config, changes):
    config = replace(config, device="cuda", precision="bf16-mixed", channels_last=True, **changes)
    record = train_video(config, tmp_path)
    assert record.status == "finished"
    assert record.curves[-1].loss < record.curves[0].loss
    assert record.costs.peak_bytes > record.costs.parameter_bytes
    assert evaluate_video(tmp_path, sequences=2, samples=3).best_psnr > 5
