import json

import pytest

from nanode.cli.analyse import command
from nanode.training import TrainConfig, analyse_run, load_model, train


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
    numbers = json.loads(text.read_text(encoding="utf-8"))
    (flow,) = numbers.values()
    model, _ = load_model(run)
    assert flow["parameters"] == sum(p.numel() for p in model.stages.parameters())
    assert flow["size"] == 16 * 8 * 8
    assert len(flow["samples"]) == 1
    shown = capsys.readouterr().out
    assert f"{flow['samples'][0]['gradients']['growth']:.4g}" in shown
    assert str(page) in shown


def test_what_is_no_finished_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match="can't read the run record"):
        analyse_run(tmp_path)
    with pytest.raises(ValueError, match="samples must be a whole number of at least 1"):
        analyse_run(tmp_path, samples=0)
