"""How far each gradient method is from backpropagation, on a user's own block and input."""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from nanode.analysis.subject import as_block
from nanode.block import ODEBlock, augmented
from nanode.doubles import in_double
from nanode.gradients import Backprop, Backsolve, Checkpointed, Evaluations, Gradient, Reversal
from nanode.gradients.problem import Conditioning, Problem
from nanode.gradients.randomness import undrawn
from nanode.solvers.stepper import Carry, Invertible, State


@dataclass(frozen=True)
class Comparison:
    """One tensor's gradient beside backpropagation's."""

    method: str
    name: str
    #: ‖g − g_backprop‖ / ‖g_backprop‖
    error: float
    #: The cosine of the angle between the two.
    cosine: float


@dataclass(frozen=True)
class GradientCheck:
    """What ``check_gradients`` found; ``print`` it for a table."""

    rows: tuple[Comparison, ...]
    #: Methods that can't serve this block, and why.
    refused: dict[str, str]
    #: ‖x − x₀‖ / ‖x₀‖ after undoing the whole solve; None for steppers that can't.
    drift: float | None

    def worst(self, method: str) -> float:
        """The largest error of a method over all tensors."""
        errors = [row.error for row in self.rows if row.method == method]
        if not errors:
            raise ValueError(
                f"{method!r} was not compared: {self.refused.get(method, 'not among the methods')}"
            )
        return max(errors)

    def __str__(self) -> str:
        width = max((len(row.name) for row in self.rows), default=4)
        lines = [f"{'method':14} {'tensor':{width}} {'error':>9} {'cosine':>11}"]
        lines += [
            f"{row.method:14} {row.name:{width}} {row.error:9.1e} {row.cosine:11.8f}"
            for row in self.rows
        ]
        lines += [f"{name:14} {why.split(';')[0]}" for name, why in self.refused.items()]
        if self.drift is not None:
            lines.append(f"drift after undoing all steps: {self.drift:.1e}")
        return "\n".join(lines)


def check_gradients(
    block: ODEBlock,
    x: Any,
    *conditioning: Any,
    methods: Sequence[Gradient] | None = None,
) -> GradientCheck:
    """Compare gradient methods with backpropagation on one block and input.

    The loss is a fixed random linear function of the output, so every direction counts. Works on a
    copy: the block's gradients, statistics and the random state are left alone.

    >>> import nanode, torch
    >>> field = nanode.TimeVarying(torch.nn.Linear(3, 3), basis=nanode.Legendre(degree=2))
    >>> block = nanode.ODEBlock(field, steps=5, solver=nanode.Leapfrog())
    >>> report = nanode.check_gradients(block, torch.randn(2, 3))
    >>> report.worst("Reversal") < 1e-4, report.drift < 1e-5
    (True, True)
    """
    block = as_block("check_gradients", block)
    if block.steps is None:
        raise ValueError("check_gradients needs a block with a fixed-step solver")
    if methods is None:
        methods = (Checkpointed(), Reversal(), Backsolve())
    devices = [part.device for part in tree_flatten(x)[0] if isinstance(part, Tensor)]
    with torch.random.fork_rng(range(torch.cuda.device_count())), undrawn(devices):
        seed = torch.random.initial_seed()
        reference = _gradients(block, Backprop(), x, conditioning, seed)
        rows, refused = [], {}
        for method in methods:
            label = type(method).__name__
            try:
                found = _gradients(block, method, x, conditioning, seed)
            except ValueError as why:
                refused[label] = str(why)
                continue
            rows += [_compare(label, name, found[name], reference[name]) for name in reference]
        drift = reversal_drift(block, x, *conditioning)
    return GradientCheck(tuple(rows), refused, drift)


@torch.no_grad()
def reversal_drift(block: ODEBlock, x: Any, *conditioning: Any) -> float | None:
    """The relative error of x₀ after solving and undoing the solve; None if it can't be undone."""
    block = as_block("reversal_drift", block)
    block = copy.deepcopy(block)
    plan = block.plan()
    if plan is None or not isinstance(plan.stepper, Invertible):
        return None
    stepper = plan.stepper
    parts, structure = tree_flatten(augmented(x, block.augment, block.augment_axis))
    problem = Problem(plan, structure, Conditioning(conditioning), Evaluations())
    rows = plan.field.weights(plan.stages).rows(len(plan.stages))

    def f(i: int, at: State) -> State:
        return problem.evaluate(plan.stages, i, rows[i], at, conditioning)

    with undrawn(part.device for part in parts):
        carry: Carry = problem.march(f, problem.open(f, tuple(parts)), lambda k, reached: None)
        for k in reversed(range(plan.grid.steps)):
            carry = stepper.invert(problem.local(f, k), plan.widths[k], carry)
    difference = [in_double(a) - in_double(b) for a, b in zip(carry[0], parts, strict=True)]
    return _norm(difference) / max(_norm(parts), torch.finfo(torch.float64).tiny)


def _gradients(
    block: ODEBlock, method: Gradient, x: Any, conditioning: tuple[Any, ...], seed: int
) -> dict[str, Tensor]:
    """Gradients of a random linear function of the output, in x, conditioning and parameters."""
    twin = copy.deepcopy(block)
    twin.gradient = method
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how wrong it is, is what is being measured
        twin.regrid(block.steps)  # refuses what the method can't serve
    torch.manual_seed(seed)
    x, conditioning = tree_map(_leaf, (x, conditioning))
    result = tree_flatten(twin(x, *conditioning))[0]
    generator = torch.Generator().manual_seed(0)
    loss = sum(
        (part * torch.randn(part.shape, generator=generator, device="cpu").to(part)).sum().real
        for part in result
    )
    named = {name: p for name, p in twin.named_parameters() if p.requires_grad}
    for label, values in (("x", x), ("conditioning", conditioning)):
        leaves = [part for part in tree_flatten(values)[0] if _differentiable(part)]
        named |= {f"{label}{n or ''}": part for n, part in enumerate(leaves)}
    grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(tensor) if grad is None else grad
        for (name, tensor), grad in zip(named.items(), grads, strict=True)
    }


def _differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _leaf(value: Any) -> Any:
    """A tensor that can have a gradient as a leaf of its own; anything else as it is."""
    return value.detach().clone().requires_grad_() if _differentiable(value) else value


def _compare(method: str, name: str, found: Tensor, expected: Tensor) -> Comparison:
    a, b = (_numbers(part) for part in (found, expected))
    scale = max(float(b.norm()), torch.finfo(torch.float64).tiny)
    cosine = float(torch.nn.functional.cosine_similarity(a, b, dim=0))
    return Comparison(method, name, float((a - b).norm()) / scale, cosine)


def _norm(parts: Sequence[Tensor]) -> float:
    return float(torch.cat([_numbers(part) for part in parts]).norm())


def _numbers(part: Tensor) -> Tensor:
    """A part's real numbers in a row."""
    wide = in_double(part.to_dense())
    return (torch.view_as_real(wide) if wide.is_complex() else wide).flatten()
