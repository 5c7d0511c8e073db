"""What a run tells while it runs: a log of JSON lines, a progress line, TensorBoard on request."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from nanode.training.files import write_text


class Journal:
    """Writes ``log.jsonl``: one line a step with its loss and rate, one an epoch with metrics.

    Opened at a step by ``with``, it forgets what an interrupted start wrote after that step.
    """

    def __init__(self, folder: Path, step: int, *, tensorboard: bool, progress: bool) -> None:
        self._path, self._step = folder / "log.jsonl", step
        self._tensorboard, self._progress = tensorboard, progress
        self._shown = 0.0

    def __enter__(self) -> Self:
        self._board = _board(self._path.parent, self._step) if self._tensorboard else None
        write_text(self._path, "".join(self._kept()))
        self._file = self._path.open("a", encoding="utf-8", newline="\n")
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def _kept(self) -> Iterator[str]:
        """What was written up to the step."""
        if not self._step or not self._path.exists():
            return
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                early = json.loads(line)["step"] <= self._step
            except (ValueError, TypeError, KeyError):
                continue  # cut off in the middle, or damaged
            if early:
                yield line + "\n"

    def write(self, step: int, **values: Any) -> None:
        """One line, under ``step`` steps taken."""
        self._file.write(json.dumps({"step": step} | values) + "\n")
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, step)

    def flush(self) -> None:
        """Have all lines reach the file."""
        self._file.flush()

    def show(self, text: str, *, done: bool = False) -> None:
        """Replace the progress line, on a terminal a few times a second; ``done`` ends it."""
        if not self._progress or sys.stderr is None:  # as where it was closed
            return
        terminal = sys.stderr.isatty()
        if done or (terminal and time.monotonic() - self._shown > 0.2):
            self._shown = time.monotonic()
            start, clear = ("\r", "\x1b[K") if terminal else ("", "")
            with suppress(OSError):  # nobody may read along any more, which is no reason to stop
                sys.stderr.write(f"{start}{text}{clear}" + ("\n" if done else ""))
                sys.stderr.flush()


def check_tensorboard() -> None:
    """Say how to get TensorBoard where it is missing."""
    if find_spec("tensorboard") is None:
        raise ValueError(
            "tensorboard: true needs TensorBoard, which isn't installed: "
            "pip install nanode[tensorboard]"
        )


def _board(folder: Path, step: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
