"""What ends a program from outside: signals, a pipe that nobody reads, a terminal's encoding.

A signal is a request to a run, the end of anything else, and never comes inside an import.
"""

import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

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

    with _handled(note):
        yield lambda: bool(came)


@contextmanager
def postponed() -> Iterator[None]:
    """Signals wait for the end of this and are then a KeyboardInterrupt.

    For imports: libraries swallow what is raised inside of theirs, and go on half imported.
    """
    came: list[int] = []
    with _handled(lambda number, _: came.append(number)):
        yield
    if came:
        raise KeyboardInterrupt


@contextmanager
def raised() -> Iterator[None]:
    """Either signal is a KeyboardInterrupt while this lasts."""
    with _handled(signal.default_int_handler):
        yield


def print_anything() -> None:
    """Have a ? printed for what the encoding of a terminal or pipe lacks, instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            with suppress(ValueError):  # closed
                stream.reconfigure(errors="replace")


def unread() -> bool:
    """Whether nobody reads what is printed, as behind ``| head``; it then leads nowhere.

    A program ends with status 141 there, as of the signal SIGPIPE.
    """
    with suppress(OSError, ValueError):
        number = sys.stdout.fileno()
        if hasattr(select, "poll"):  # else it is taken for granted, some pipe having broken
            asked = select.poll()
            asked.register(number, select.POLLOUT)
            if not any(event & select.POLLERR for _, event in asked.poll(0)):
                return False
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), number)  # else Python would complain at its end
    return True


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Signals by another handler, in the main thread."""
    here = threading.current_thread() is threading.main_thread()
    known = {number: signal.getsignal(number) for number in SIGNALS} if here else {}
    # A signal that is ignored stays so, as in what a script runs in the background.
    before = {n: old for n, old in known.items() if old not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
