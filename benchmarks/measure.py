"""Peak memory of a call on the CPU, and medians of times. No deep-learning library.

Memory is the growth of the resident set at its peak. Freed pages are first returned to the system,
so that an earlier call's leftovers don't hide this call's growth; then the kernel's own high-water
mark is reset and read. Where that can't be done, a thread samples the resident set instead.
"""

import ctypes
import gc
import resource
import statistics
import threading
from collections.abc import Callable
from pathlib import Path

WARM_UP = 2
SAMPLING_INTERVAL = 5e-4


def peak_resident(call: Callable[[], object]) -> tuple[int, str]:
    """Bytes by which the resident set grew at its peak during ``call``, and how that was read."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM to the current size
        before = _status_bytes("VmHWM")
    except (OSError, KeyError):
        return _sampled_resident(call)
    call()
    return _status_bytes("VmHWM") - before, "kernel high-water mark"


def _status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[key].split()[0]) * 1024


def _sampled_resident(call: Callable[[], object]) -> tuple[int, str]:
    statm = Path("/proc/self/statm")
    if not statm.exists():  # the life-time maximum: a lower bound of the growth
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        call()
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return (after - before) * 1024, "getrusage, lower bound"

    def resident() -> int:
        return int(statm.read_text().split()[1]) * resource.getpagesize()

    before = peak = resident()
    done = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.wait(SAMPLING_INTERVAL):
            peak = max(peak, resident())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        call()
    finally:
        done.set()
        thread.join()
    return max(peak, resident()) - before, "sampled resident set"


def summarise(forward: list[float], total: list[float]) -> dict[str, float]:
    """Medians in milliseconds; the backward pass is what the total has beyond the forward."""
    return {
        "forward_ms": 1e3 * statistics.median(forward),
        "backward_ms": 1e3 * statistics.median(b - a for a, b in zip(forward, total, strict=True)),
        "total_ms": 1e3 * statistics.median(total),
        "total_ms_min": 1e3 * min(total),
        "total_ms_max": 1e3 * max(total),
    }
