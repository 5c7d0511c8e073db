"""Time, peak memory and gradients of one solve in PyTorch.

Memory is the peak during forward + backward minus what was held before: of the allocator on CUDA,
of the resident set on the CPU. Every timed call gets a fresh random input, made before the clock.
"""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from measure import WARM_UP, peak_resident, summarise
from torch import Tensor


@dataclass
class TorchSolve:
    """One system at one K: the solve, the leaves it differentiates, its last evaluation count."""

    forward: Callable[[Tensor], Tensor]
    leaves: Mapping[str, Tensor]
    evaluations: Callable[[], int]


def measure_torch(
    solve: TorchSolve,
    arrays: Mapping[str, np.ndarray],
    dtype: torch.dtype,
    device: torch.device,
    repeats: int,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The row's numbers, and the gradients at the shared input."""
    cuda = device.type == "cuda"
    # The layout that GPU convolutions want, for every PyTorch system; JAX chooses its own.
    layout = torch.channels_last if cuda else torch.contiguous_format
    cotangent = torch.from_numpy(arrays["cotangent"]).to(device, dtype).to(memory_format=layout)
    names = ["x0", *solve.leaves]

    def differentiate(x: Tensor, marks: list[Any] | None = None) -> tuple[Tensor, ...]:
        _mark(marks, cuda)
        y = solve.forward(x)
        _mark(marks, cuda)
        gradients = torch.autograd.grad(y, [x, *solve.leaves.values()], cotangent)
        _mark(marks, cuda)
        return gradients

    def fresh() -> Tensor:
        x = torch.randn_like(cotangent).requires_grad_()
        if cuda:
            torch.cuda.synchronize()
        return x

    x = fresh()  # an input is the caller's: there before and after
    if cuda:
        _wake()
    reserved = _reserved(cuda)
    begin = time.perf_counter()
    differentiate(fresh())
    if cuda:
        torch.cuda.synchronize()
    first = time.perf_counter() - begin
    for _ in range(WARM_UP):
        differentiate(fresh())
    forward, total = [], []
    for _ in range(repeats):
        marks: list[Any] = []
        differentiate(fresh(), marks)
        start, middle, end = _seconds(marks, cuda)
        forward.append(middle - start)
        total.append(end - start)

    row: dict[str, Any] = {"first_call_s": first, **summarise(forward, total)}
    if cuda:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        differentiate(x)
        torch.cuda.synchronize()
        # The memory of a captured solve is set aside for good: the allocator calls it reserved.
        kept = max(0, _reserved(cuda) - reserved)
        row["peak_bytes"] = torch.cuda.max_memory_allocated() - before + kept
        row["kept_bytes"] = kept
        row["memory"] = "torch.cuda.max_memory_allocated, and what is kept between passes"
    else:
        row["peak_bytes"], row["memory"] = peak_resident(lambda: differentiate(x))

    x0 = torch.from_numpy(arrays["x0"]).to(device, dtype).to(memory_format=layout).requires_grad_()
    y = solve.forward(x0)
    row["evaluations"] = solve.evaluations()  # before a backward pass can add its own
    gradients = torch.autograd.grad(y, [x0, *solve.leaves.values()], cotangent)
    return row, {n: g.double().cpu().numpy() for n, g in zip(names, gradients, strict=True)}


def _wake() -> None:
    """Have the libraries take the workspaces that any program pays for."""
    matrix = torch.ones(64, 64, device="cuda")
    image = torch.ones(1, 8, 8, 8, device="cuda", requires_grad=True)
    kernel = torch.ones(8, 8, 3, 3, device="cuda", requires_grad=True)
    (matrix @ matrix).sum().item()
    torch.nn.functional.conv2d(image, kernel).sum().backward()


def copy_bandwidth(size: int) -> float:
    """Bytes a second, read and written, of a copy of that many bytes on the GPU."""
    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / _in_a_row(lambda: target.copy_(source), 50)


def product_rate(dtype: torch.dtype, side: int = 8192) -> float:
    """Additions and multiplications a second in a large product on the GPU, in f's dtype."""
    torch.backends.cuda.matmul.allow_tf32 = False  # as in what is measured
    matrix = torch.randn(side, side, device="cuda").to(dtype)
    return 2 * side**3 / _in_a_row(lambda: matrix @ matrix, 5)


def _in_a_row(call: Callable[[], object], many: int) -> float:
    """Seconds of a call among many: by itself it is timed with its launch."""
    times = []
    for _ in range(10):
        marks: list[Any] = []
        _mark(marks, True)
        for _ in range(many):
            call()
        _mark(marks, True)
        times.append(_seconds(marks, True)[1] / many)
    return sorted(times)[len(times) // 2]


def _reserved(cuda: bool) -> int:
    """Bytes that the allocator can't give back between passes."""
    if not cuda:
        return 0
    gc.collect()  # graphs of an earlier solve may be in a cycle, and would be freed during this one
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def _mark(marks: list[Any] | None, cuda: bool) -> None:
    if marks is None:
        return
    if not cuda:
        marks.append(time.perf_counter())
        return
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    marks.append(event)


def _seconds(marks: list[Any], cuda: bool) -> list[float]:
    if not cuda:
        return marks
    torch.cuda.synchronize()
    return [marks[0].elapsed_time(mark) / 1e3 for mark in marks]
