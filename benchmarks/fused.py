"""The bottleneck block as it is, compiled and by fused kernels: time, memory, gradient error.

The same block (norm, ReLU, convolution three times; trigonometric weights of order 10; batch norm
with statistics per evaluation), input and cotangent for all; f in bf16 under autocast, state in
fp32. K counts evaluations. Errors are against float64 on the same discretisation, on a small batch.
One JSON line per row. On a CPU everything runs in a tiny size, the kernels by their references.
"""

import argparse
import copy
import json
import platform
import statistics
import time

import torch

import nanode
from nanode.gradients.compiled import Compiled
from nanode.models.layers import batch_norm, bottleneck

SOLVES = {
    "backprop": (nanode.Euler, nanode.Backprop, 1),
    "checkpointed": (nanode.Euler, nanode.Checkpointed, 1),
    "coupled-reversal": (nanode.Coupled, nanode.Reversal, 2),
}
WAYS = {
    "plain": lambda method: method,
    "compiled": Compiled,
    "fused": lambda method: Compiled(method, fused=True),
}


def make_block(field, evaluations, solve, way):
    solver, method, cost = SOLVES[solve]
    return nanode.ODEBlock(field, evaluations // cost, solver(), WAYS[way](method()))


def gradients(block, x, cotangent, kind, half):
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=half):
        y = block(x)
    return torch.autograd.grad(y, [x, *block.parameters()], cotangent)


def error(field, x, cotangent, evaluations, solve, way):
    """‖g − g64‖ / ‖g64‖ of x and of all parameters together."""
    kind = x.device.type
    exact = make_block(copy.deepcopy(field).double(), evaluations, solve, "plain")
    x64 = x.detach().double().requires_grad_()
    truth = gradients(exact, x64, cotangent.double(), kind, half=False)
    block = make_block(copy.deepcopy(field), evaluations, solve, way)
    found = gradients(block, x, cotangent, kind, half=True)
    parts = [torch.cat([g.flatten().double() for g in grads[1:]]) for grads in (found, truth)]
    return {
        "error_x": float((found[0].double() - truth[0]).norm() / truth[0].norm()),
        "error_parameters": float((parts[0] - parts[1]).norm() / parts[1].norm()),
    }


def cost(block, x, cotangent, repeats):
    """Median milliseconds of forward and backward, and bytes at the peak and kept for good."""
    cuda = x.is_cuda
    if not cuda:
        start = time.perf_counter()
        gradients(block, x, cotangent, "cpu", half=True)
        return {"ms": 1e3 * (time.perf_counter() - start)}
    fresh = torch.randn_like(x).requires_grad_()  # an input is the caller's, now and below
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    reserved, begin = torch.cuda.memory_reserved(), time.perf_counter()
    gradients(block, x, cotangent, "cuda", half=True)
    torch.cuda.synchronize()
    first = time.perf_counter() - begin
    times = []
    for n in range(repeats + 3):
        fresh.data.normal_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        gradients(block, fresh, cotangent, "cuda", half=True)
        end.record()
        torch.cuda.synchronize()
        if n >= 3:
            times.append(start.elapsed_time(end))
    torch.cuda.empty_cache()
    kept = max(0, torch.cuda.memory_reserved() - reserved)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradients(block, fresh, cotangent, "cuda", half=True)
    torch.cuda.synchronize()
    passing = torch.cuda.max_memory_allocated() - before
    return {
        "ms": statistics.median(times),
        "first_call_s": first,
        "kept_gb": kept / 1e9,
        "pass_gb": passing / 1e9,
    }


def main() -> None:
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=128 if cuda else 2)
    parser.add_argument("--side", type=int, default=32 if cuda else 5)
    parser.add_argument("--width", type=int, default=256 if cuda else 16)
    parser.add_argument("--evaluations", type=int, nargs="+", default=[10, 100] if cuda else [4])
    parser.add_argument("--solves", nargs="+", choices=list(SOLVES), default=list(SOLVES))
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--constant-norms", action="store_true")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    device = torch.device("cuda" if cuda else "cpu")
    hardware = torch.cuda.get_device_name() if cuda else platform.processor() or "cpu"
    print(json.dumps({"hardware": hardware, "torch": torch.__version__, **vars(options)}))
    torch.manual_seed(0)
    module = bottleneck(options.width, options.width // 4, batch_norm)
    still = dict.fromkeys(["0", "3", "6"]) if options.constant_norms else None
    field = nanode.TimeVarying(module, nanode.Trigonometric(order=10), overrides=still).to(device)
    shape = (options.batch, options.width, options.side, options.side)
    layout = torch.channels_last
    x = torch.randn(shape, device=device).to(memory_format=layout).requires_grad_()
    cotangent = torch.randn(shape, device=device).to(memory_format=layout)
    few = slice(0, min(8, options.batch))
    for evaluations in options.evaluations:
        for solve in options.solves:
            for way in options.ways:
                row = {"evaluations": evaluations, "solve": solve, "way": way}
                small = x[few].detach().requires_grad_()
                row |= error(field, small, cotangent[few], min(evaluations, 10), solve, way)
                block = make_block(copy.deepcopy(field), evaluations, solve, way)
                row |= cost(block, x, cotangent, options.repeats)
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
