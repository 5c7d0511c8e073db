"""Products of reflections in compact WY form against one reflection after another.

Forward and backward of the orthogonal matrices of ``times`` sets of ``size`` vectors, in the same
run: ``nanode.Householder`` (its polishing step included), the reflections one by one, and
``torch.linalg.householder_product``, which takes vectors below the diagonal only.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

import nanode


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    options = parser.parse_args()
    torch.manual_seed(0)
    dtype = getattr(torch, options.dtype)
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
    record: dict[str, object] = {
        "size": options.size,
        "times": options.times,
        "dtype": options.dtype,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "torch": torch.__version__,
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
    eye = torch.eye(options.size, dtype=torch.float64, device=options.device)
    exact = fast.detach().double()
    gap = torch.linalg.matrix_norm(exact.mT @ exact - eye)
    record |= {
        "largest_difference": (fast - slow).abs().max().item(),
        "largest_relative_difference_of_gradients": (
            (gradients[0] - gradients[1]).abs().max() / gradients[1].abs().max()
        ).item(),
        "orthogonality_frobenius": gap.max().item(),
        "ratio_to_one_by_one": spent["one_by_one"] / spent["blocked"],
        "ratio_to_torch": spent["torch"] / spent["blocked"],
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
