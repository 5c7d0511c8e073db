"""Products of reflections in compact WY form against one reflection after another.

Forward and backward of the orthogonal matrices of ``times`` sets of ``size`` vectors, in the same
run: ``nanode.Householder`` (its polishing step included), the reflections one by one, and
``torch.linalg.householder_product``, which takes vectors below the diagonal only.

    python benchmarks/householder.py --threads 1 > benchmarks/results/householder-cpu.json

``--precision`` measures ‖WᵀW − I‖ in place of time, in the Frobenius norm: the largest over seeds
for each form, at ``--size``, at twelve columns fewer and at half of them, for free numbers moved
from the start by 0.01 to 1,000 in the spectral norm (reflections up to 1e6), at random or all
columns (nearly) alike.
"""

import argparse
import itertools
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

import nanode
from nanode.training.environment import commit


def milliseconds(
    ways: Mapping[str, Callable[[], object]], repeats: int, device: str
) -> dict[str, float]:
    """Medians over repeats; the ways take turns, so that all meet the same machine."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats + 1):
        for name, work in ways.items():
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
            work()
            if device == "cuda":
                torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def one_by_one(vectors: Tensor) -> Tensor:
    """H(u₁)…H(u_k): each reflection is a product with a vector and a rank-one update."""
    units = vectors / torch.linalg.vector_norm(vectors, dim=-2, keepdim=True)
    w = torch.eye(vectors.shape[-2], dtype=vectors.dtype, device=vectors.device)
    w = w.expand(*vectors.shape[:-2], -1, -1)
    for u in units.unbind(-1):
        w = w - 2 * (w @ u[..., None]) * u[..., None, :]
    return w


def by_torch(vectors: Tensor) -> Tensor:
    """torch's own product, of the vectors below the diagonal."""
    k = vectors.shape[-1]
    eye = torch.eye(k, dtype=vectors.dtype, device=vectors.device)
    v = vectors.tril(-1) + eye
    return torch.linalg.householder_product(v, 2 / v.square().sum(-2))


def gap(w: Tensor) -> float:
    """‖WᵀW − I‖ in the Frobenius norm, found in double precision."""
    w = w.double()
    eye = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)
    return float(torch.linalg.matrix_norm(w.mT @ w - eye).max())


def precision(size: int, seeds: int, device: str, dtype: torch.dtype) -> dict[str, float]:
    """The largest gap by form, number of columns and length of the move."""
    found: dict[str, float] = {}
    forms = (nanode.Householder(), nanode.Exponential(), nanode.Cayley())
    for form, columns in itertools.product(forms, (size, size - 12, size // 2)):
        # Reflections know directions alone: at the last their vectors are (nearly) parallel.
        far = (1e6,) if isinstance(form, nanode.Householder) else ()
        for seed, spread in itertools.product(range(seeds), (0.0, 8e-4, 0.03, 1.0, math.inf)):
            draw = torch.Generator().manual_seed(seed)
            start = torch.randn(size, columns, generator=draw, dtype=torch.float64)
            same = torch.randn(size, 1, generator=draw, dtype=torch.float64)
            noise = torch.randn(size, columns, generator=draw, dtype=torch.float64)
            move = noise if spread == math.inf else same + spread * noise
            move = (move / torch.linalg.matrix_norm(move, 2)).to(device, dtype)
            free, fixed = (part.to(device, dtype) for part in form.right_inverse(start))
            for length in (0.01, 1, 10, 100, 1000, *far):
                name = f"{type(form).__name__}, {size} x {columns}, moved by {length:g}"
                found[name] = max(
                    found.get(name, 0.0), gap(form.matrix(free + length * move, fixed))
                )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--precision", action="store_true")
    parser.add_argument("--seeds", type=int, default=9, help="of --precision")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    record: dict[str, object] = {
        "size": options.size,
        "times": options.times,
        "dtype": options.dtype,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "commit": commit()[0],
    }
    if options.precision:
        found = precision(options.size, options.seeds, options.device, dtype)
        record |= {"seeds": options.seeds, "largest_gap": max(found.values()), "gaps": found}
        del record["times"]
        print(json.dumps(record, indent=1))
        return
    shape = (options.times, options.size, options.size)
    vectors = torch.randn(shape, device=options.device, dtype=dtype, requires_grad=True)
    upstream = torch.randn_like(vectors)
    signs = torch.ones(options.size, device=options.device, dtype=dtype)
    form = nanode.Householder()
    ways = {
        "blocked": lambda: form.matrix(vectors, signs),
        "one_by_one": lambda: one_by_one(vectors),
        "torch": lambda: by_torch(vectors),
    }
    both = {
        name: lambda way=way: torch.autograd.grad(way(), vectors, upstream)
        for name, way in ways.items()
    }
    with torch.no_grad():
        forward = milliseconds(ways, options.repeats, options.device)
    spent = milliseconds(both, options.repeats, options.device)
    for name in ways:
        record[f"{name}_forward_ms"] = forward[name]
        record[f"{name}_with_backward_ms"] = spent[name]
    fast, slow = form.matrix(vectors, signs), one_by_one(vectors)
    gradients = [torch.autograd.grad(w, vectors, upstream)[0] for w in (fast, slow)]
    record |= {
        "largest_difference": (fast - slow).abs().max().item(),
        "largest_relative_difference_of_gradients": (
            (gradients[0] - gradients[1]).abs().max() / gradients[1].abs().max()
        ).item(),
        "orthogonality_frobenius": gap(fast.detach()),
        "ratio_to_one_by_one": spent["one_by_one"] / spent["blocked"],
        "ratio_to_torch": spent["torch"] / spent["blocked"],
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
