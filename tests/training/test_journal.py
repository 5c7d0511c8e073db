"""What a run tells while it runs."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nanode.training.journal import Journal


def test_opened_at_a_step_it_forgets_what_came_after(tmp_path, lines):
    with Journal(tmp_path, 0, tensorboard=False, progress=False) as journal:
        for step in (1, 2, 3):
            journal.write(step, loss=0.5)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')  # cut off in the middle
    with Journal(tmp_path, 2, tensorboard=False, progress=False) as journal:
        journal.write(3, loss=0.25)
    assert lines(tmp_path) == [
        {"step": 1, "loss": 0.5},
        {"step": 2, "loss": 0.5},
        {"step": 3, "loss": 0.25},
    ]


def test_a_damaged_log_is_gone_on_with(tmp_path, lines):
    (tmp_path / "log.jsonl").write_bytes(b'{"step": 1}\n5\n\xff\n{"loss": 1.0}\n')
    with Journal(tmp_path, 2, tensorboard=False, progress=False):
        pass
    assert lines(tmp_path) == [{"step": 1}]


def test_a_closed_stderr_is_no_reason_to_stop(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    with Journal(tmp_path, 0, tensorboard=False, progress=True) as journal:
        journal.show("step 1", done=True)


def test_what_starts_over_is_shown_once(tmp_path):
    for _ in range(2):  # interrupted before its first checkpoint, and begun again
        with Journal(tmp_path, 0, tensorboard=True, progress=False) as journal:
            for step in (1, 2):
                journal.write(step, loss=0.5)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [e.step for e in events.Scalars("loss")] == [1, 2]


def test_a_new_run_starts_a_new_log(tmp_path, lines):
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n')
    with Journal(tmp_path, 0, tensorboard=False, progress=False):
        pass
    assert lines(tmp_path) == []


def test_tensorboard_gets_every_number(tmp_path):
    with Journal(tmp_path, 0, tensorboard=True, progress=False) as journal:
        for step in (1, 2, 3):
            journal.write(step, loss=0.5 * step, note="text")
    with Journal(tmp_path, 2, tensorboard=True, progress=False) as journal:
        journal.write(3, loss=0.25)  # what comes after the checkpoint is made again
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 0.5), (2, 1.0), (3, 0.25)]


def test_a_progress_line_replaces_itself_on_a_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Journal(tmp_path, 0, tensorboard=False, progress=True) as journal:
        journal.show("step 1")
        journal.show("step 2")  # too soon to be shown
        journal.show("epoch 1", done=True)
    assert capsys.readouterr().err == "\rstep 1\x1b[K\repoch 1\x1b[K\n"


@pytest.mark.parametrize("progress", [True, False])
def test_elsewhere_only_whole_lines(tmp_path, capsys, progress):
    with Journal(tmp_path, 0, tensorboard=False, progress=progress) as journal:
        journal.show("step 1")
        journal.show("epoch 1", done=True)
    assert capsys.readouterr().err == ("epoch 1\n" if progress else "")
