"""What the recomputing gradient methods share.

A solve is one autograd node. Its inputs are x, the conditioning and the field's parameters; the
table of weights is built inside, from the parameters, once in each direction (or by chunks), so it
is never held from one to the other. In the backward pass each stage's weights are leaves, whose
gradients are written into a table of the same shape; a full table is contracted back to the
parameters at once. States and adjoints of the size of the coefficients never exist.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nanode.fields.field import Weights
from nanode.fields.swap import alone, uncached, with_parameters
from nanode.gradients.backprop import Backprop
from nanode.gradients.gradient import Gradient
from nanode.gradients.ledger import ForwardRows, Ledger
from nanode.gradients.once import once, refuse_transforms, transformed
from nanode.gradients.precision import as_cast, autocast_of
from nanode.gradients.problem import Plan, Problem, own_parameters
from nanode.gradients.pullback import ends_of
from nanode.gradients.randomness import as_drawn, equal_states, random_state
from nanode.gradients.repeats import Tensors, differ, looked_at, warn
from nanode.gradients.snapshot import Snapshot, buffers, copies, moved, rewritten
from nanode.solvers.stepper import Carry, State
from nanode.stages import Stages
from nanode.tracing import traced, untraceable, written_out
from nanode.trajectories.trajectory import Named, version
from nanode.values import checked_count


@dataclass(frozen=True)
class Recomputing(Gradient):
    """A gradient method that evaluates the field again in the backward pass.

    ``chunk`` builds the table of weights for that many stages at a time; by default all are built
    at once. What a backward pass differentiates together it holds together: ``Checkpointed`` all
    rows of a segment, the others those of a step.
    """

    chunk: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.chunk is not None:
            checked_count("chunk", self.chunk, least=1)

    def solve(self, problem: Problem, x: State) -> list[State]:
        """The states at the wanted grid points."""
        looked_into = traced() or transformed()
        if written_out() or (looked_into and not torch.is_grad_enabled()):
            return Backprop().solve(problem, x)  # a plain loop, which they can look into
        if not traced():
            return self._recorded(problem, x)
        recorded: list[State] = torch.compiler.disable(self._recorded)(problem, x)
        return recorded

    def _recorded(self, problem: Problem, x: State) -> list[State]:
        """The solve as one autograd node, which no tracer can look into."""
        refuse_transforms(type(self).__name__)
        plan = problem.plan
        # Frozen ones too: they must be found unchanged, or lent again, in the backward pass.
        parameters = own_parameters(plan.field)
        inputs = (*x, *problem.conditioning.tensors, *parameters.values())
        job = Job(self, problem, len(x), list(parameters))
        job.repeats = torch.is_grad_enabled() and any(part.requires_grad for part in inputs)
        job.compares = job.repeats and problem.evaluator is None and looked_at(plan.field, x)
        before = buffers(plan.field)
        values = copies(before) if job.compares else {}
        flat = _Solve.apply(job, *inputs)
        if any(part.requires_grad for part in flat):
            refuse_changed(moved(before, buffers(plan.field)) or rewritten(before, values), self)
        # The node must not keep the caller's tensors alive by a side door.
        problem.conditioning = problem.conditioning.forget()
        points = [k for k in plan.wanted if k > 0]
        states = {k: flat[n * len(x) : (n + 1) * len(x)] for n, k in enumerate(points)} | {0: x}
        return [states[k] for k in plan.wanted]

    @abstractmethod
    def forward(self, job: "Job", x: State) -> tuple[dict[int, State], list[State]]:
        """The wanted states, and what to keep for the backward pass."""

    @abstractmethod
    def backward(
        self, job: "Job", ledger: "Ledger", kept: list[State], grads: dict[int, State]
    ) -> State:
        """The gradient in x, given those in the wanted states; the others go to the ledger."""


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: "Job", *inputs: Tensor) -> tuple[Tensor, ...]:
        n, m = job.state_size, job.conditioning_size
        x, conditioning = inputs[:n], inputs[n : n + m]
        before = [*map(version, conditioning)]
        job.open(x, conditioning)
        try:
            wanted, kept = job.method.forward(job, tuple(part.detach() for part in x))
        except BaseException:
            del job.rows  # which names the job: tables would live until a garbage collection
            raise
        job.close()
        if [*map(version, conditioning)] != before:
            raise ValueError(
                "the field changed its conditioning in place, so it can't be evaluated again; "
                "make the operation out of place, or use gradient=nanode.Backprop()"
            )
        ctx.job = job
        ctx.kept_size = len(kept)
        # x is kept only where the method says so.
        ctx.save_for_backward(*inputs[n:], *(part for state in kept for part in state))
        return tuple(part for state in wanted.values() for part in state)

    @staticmethod
    @once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        job: Job = ctx.job
        job.snapshot.check()
        n, m = job.state_size, job.conditioning_size
        saved = ctx.saved_tensors
        total = len(ctx.needs_input_grad) - 1 - n
        conditioning, parameters, flat = saved[:m], saved[m:total], saved[total:]
        kept = [tuple(flat[i * n : (i + 1) * n]) for i in range(ctx.kept_size)]
        points = [k for k in job.problem.plan.wanted if k > 0]
        by_point = {k: tuple(grads[i * n : (i + 1) * n]) for i, k in enumerate(points)}
        ledger = Ledger(
            dict(zip(job.names, parameters, strict=True)),
            (job.problem.conditioning, conditioning),
            job.stages,
            job.method.chunk,
            job.again,
            job.table_again,
        )
        in_x = job.method.backward(job, ledger, kept, by_point)
        return (None, *in_x, *ledger.conditioning_grads(), *ledger.parameter_grads())

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError(
            f"{type(ctx.job.method).__name__} has no derivatives in forward mode; use "
            "gradient=nanode.Backprop()"
        )


class Job:
    """One solve under a recomputing method: evaluates, and can evaluate the same again."""

    def __init__(
        self,
        method: Recomputing,
        problem: Problem,
        state_size: int,
        names: list[str],
    ) -> None:
        self.method, self.problem = method, problem
        self.state_size, self.names, self.stages = state_size, names, problem.plan.stages
        self.conditioning_size = len(problem.conditioning.tensors)
        #: Whether a backward pass may come, and is to be compared with the forward pass.
        self.repeats, self.compares = True, False
        #: A few numbers of each part of x, where x isn't kept.
        self.begun: list[list[Any]] = []
        self.snapshot = Snapshot(problem.plan.field)
        self.random: dict[int, list[Tensor]] = {}
        #: Whether the stepper evaluates a stage several times.
        self.iterated = False
        #: What the table of weights was drawn from, if it was.
        self.drawn: list[Tensor] | None = None
        self.looked = False

    @property
    def plan(self) -> Plan:
        """The plan of the solve."""
        return self.problem.plan

    def open(self, x: Sequence[Tensor], conditioning: Sequence[Tensor]) -> None:
        """Before the first evaluation."""
        self.device = x[0].device
        self.autocast = autocast_of(self.device)
        self.before = self._random_state()
        self.given = {*map(_memory, x)}
        self.fixed = self.problem.conditioning.rebuilt([c.detach() for c in conditioning])
        self.rows = ForwardRows(self.stages, self.method.chunk, self.table)

    def march(
        self, x: State, visit: Callable[[int, Carry], None] = lambda k, carry: None
    ) -> tuple[dict[int, State], Carry]:
        """The forward pass: the wanted states, and what it ends in."""
        wanted: dict[int, State] = {}

        def note(k: int, carry: Carry) -> None:
            if k in self.plan.wanted:
                wanted[k] = carry[0]
            visit(k, carry)

        return wanted, self.problem.march(self.first, self.problem.open(self.first, x), note)

    def compare(
        self,
        found: Tensors,
        expected: Tensors,
        begin: Tensors,
        others: Tensors = (),
        hint: str = "",
    ) -> None:
        """Warn if a piece of the solve that was run again ended somewhere else."""
        share = differ(found, expected, begin, self.autocast[0], others)
        if share is not None:
            self.compares = False
            warn(share, self.plan.field, self.method, hint)

    def drew(self) -> bool:
        """Whether the field drew random numbers so far."""
        return not equal_states(self.before, self._random_state())

    def close(self) -> None:
        """After the last evaluation: what the backward pass won't need is dropped."""
        if not self.drew():
            self.random = {}
        elif self.iterated and self.repeats:
            raise ValueError(
                "the field draws random numbers and the solver evaluates it several times a "
                "stage, which can't be repeated; use gradient=nanode.Backprop()"
            )
        del self.before, self.fixed, self.rows

    def _random_state(self) -> list[Tensor]:
        return [] if self.problem.evaluator is not None else random_state(self.device)

    def table(self, stages: Stages) -> Weights:
        """The weights of some stages, in the forward pass."""
        before = self._random_state()
        with torch.no_grad(), uncached(self.plan.field):
            weights = self.problem.prepare(self.plan.field.weights(stages))
        if not equal_states(before, self._random_state()):
            if self.repeats and len(stages) < len(self.stages):
                raise ValueError(
                    "the field draws random numbers for its weights, and would draw others for "
                    "each chunk of their table; leave chunk= out"
                )
            self.drawn = before
        return weights

    def table_again(self, stages: Stages, parameters: Named) -> Weights:
        """The same once more, as functions of the parameters that the forward pass had."""
        field, prepare = self.plan.field, self.problem.prepare
        if self.drawn is not None:
            stages = self.stages.repeated  # how many rows there are decides what is drawn
        with (
            alone(field),
            uncached(field),
            as_drawn(self.drawn, self.device),
            as_cast(self.autocast, self.device),
            torch.enable_grad(),
        ):
            own = own_parameters(field)
            same = all(own.get(name) is p for name, p in parameters.items())

            def make() -> Weights:
                if same:
                    return field.weights(stages)
                # The forward pass ran under functional_call, which has ended since.
                return with_parameters(field, parameters, field.weights, stages)

            weights = make()
            if not self.looked:
                self.looked = True
                refuse_hidden(lambda: _all(make()), _all(weights), parameters.values(), self.method)
            return prepare(weights)

    def first(self, i: int, x: State) -> State:
        """f at stage i, in the forward pass."""
        row = self.rows[i]  # first: building its table may draw numbers
        self.iterated |= i in self.random
        self.random[i] = self._random_state()
        self.problem.evaluations.forward += 1
        # A field that differentiates has x require grad. At first x is the caller's memory, where a
        # tensor that the field hides may lie as well: a copy is x's alone.
        x = tuple(p.clone() if _memory(p) in self.given else p.detach() for p in x)
        # Nothing here requires grad, so nothing is recorded; with grad enabled, a result that
        # requires it comes from x, if the field has differentiated, or from a tensor that it hides.
        with torch.enable_grad():
            slopes = self.problem.evaluate(self.stages, i, row, x, self.fixed)
        return without_hidden(slopes, x, self.method)

    def again(
        self, stages: Stages, i: int, weights: Named, x: State, conditioning: tuple[Any, ...]
    ) -> State:
        """f at stage i once more: same random numbers, same autocast, nothing recorded."""
        self.problem.evaluations.backward += 1
        with (
            as_drawn(self.random.get(i), self.device),
            as_cast(self.autocast, self.device),
            torch.enable_grad(),
        ):
            if self.problem.evaluator is not None:
                try:
                    return self.problem.evaluate(stages, i, weights, x, conditioning)
                except untraceable():  # the compiler's limit, which the forward pass didn't meet
                    self.problem.evaluator = None
            return self.problem.evaluate(stages, i, weights, as_views(x), conditioning)


def refuse_changed(name: str | None, method: Gradient) -> None:
    """Raise if evaluations move a buffer, since they would find another one when repeated."""
    if name is not None:
        raise ValueError(
            f"an evaluation of the field changes its buffer {name!r}, so {type(method).__name__}, "
            "which evaluates again in the backward pass, would find another value there and change "
            "it twice; use gradient=nanode.Backprop()"
        )


def as_views(x: State) -> State:
    """No leaves: counters of FLOPs hang hooks on a module's inputs, which leaves can't have."""
    return tuple(part.view_as(part) if part.is_leaf else part for part in x)


def without_hidden(slopes: State, x: State, method: Gradient) -> State:
    """f's value, detached; raises if it requires grad by another tensor than x.

    Nothing that was handed to f did. A field that takes derivatives (of an energy, of a density)
    has x require grad, or an alias of it.
    """
    if not any(slope.requires_grad for slope in slopes):
        return slopes
    own = {*map(_memory, x)}
    if any(_memory(leaf) not in own for leaf in ends_of(slopes)):
        raise ValueError(
            "the field's value depends on a tensor that requires grad but is neither x, "
            "conditioning, nor a parameter that the field's module had when it was wrapped: "
            f"{type(method).__name__} can't give it a gradient. Pass it as conditioning (in "
            "tuples, lists and dicts tensors are found there, in other objects not), make it a "
            "parameter of the module before that is wrapped, or use gradient=nanode.Backprop(). "
            "(A field that takes derivatives may have x itself or a view of it require grad.)"
        )
    return tuple(slope.detach() for slope in slopes)


def _all(weights: Weights) -> list[Tensor]:
    return [*weights.moving.values(), *weights.constant.values()]


def refuse_hidden(
    again: Callable[[], Iterable[Tensor]],
    weights: Iterable[Tensor],
    parameters: Iterable[Tensor],
    method: Gradient,
) -> None:
    """Raise if weights were made of a tensor that requires grad and is no parameter."""
    own = {*map(_memory, parameters)}
    weights = list(weights)
    others = {_memory(leaf) for leaf in ends_of(weights)} - own
    # What is made on the way (times, to differentiate in) is another one when it is made again.
    if others and others & {_memory(leaf) for leaf in ends_of(again())}:
        raise ValueError(
            "the field's weights depend on a tensor that requires grad but is no parameter of the "
            f"field: {type(method).__name__} can't give it a gradient. Make it a parameter of the "
            "trajectory, or use gradient=nanode.Backprop()"
        )


def _memory(tensor: Tensor) -> int:
    """The same number for aliases of one tensor."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)
