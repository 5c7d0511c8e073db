"""Adaptive solves and their gradients, which torchdiffeq computes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from nanode.fields import BatchNorm, Field
from nanode.fields.swap import uncached, with_parameters
from nanode.gradients.backprop import Backprop
from nanode.gradients.backsolve import DREW, Backsolve
from nanode.gradients.compiled import Compiled
from nanode.gradients.gradient import Gradient
from nanode.gradients.once import (
    refuse_batched,
    refuse_second,
    refuse_tangents,
    refuse_transforms,
)
from nanode.gradients.precision import as_cast, autocast_of
from nanode.gradients.problem import (
    Conditioning,
    Evaluations,
    check_scale,
    checked_state,
    evaluate_checked,
    own_parameters,
)
from nanode.gradients.randomness import equal_states, random_state
from nanode.gradients.recompute import refuse_changed, refuse_hidden, without_hidden
from nanode.gradients.repeats import looked_at
from nanode.gradients.snapshot import Snapshot, buffers, copies, moved, rewritten
from nanode.solvers import Adaptive
from nanode.solvers.stepper import State
from nanode.stages import Side, Stage
from nanode.tracing import traced, written_out
from nanode.trajectories.trajectory import Named

#: What has all derivatives.
INSTEAD = "a fixed-step solver such as nanode.RK4() with gradient=nanode.Backprop()"


def solve_adaptively(
    field: Field,
    x: Any,
    interval: tuple[float, float],
    at: Sequence[float] | Tensor | None,
    solver: Adaptive,
    gradient: Gradient,
    conditioning: tuple[Any, ...],
    scale: float,
    check_finite: bool,
) -> tuple[Any, Evaluations]:
    """Delegate to torchdiffeq; the result in x's structure, and the count of evaluations."""
    if traced() and not written_out():
        # How many steps there are depends on values, which no graph holds.
        alone: Callable[..., tuple[Any, Evaluations]] = torch.compiler.disable(solve_adaptively)
        return alone(field, x, interval, at, solver, gradient, conditioning, scale, check_finite)
    check_adaptive(field, gradient, scale)
    parts, structure = tree_flatten(x)
    state = checked_state(parts, field.modules())
    times, skipped = _with_start(interval, at, state[0])
    given = tree_flatten(conditioning)[0]
    tensors = [t for t in (*state, times, *given, *field.parameters()) if isinstance(t, Tensor)]
    refuse_transforms("Adaptive", INSTEAD)
    refuse_tangents(tensors, "Adaptive", INSTEAD)
    evaluations = Evaluations()
    dtypes = tuple(part.dtype for part in state)
    call = _Call(field, structure, dtypes, conditioning, scale, check_finite)
    if not any(part.numel() for part in state):
        # An empty batch: there is no error to choose steps by. Parameters get gradients of zero.
        slopes = call(times[0], "right", state)
        ends = (part + 0 * slope for part, slope in zip(state, slopes, strict=True))
        columns = [end.expand(len(times), *end.shape) for end in ends]
    elif not isinstance(gradient, Backsolve):

        def f(t: Tensor, side: Side, at: State) -> State:
            evaluations.forward += 1
            return call(t, side, at)

        columns = solver.solve(f, state, times, field.breakpoints, None)
    else:
        columns = _backsolved(call, state, times, solver, gradient, evaluations)
    wanted = [c[-1] if at is None else c[skipped:] for c in _in_own(columns, dtypes)]
    return tree_unflatten(wanted, structure), evaluations


@dataclass(frozen=True)
class _Call:
    """f for torchdiffeq, in the parts that a state consists of."""

    field: Field
    structure: TreeSpec
    #: Of the parts; torchdiffeq has all of them in one tensor, of a dtype that holds them all.
    dtypes: tuple[torch.dtype, ...]
    conditioning: tuple[Any, ...]
    scale: float
    check_finite: bool

    def __call__(self, t: Tensor, side: Side, x: State) -> State:
        x = _in_own(x, self.dtypes)
        return self._of(self.field.weights_at(t, side), self.conditioning, t, side, x)

    def detached(self, t: Tensor, side: Side, x: State, gradient: Gradient) -> State:
        """The same for a forward pass without gradients; raises if f hides a tensor.

        With everything that f is given detached, a result that requires grad comes from x, if f
        takes derivatives, or from a tensor that the adjoint doesn't know of.
        """
        values = Conditioning(self.conditioning)
        given = values.rebuilt([c.detach() for c in values.tensors])
        t, x = t.detach(), _in_own([part.detach() for part in x], self.dtypes)
        weights = {name: w.detach() for name, w in self.field.weights_at(t, side).items()}
        with torch.enable_grad():
            slopes = self._of(weights, given, t, side, x)
        return without_hidden(slopes, x, gradient)

    def _of(
        self, weights: Named, conditioning: tuple[Any, ...], t: Tensor, side: Side, x: State
    ) -> State:
        stage = Stage.alone(t, side)
        slopes = evaluate_checked(self.field, self.structure, weights, stage, x, conditioning)
        if self.check_finite and not all(bool(torch.isfinite(s).all()) for s in slopes):
            raise ValueError(f"the field's value is not finite at t = {float(t):.6g}")
        return tuple(self.scale * slope for slope in slopes)


def _in_own(parts: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> State:
    """Parts in the dtypes that they had before they were put together."""
    return tuple(
        (part if dtype.is_complex else part.real).to(dtype)
        for part, dtype in zip(parts, dtypes, strict=True)
    )


def _backsolved(
    call: _Call,
    state: State,
    times: Tensor,
    solver: Adaptive,
    gradient: Gradient,
    evaluations: Evaluations,
) -> list[Tensor]:
    """By torchdiffeq's adjoint, with the guards that a repeated evaluation needs."""
    device = state[0].device
    autocast = autocast_of(device)
    before, fixed = random_state(device), buffers(call.field)
    looks = torch.is_grad_enabled() and looked_at(call.field, state)
    values = copies(fixed) if looks else {}
    own = own_parameters(call.field)
    extra = Conditioning(call.conditioning)
    # As views, so that hooks on parameters see whole gradients only; lent to every evaluation,
    # since functional_call may have put others in their place for the forward pass alone.
    given = [*(p.view_as(p) for p in own.values()), *extra.tensors]
    if torch.is_grad_enabled():
        _refuse_hidden_weights(call.field, own, times, gradient)
    # torchdiffeq's adjoint puts states and gradients into one tensor, and does not tell real from
    # complex ones there. Where there are both, the solve is made of real ones.
    trained = (part for part in given if part.requires_grad)
    reals = len({part.is_complex() for part in (*state, *trained)}) > 1
    plain, whole = (_as_real, _as_given) if reals else (_as_they_are, _as_they_are)
    adjoint = plain(given)
    lent = whole(adjoint, given)
    named = dict(zip(own, lent, strict=False))
    call = replace(call, conditioning=extra.rebuilt(lent[len(own) :]))

    def f(t: Tensor, side: Side, at: State) -> State:
        at = whole(at, state)
        if not torch.is_grad_enabled():  # torchdiffeq's forward pass
            evaluations.forward += 1
            with uncached(call.field):
                return plain(call.detached(t, side, at, gradient))
        evaluations.backward += 1
        with as_cast(autocast, device), uncached(call.field):
            return plain(with_parameters(call.field, named, call, t, side, at))

    adjoint = tuple(p for p in adjoint if p.requires_grad)
    if times.requires_grad:
        columns = _from_moving_start(
            f, plain(state), times, solver, call.field.breakpoints, adjoint
        )
    else:
        columns = solver.solve(f, plain(state), times, call.field.breakpoints, adjoint)
    columns = list(whole(columns, state))
    if not any(column.requires_grad for column in columns):
        return columns
    if not equal_states(before, random_state(device)):
        raise ValueError(DREW)
    changed = moved(fixed, buffers(call.field)) or rewritten(fixed, values)
    refuse_changed(changed, gradient)
    still = [tensor for tensor in (*own.values(), *extra.tensors) if not tensor.requires_grad]
    return list(_Guarded.apply(Snapshot(call.field), still, *columns))


def _as_they_are(parts: Sequence[Tensor], like: Sequence[Tensor] = ()) -> State:
    return tuple(parts)


def _as_real(parts: Sequence[Tensor]) -> State:
    """Complex parts as pairs of real numbers."""
    # Not view_as_real: its gradient is a view as well, and torchdiffeq hands slices of one vector
    # back, at odd places where that isn't possible.
    return tuple(
        torch.stack([part.real, part.imag], dim=-1) if part.is_complex() else part for part in parts
    )


def _as_given(parts: Sequence[Tensor], like: Sequence[Tensor]) -> State:
    """Pairs of real numbers as the complex ones that they were made of."""
    return tuple(
        torch.complex(*part.unbind(-1)) if one.is_complex() else part
        for part, one in zip(parts, like, strict=True)
    )


def _refuse_hidden_weights(field: Field, own: Named, times: Tensor, gradient: Gradient) -> None:
    """Raise if weights are made of what the adjoint doesn't know of."""
    leaves = {name: p.detach().requires_grad_(p.requires_grad) for name, p in own.items()}

    def make() -> list[Tensor]:
        t = times[0].detach().clone()  # which weights may be differentiated in
        return [*with_parameters(field, leaves, field.weights_at, t).values()]

    with torch.enable_grad(), uncached(field):
        refuse_hidden(make, make(), leaves.values(), gradient)


def _from_moving_start(
    f: Callable[[Tensor, Side, State], State],
    x: State,
    times: Tensor,
    solver: Adaptive,
    breakpoints: tuple[float, ...],
    adjoint: tuple[Tensor, ...],
) -> list[Tensor]:
    r"""States at times that gradients are wanted in, the first of which is where x is.

    Starting later by :math:`\delta` is starting at the old time from :math:`x - \delta f(t_0, x)`,
    and ending later adds :math:`\delta f(t_1, x(t_1))`, both by f from inside the solve.
    torchdiffeq would leave jumps out, and does not conjugate.
    """
    later = times - times.detach()  # zeros
    sides: tuple[Side, Side] = ("right", "left") if times[0] < times[-1] else ("left", "right")

    def moved(k: int, state: State, sign: int) -> State:
        with torch.no_grad():
            slopes = f(times[k], sides[k > 0], state)
        return tuple(
            part + sign * later[k] * slope for part, slope in zip(state, slopes, strict=True)
        )

    columns = solver.solve(f, moved(0, x, -1), times.detach(), breakpoints, adjoint)
    # The first state is x itself, whatever the time.
    rows = [x, *(moved(k, tuple(c[k] for c in columns), 1) for k in range(1, len(times)))]
    return [torch.stack(column) for column in zip(*rows, strict=True)]


class _Guarded(torch.autograd.Function):
    """The identity; where its backward pass comes by, torchdiffeq's is about to begin."""

    @staticmethod
    def forward(
        ctx: Any, snapshot: Snapshot, still: list[Tensor], *columns: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.snapshot = snapshot
        ctx.save_for_backward(*still)  # torchdiffeq's adjoint saves those that require grad only
        return tuple(column.view_as(column) for column in columns)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        for grad in grads:
            refuse_batched(grad)
        ctx.snapshot.check()
        _ = ctx.saved_tensors  # raises if one was changed
        refuse_second("Backsolve")
        return (None, None, *grads)


def check_adaptive(field: Field, gradient: Gradient, scale: float) -> None:
    """Raise where torchdiffeq can't serve."""
    if isinstance(gradient, Compiled):
        raise ValueError("compile=True needs a fixed grid; with Adaptive leave it out")
    if not isinstance(gradient, Backprop | Backsolve):
        raise ValueError(
            f"{type(gradient).__name__} needs a fixed grid; with Adaptive use nanode.Backprop() or "
            "nanode.Backsolve()"
        )
    if any(isinstance(part, BatchNorm) for part in field.modules()):
        raise ValueError(
            "BatchNorm keeps statistics per evaluation of a fixed grid, which an adaptive solver "
            "doesn't have; use GroupNorm or a fixed-step solver"
        )
    check_scale(scale)


def _with_start(
    interval: tuple[float, float], at: Sequence[float] | Tensor | None, like: Tensor
) -> tuple[Tensor, int]:
    """The times for torchdiffeq, which takes x at the first, and how many of them to leave out."""
    dtype = torch.float64 if like.dtype in (torch.float64, torch.complex128) else torch.float32
    ends = torch.tensor(interval, dtype=dtype, device=like.device)
    if at is None:
        return ends, 0
    times = torch.as_tensor(at, dtype=dtype, device=like.device)
    skipped = int(bool(times[0] != ends[0]))
    times = torch.cat([ends[:skipped], times])
    along = (times.detach() - ends[0]) / (ends[1] - ends[0])
    if bool((along.diff() <= 0).any()) or not 0 <= float(along[-1]) <= 1 + 1e-6:
        raise ValueError(
            f"the wanted times must lie in the solve from {interval[0]} to {interval[1]} and "
            f"follow its direction, got {times.tolist()[skipped:]}"
        )
    return times, skipped
