from dataclasses import replace

from nanode.analysis import Analysis, Effort
from nanode.training import analyse_run
from nanode.training.video import train_video


def test_a_video_run(tmp_path, config, unmeasured, monkeypatch):
    train_video(replace(config, n_past=2, n_future=2, steps=1), tmp_path / "run")
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
