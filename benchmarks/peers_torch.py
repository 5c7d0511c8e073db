"""The PyTorch peers, each called as its own documentation says.

Every function takes the field and K and returns the solve x0 ↦ x(1). All run eagerly but those that
say otherwise.
"""

from collections.abc import Callable
from functools import partial

import torch
from block import Field, euler, times_of
from torch import Tensor, nn

Solve = Callable[[Tensor], Tensor]


def torch_loop(field: Field, steps: int) -> Solve:
    """The reference's Euler loop in the measured dtype, every activation stored by autograd."""
    return lambda x: euler(field, x, times_of(steps, x))


def torch_loop_compiled(field: Field, steps: int) -> Solve:
    """The same loop with f compiled, once for all steps."""
    compiled = _compiled(field)
    return lambda x: euler(compiled, x, times_of(steps, x))


def torch_loop_captured(field: Field, steps: int) -> Solve:
    """The compiled loop as two CUDA graphs, one a pass: the host launches no step by itself."""
    graphs: list[Callable[[Tensor], Tensor]] = []
    evaluations = 0

    class Loop(nn.Module):
        """As a module, so that graphs are captured with its parameters."""

        def __init__(self, times: Tensor):
            super().__init__()
            self.field, self.compiled = field, _compiled(field)
            self.register_buffer("times", times)

        def forward(self, x: Tensor) -> Tensor:
            nonlocal evaluations
            before = field.evaluations
            y = euler(self.compiled, x, self.times)
            evaluations = field.evaluations - before
            return y

    def solve(x: Tensor) -> Tensor:
        if x.device.type != "cuda":
            raise ValueError("CUDA graphs need a CUDA device")
        if not graphs:
            loop, sample = Loop(times_of(steps, x)), torch.randn_like(x).requires_grad_()
            graphs.append(torch.cuda.make_graphed_callables(loop, (sample,)))
        y = graphs[0](x)
        field.evaluations = evaluations  # of the captured pass: a replay calls nothing
        return y

    return solve


def _compiled(field: Field) -> Callable[[Tensor, Tensor], Tensor]:
    """f compiled, and counted outside of what is compiled."""
    value = torch.compile(field.value, fullgraph=True)

    def counted(t: Tensor, x: Tensor) -> Tensor:
        field.evaluations += 1
        return value(t, x)

    return counted


def _interval(x: Tensor) -> Tensor:
    return torch.tensor([0.0, 1.0], dtype=x.dtype, device=x.device)


def torchdiffeq_odeint(field: Field, steps: int) -> Solve:
    from torchdiffeq import odeint

    options = {"step_size": 1 / steps}
    return lambda x: odeint(field, x, _interval(x), method="euler", options=options)[-1]


def torchdiffeq_adjoint(field: Field, steps: int) -> Solve:
    """The interval's ends only: with K + 1 output times it would store every state."""
    from torchdiffeq import odeint_adjoint

    options = {"step_size": 1 / steps}
    parameters = tuple(field.parameters())
    return lambda x: odeint_adjoint(
        field, x, _interval(x), method="euler", options=options, adjoint_params=parameters
    )[-1]


class FlatField(nn.Module):
    """torchode's view: states ``(batch, features)`` and one time per sample, all equal here."""

    def __init__(self, field: Field):
        super().__init__()
        self.field = field

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        x = y.view(self.field.case.state_shape)
        return self.field(t[0].to(y.dtype), x).flatten(1)


def _torchode(field: Field, steps: int, joint: bool) -> Solve:
    import torchode

    term = torchode.ODETerm(FlatField(field), with_stats=False)
    method = torchode.Euler(term)
    controller = torchode.FixedStepController()
    if joint:
        solver = torchode.JointBacksolveAdjoint(term, method, controller)
    else:
        solver = torchode.AutoDiffAdjoint(method, controller)

    def solve(x: Tensor) -> Tensor:
        # torchode sums dt and takes one more, minute step where K·dt rounds below 1. A dt a few
        # roundings too long, clamped at the end, gives K. Its times may be float64 beside a float32
        # state, except in the joint backsolve, which multiplies the two.
        dtype = x.dtype if joint else torch.float64
        dt = (1 + steps * torch.finfo(dtype).eps) / steps
        start = torch.zeros(len(x), dtype=dtype, device=x.device)
        problem = torchode.InitialValueProblem(x.flatten(1), start, start + 1)
        dt0 = torch.full_like(start[:1] if joint else start, dt)
        return solver.solve(problem, dt0=dt0).ys[:, -1].view_as(x)

    return solve


def _torchdyn(field: Field, steps: int, sensitivity: str) -> Solve:
    from torchdyn.core import ODEProblem

    problem = ODEProblem(field, solver="euler", sensitivity=sensitivity)
    return lambda x: problem(x, torch.linspace(0, 1, steps + 1, dtype=x.dtype, device=x.device))[1][
        -1
    ]


SYSTEMS: dict[str, Callable[[Field, int], Solve]] = {
    "torch-loop": torch_loop,
    "torch-loop-compiled": torch_loop_compiled,
    "torch-loop-captured": torch_loop_captured,
    "torchdiffeq-odeint": torchdiffeq_odeint,
    "torchdiffeq-adjoint": torchdiffeq_adjoint,
    "torchode-autodiff": partial(_torchode, joint=False),
    # The joint form: the other one carries a copy of all coefficients' adjoints per sample.
    "torchode-backsolve": partial(_torchode, joint=True),
    "torchdyn-autograd": partial(_torchdyn, sensitivity="autograd"),
    "torchdyn-adjoint": partial(_torchdyn, sensitivity="adjoint"),
}
