"""All weights of a solve at once against one time after another.

The bottleneck 256→64→64→256 with trigonometric weights of order 10, at 100 times: one product
per parameter (``trajectory.table``) against 100 calls of ``trajectory(t)``, in the same run.
"""

import argparse
import json

import torch
from householder import milliseconds
from torch import nn

import nanode
from nanode.solvers import Euler, Uniform
from nanode.training.environment import commit


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
    ways = {"table": at_once, "one_by_one": one_by_one}
    both = {name: lambda way=way: differentiated(way()) for name, way in ways.items()}
    with torch.no_grad():
        spent = {"forward": milliseconds(ways, options.repeats, options.device)}
    spent["with_backward"] = milliseconds(both, options.repeats, options.device)
    for part, found in spent.items():
        record |= {f"{name}_{part}_ms": time for name, time in found.items()}
        record[f"ratio_{part}"] = found["one_by_one"] / found["table"]
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
