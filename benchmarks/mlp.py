"""A small field on a CPU, where overhead rules: nanode, a plain loop and torchdiffeq.

    dx/dt = W2(t) tanh(W1(t) x + b1(t)) + b2(t), 64 wide, batch 32, 100 Euler steps,

weights trigonometric of order 10. Forward and backward; one JSON line per system, medians. Times
are compared within one run only: rounds go through all systems in turn. The reversal takes 50
steps of coupled Euler, with two evaluations each; its difference is the two methods'.
"""

import argparse
import json
import statistics
import time
import warnings

import torch
from torch import nn
from torchdiffeq import odeint, odeint_adjoint

import nanode


def module(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))


class Peer(nn.Module):
    """The field as a user of a general solver writes it: weights at t inside f."""

    def __init__(self, field: nanode.TimeVarying, order: int) -> None:
        super().__init__()
        coefficients = dict(field.trajectory.coefficients.named_parameters())
        self.alpha = nn.ParameterList(p.detach().clone() for p in coefficients.values())
        self.register_buffer("n", torch.arange(1.0, order + 1))
        self.register_buffer("one", torch.ones(1))

    def forward(self, t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        z = torch.cat([self.one, (self.n * t).cos(), (self.n * t).sin()])
        w1, b1, w2, b2 = (z @ a for a in self.alpha)
        width = x.shape[1]
        h = torch.tanh(nn.functional.linear(x, w1.view(width, width), b1))
        return nn.functional.linear(h, w2.view(width, width), b2)


def solves(options: argparse.Namespace) -> dict:
    """Each system's forward pass and its parameters, all from the same coefficients."""
    basis = nanode.Trigonometric(order=options.order)
    torch.manual_seed(0)
    field = nanode.TimeVarying(module(options.width), basis, start=nanode.Noisy(0.1))
    found = {}
    for name, gradient in (("backprop", nanode.Backprop), ("checkpointed", nanode.Checkpointed)):
        for compile in (False, True):
            torch.manual_seed(0)
            own = nanode.TimeVarying(module(options.width), basis, start=nanode.Noisy(0.1))
            block = nanode.ODEBlock(own, options.steps, gradient=gradient(), compile=compile)
            found[f"nanode-{name}" + "-compiled" * compile] = (block, list(block.parameters()))
    torch.manual_seed(0)
    own = nanode.TimeVarying(module(options.width), basis, start=nanode.Noisy(0.1))
    coupled, reversal = nanode.Coupled(nanode.Euler()), nanode.Reversal()
    block = nanode.ODEBlock(own, options.steps // 2, coupled, reversal)
    found["nanode-reversal"] = (block, list(block.parameters()))
    times = torch.linspace(0, 1, options.steps + 1)
    plain = Peer(field, options.order)

    def loop(x: torch.Tensor) -> torch.Tensor:
        for t in times[:-1]:
            x = x + plain(t, x) / options.steps
        return x

    found["plain-loop"] = (loop, list(plain.parameters()))
    for name, solver in (("odeint", odeint), ("adjoint", odeint_adjoint)):
        peer = Peer(field, options.order)

        def forward(x: torch.Tensor, peer: Peer = peer, solver=solver) -> torch.Tensor:
            return solver(peer, x, times, method="euler")[-1]

        found[f"torchdiffeq-{name}"] = (forward, list(peer.parameters()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--order", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    systems = solves(options)
    cotangent = torch.randn(options.batch, options.width)
    times: dict[str, list[float]] = {name: [] for name in systems}
    first, results = {}, {}
    for n in range(options.repeats + 3):
        x = torch.randn(options.batch, options.width, requires_grad=True)
        for name, (forward, parameters) in systems.items():
            start = time.perf_counter()
            y = forward(x)
            grads = torch.autograd.grad(y, [x, *parameters], cotangent)
            seconds = time.perf_counter() - start
            first.setdefault(name, seconds)
            if n >= 3:
                times[name].append(seconds)
            results[name] = torch.cat([g.flatten() for g in grads])
    exact = results["torchdiffeq-odeint"]
    adjoint = statistics.median(times["torchdiffeq-adjoint"])
    print(
        json.dumps(
            {"torch": torch.__version__, "threads": torch.get_num_threads(), **vars(options)}
        )
    )
    for name, seconds in times.items():
        middle = statistics.median(seconds)
        row = {
            "system": name,
            "ms": 1e3 * middle,
            "first_s": first[name],
            "times_adjoint": adjoint / middle,
            "difference": float((results[name] - exact).norm() / exact.norm()),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
