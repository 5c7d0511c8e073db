"""Ctrl-C and SIGTERM as a request: the current step ends, and a checkpoint is written."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether a signal has come; a second signal breaks off.

    For the ``stop`` of ``train``. Outside of the main thread, which alone receives signals, the
    answer is always no.
    """
    came: list[int] = []

    def note(number: int, _: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)
        print("\nstopping after this step; a second time breaks off at once", file=sys.stderr)

    here = threading.current_thread() is threading.main_thread()
    signals = (signal.SIGINT, signal.SIGTERM) if here else ()
    before = {number: signal.signal(number, note) for number in signals}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
