"""Ctrl-C and SIGTERM as a request: the current step ends, and a checkpoint is written."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

#: Ctrl-C, and what a time limit sends first.
SIGNALS = (signal.SIGINT, signal.SIGTERM)
HEARD = "\nstopping after this step; a second time breaks off at once"
#: What is said in the end.
GOES_ON = "interrupted; the same command goes on from here"


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
        # Whoever reads along may be gone, or the signal came in the midst of other words.
        with suppress(OSError, ValueError, RuntimeError):
            print(HEARD, file=sys.stderr, flush=True)

    here = threading.current_thread() is threading.main_thread()
    known = {number: signal.getsignal(number) for number in SIGNALS} if here else {}
    # A signal that is ignored stays so, as in what a script runs in the background.
    before = {n: handler for n, handler in known.items() if handler not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
