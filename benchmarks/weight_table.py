"""All weights of a solve at once against one time after another.

The bottleneck 256→64→64→256 with trigonometric weights of order 10, at 100 times: one product
per parameter (``trajectory.table``) against 100 calls of ``trajectory(t)``, in the same run.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn

import nanode
from nanode.solvers import Euler, Uniform
from nanode.training.environment import commit


def seconds(work, repeats: int, device: str) -> float:
    times = []
    for _ in range(repeats + 2):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    module = nn.Sequential(
        nn.Conv2d(256, 64, 1, bias=False),
        nn.Conv2d(64, 64, 3, padding=1, bias=False),
        nn.Conv2d(64, 256, 1, bias=False),
    )
    field = nanode.TimeVarying(module, nanode.Trigonometric(order=10)).to(options.device)
    stages = Uniform(options.times).grid(0.0, 1.0).stages(Euler())
    path = field.trajectory
    alphas = list(path.parameters())
    shapes = [(options.times, *shape) for shape in path.shapes.values()]
    grads = [torch.randn(shape, device=options.device) for shape in shapes]

    def at_once() -> list[torch.Tensor]:
        return list(path.table(stages).values())

    def one_by_one() -> list[torch.Tensor]:
        rows = [list(path(stage.time).values()) for stage in stages]
        return [row for column in zip(*rows, strict=True) for row in column]

    def differentiated(weights: list[torch.Tensor]) -> None:
        # The same cotangents for both, cut into rows for the rows.
        cut = grads if len(weights) == len(grads) else [g for grad in grads for g in grad]
        torch.autograd.grad(weights, alphas, cut)

    record = {"times": options.times, "device": options.device, "torch": torch.__version__}
    record["commit"] = commit()[0]
    with torch.no_grad():
        for name, work in (("table", at_once), ("one_by_one", one_by_one)):
            record[f"{name}_forward_ms"] = 1e3 * seconds(work, options.repeats, options.device)
    for name, work in (("table", at_once), ("one_by_one", one_by_one)):
        both = seconds(lambda work=work: differentiated(work()), options.repeats, options.device)
        record[f"{name}_with_backward_ms"] = 1e3 * both
    for part in ("forward", "with_backward"):
        record[f"ratio_{part}"] = record[f"one_by_one_{part}_ms"] / record[f"table_{part}_ms"]
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
