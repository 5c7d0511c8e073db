import json

import numpy as np
import pytest

from nanode.analysis import Analysis, Effort
from nanode.cli.analyse import command
from nanode.data.video import VideoData
from nanode.data.video.clips import StoredClips
from nanode.training import TrainConfig, analyse_run, load_model, train
from nanode.training.video import VideoConfig, train_video


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    config = TrainConfig(
        data="digits",
        model="t-nanode-2",
        preset="tiny",
        options={"steps": 2},
        epochs=1,
        batch_size=128,
        calibration=1,
        device="cpu",
        progress=False,
        test=False,
    )
    train(config, folder)
    return folder


def test_a_run_is_analysed_from_the_command_line(run, capsys):
    command(run, samples=1)
    page, text = run / "analysis" / "analysis.png", run / "analysis" / "analysis.json"
    assert set((run / "analysis").iterdir()) == {page, text}
    assert page.read_bytes().startswith(b"\x89PNG")
    numbers = json.loads(text.read_text())
    (flow,) = numbers.values()
    model, _ = load_model(run)
    assert flow["parameters"] == sum(p.numel() for p in model.stages.parameters())
    assert flow["size"] == 16 * 8 * 8
    assert len(flow["samples"]) == 1
    shown = capsys.readouterr().out
    assert f"{flow['samples'][0]['gradients']['growth']:.4g}" in shown
    assert str(page) in shown


def test_a_video_run(tmp_path, monkeypatch):
    frames = np.zeros((4, 6, 1, 16, 16), np.uint8)
    for t in range(6):
        frames[:, t, 0, 4:8, 2 * t : 2 * t + 4] = 255
    clips = StoredClips("squares", frames)
    monkeypatch.setattr(
        "nanode.training.video.setup.load", lambda *_, **__: VideoData("squares", clips, clips)
    )
    config = VideoConfig(
        data="squares",
        model="svg-nanode",
        options={"width": 2, "g_dim": 4, "z_dim": 2, "rnn_size": 4},
        n_past=2,
        n_future=2,
        n_eval=4,
        batch_size=2,
        steps=1,
        calibration=1,
        test_clips=1,
        device="cpu",
        progress=False,
    )
    train_video(config, tmp_path / "run")
    saved = []
    monkeypatch.setattr(Analysis, "save", lambda self, out: saved.append(out))  # slow to draw
    found = analyse_run(tmp_path / "run", samples=1, effort=Effort(count=1, depth=1, points=1))
    assert saved == [tmp_path / "run" / "analysis"]
    names = list(found.flows)
    assert any("encoder" in name for name in names)
    assert any("decoder" in name for name in names)
    # The first stage has two channels at full resolution: one frame, not the clip's four.
    assert found.flows[names[0]].size == 2 * 16 * 16
    assert all(flow.samples[0].gradients.norms[0] > 0 for flow in found.flows.values())


def test_what_is_no_finished_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="can't read the run record"):
        analyse_run(tmp_path)
    with pytest.raises(ValueError, match="samples must be a whole number of at least 1"):
        analyse_run(tmp_path, samples=0)
