"""nanode's gradient methods on the shared problem.

``Reversal`` needs an invertible stepper, so its row solves ``Coupled(Euler)`` with K/2 steps of two
evaluations: the same K evaluations, another discretisation. Its gradient is therefore compared with
its own solve in float64 under ``Backprop``.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from block import Bottleneck
from measure_torch import TorchSolve
from problem import COEFFICIENTS, ORDER, Case

import nanode
from nanode.models.layers import bottleneck

#: The parameters of the shared problem by their place among a bottleneck's layers.
PLACES = {"norm1": "0", "conv1": "2", "norm2": "3", "conv2": "5", "norm3": "6", "conv3": "8"}
GRADIENTS = {
    "nanode-backprop": "Backprop",
    "nanode-checkpointed": "Checkpointed",
    "nanode-backsolve": "Backsolve",
    "nanode-coupled-reversal": "Reversal",
}
GRADIENTS |= {
    f"{name}-compiled": gradient for name, gradient in GRADIENTS.items() if gradient != "Backsolve"
}


def coupled(system: str) -> bool:
    return GRADIENTS[system] == "Reversal"


def build(
    system: str,
    case: Case,
    arrays: Mapping[str, np.ndarray],
    steps: int,
    device: torch.device,
    gradient: str | None = None,
) -> TorchSolve:
    """The block of ``system``; ``gradient`` replaces its gradient method, not its solver."""
    if coupled(system) and steps % 2:
        raise ValueError(f"a coupled step takes two evaluations: K = {steps} must be even")
    basis = nanode.Trigonometric(order=ORDER)
    layered = case.norm == "batch"
    if layered:
        # As a user has it: layers under autocast. They keep running statistics; peers keep none.
        module = bottleneck(case.width, case.hidden, nanode.BatchNorm)
        field = nanode.TimeVarying(module, basis, overrides=dict.fromkeys(["0", "3", "6"]))
    else:
        field = nanode.TimeVarying(Bottleneck(case), basis, overrides={"*norm*": None})
    block = nanode.ODEBlock(
        field,
        steps=steps // 2 if coupled(system) else steps,
        solver=nanode.Coupled(nanode.Euler()) if coupled(system) else nanode.Euler(),
        gradient=getattr(nanode, gradient or GRADIENTS[system])(),
        compile=system.endswith("-compiled") and gradient is None,
    ).to(device, getattr(torch, case.state_dtype))

    moving = dict(field.trajectory.coefficients.named_parameters())
    constant = dict(field.module.named_parameters())

    def place(name: str) -> str:
        layer, _, parameter = name.partition(".")
        return f"{PLACES[layer]}.{parameter}" if layered else name

    leaves = {name: moving[place(name)] for name in case.moving}
    leaves |= {name: constant[place(name)] for name in case.constant}
    _check_order(basis)
    with torch.no_grad():
        for name, leaf in leaves.items():
            leaf.copy_(torch.from_numpy(arrays[name]))

    def forward(x: torch.Tensor) -> torch.Tensor:
        half = layered and case.dtype == "bfloat16"
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            return block(x)

    return TorchSolve(forward, leaves, lambda: block.nfe.forward)


def _check_order(basis: Any) -> None:
    """The shared coefficients are stored as 1, cos t … cos 10t, sin t … sin 10t."""
    t = torch.linspace(0, 1, COEFFICIENTS, dtype=torch.float64)
    angles = t[:, None] * torch.arange(1, ORDER + 1)
    expected = torch.cat([torch.ones_like(t)[:, None], angles.cos(), angles.sin()], dim=1)
    given = basis(t).to(expected)
    if not torch.allclose(given, expected, atol=1e-6):
        raise ValueError("nanode.Trigonometric orders its functions otherwise than this benchmark")


def own_reference(
    system: str, case: Case, arrays: Mapping[str, np.ndarray], steps: int, device: torch.device
) -> tuple[dict[str, np.ndarray], str]:
    """Float64 gradients of the system's own discretisation, and how they were computed."""
    exact = case.with_options("float64", case.norm)
    x0, cotangent = (
        torch.from_numpy(arrays[n]).to(device, torch.float64) for n in ("x0", "cotangent")
    )
    x0.requires_grad_()
    # Backprop stores every activation in float64; the largest case doesn't fit with K = 100.
    for gradient in ("Backprop", "Checkpointed"):
        solve = build(system, exact, arrays, steps, device, gradient)
        try:
            leaves = {"x0": x0, **solve.leaves}
            grads = torch.autograd.grad(solve.forward(x0), list(leaves.values()), cotangent)
        except torch.OutOfMemoryError:
            continue
        exact_gradients = {n: g.cpu().numpy() for n, g in zip(leaves, grads, strict=True)}
        return exact_gradients, f"own float64 {gradient}"
    raise MemoryError("no float64 reference of this discretisation fits into memory")
