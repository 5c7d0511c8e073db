"""What the recomputing gradient methods share.

A solve is one autograd node. Its inputs are x, the conditioning and the field's parameters; the
table of weights is built inside, from the parameters, once in each direction (or by chunks), so it
is never held from one to the other. In the backward pass each stage's weights are leaves, whose
gradients are written into a table of the same shape; a full table is contracted back to the
parameters at once. States and adjoints of the size of the coefficients never exist.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nanode.bases.basis import checked_count
from nanode.fields.field import Field, Weights
from nanode.gradients.backprop import Backprop
from nanode.gradients.gradient import Gradient
from nanode.gradients.problem import Plan, Problem, own_parameters
from nanode.solvers.stepper import Carry, State
from nanode.stages import Stages
from nanode.trajectories.trajectory import Named


@dataclass(frozen=True)
class Recomputing(Gradient):
    """A gradient method that evaluates the field again in the backward pass.

    ``chunk`` bounds the table of weights to that many stages at a time; by default all are built
    at once.
    """

    chunk: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.chunk is not None:
            checked_count("chunk", self.chunk, least=1)

    def solve(self, problem: Problem, x: State) -> list[State]:
        """The states at the wanted grid points."""
        if torch.compiler.is_compiling() and not torch.is_grad_enabled():
            return Backprop().solve(problem, x)  # nothing to recompute: a plain loop can be traced
        if not torch.compiler.is_compiling():
            return self._recorded(problem, x)
        recorded: list[State] = torch.compiler.disable(self._recorded)(problem, x)
        return recorded

    def _recorded(self, problem: Problem, x: State) -> list[State]:
        """The solve as one autograd node, which no tracer can look into."""
        plan = problem.plan
        parameters = [p for p in own_parameters(plan.field).values() if p.requires_grad]
        inputs = (*x, *problem.conditioning.tensors, *parameters)
        job = Job(self, problem, len(x), len(problem.conditioning.tensors), plan.stages)
        flat = _Solve.apply(job, *inputs)
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
        job.open(x, conditioning)
        wanted, kept = job.method.forward(job, tuple(part.detach() for part in x))
        job.close()
        ctx.job = job
        ctx.kept_size = len(kept)
        ctx.save_for_backward(*inputs, *(part for state in kept for part in state))
        return tuple(part for state in wanted.values() for part in state)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        job: Job = ctx.job
        job.reopen()
        n, m = job.state_size, job.conditioning_size
        saved = ctx.saved_tensors
        total = len(ctx.needs_input_grad) - 1
        inputs, flat = saved[:total], saved[total:]
        kept = [tuple(flat[i * n : (i + 1) * n]) for i in range(ctx.kept_size)]
        points = [k for k in job.problem.plan.wanted if k > 0]
        by_point = {k: tuple(grads[i * n : (i + 1) * n]) for i, k in enumerate(points)}
        ledger = Ledger(job, inputs[n : n + m], inputs[n + m :])
        in_x = job.method.backward(job, ledger, kept, by_point)
        return (None, *in_x, *ledger.conditioning_grads(), *ledger.parameter_grads())


class Job:
    """One solve under a recomputing method: evaluates, and can evaluate the same again."""

    def __init__(
        self,
        method: Recomputing,
        problem: Problem,
        state_size: int,
        conditioning_size: int,
        stages: Stages,
    ) -> None:
        self.method, self.problem = method, problem
        self.state_size, self.conditioning_size = state_size, conditioning_size
        self.stages = stages
        own = own_parameters(problem.plan.field)
        self.names = [name for name, p in own.items() if p.requires_grad]
        self.modes = self._modes()
        self.random: dict[int, list[Tensor]] = {}
        self.device = torch.device("cpu")
        self.autocast: tuple[bool, torch.dtype] = (False, torch.bfloat16)

    @property
    def plan(self) -> Plan:
        """The plan of the solve."""
        return self.problem.plan

    def _modes(self) -> list[bool]:
        return [part.training for part in self.problem.plan.field.modules()]

    def reopen(self) -> None:
        """Before the backward pass: what is evaluated again must be what was evaluated."""
        if self._modes() != self.modes:
            raise RuntimeError(
                "the field was switched between train() and eval() after the forward pass, so its "
                "evaluations can't be repeated; call backward() first"
            )

    def open(self, x: Sequence[Tensor], conditioning: Sequence[Tensor]) -> None:
        """Before the first evaluation."""
        self.device = x[0].device
        kind = self.device.type
        self.autocast = (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        self.before = self._random_state()
        self.fixed = self.problem.conditioning.rebuilt([c.detach() for c in conditioning])
        self.rows = ForwardRows(self.plan.field, self.stages, self.method.chunk)

    def drew(self) -> bool:
        """Whether the field drew random numbers so far."""
        after = self._random_state()
        return not all(torch.equal(a, b) for a, b in zip(self.before, after, strict=True))

    def close(self) -> None:
        """After the last evaluation: what the backward pass won't need is dropped."""
        if not self.drew():
            self.random = {}
        del self.before, self.fixed, self.rows

    def _random_state(self) -> list[Tensor]:
        return [] if self.problem.evaluator is not None else random_state(self.device)

    def first(self, i: int, x: State) -> State:
        """f at stage i, in the forward pass."""
        self.random[i] = self._random_state()
        self.problem.evaluations.forward += 1
        # Nothing here requires grad, so nothing is recorded; with grad enabled, a result that
        # requires it can only come from a tensor that the field hides.
        with torch.enable_grad():
            slopes = self.problem.evaluate(self.stages, i, self.rows[i], x, self.fixed)
        refuse_hidden(slopes, self.method)
        return slopes

    def again(
        self, i: int, weights: Named, x: State, conditioning: tuple[Any, ...], stages: Stages
    ) -> State:
        """f at stage i once more: same random numbers, same autocast, nothing recorded."""
        self.problem.evaluations.backward += 1
        enabled, dtype = self.autocast
        with (
            _as_drawn(self.random.get(i), self.device),
            torch.autocast(self.device.type, dtype=dtype, enabled=enabled, cache_enabled=False),
            torch.enable_grad(),
        ):
            return self.problem.evaluate(stages, i, weights, x, conditioning)


def refuse_hidden(slopes: State, method: Gradient) -> None:
    """Raise if f's value requires grad though nothing that was handed to f did."""
    if any(slope.requires_grad for slope in slopes):
        raise ValueError(
            f"the field's value depends on a tensor that requires grad but is neither x, "
            f"conditioning, nor a parameter of the field: {type(method).__name__} can't give it a "
            "gradient. Pass it as conditioning, make it a parameter of the field's module, or use "
            "gradient=nanode.Backprop()"
        )


class ForwardRows:
    """Each stage's weights for a pass without gradients, from a table of at most ``chunk`` rows."""

    def __init__(self, field: Field, stages: Stages, chunk: int | None) -> None:
        self.field, self.stages = field, stages
        self.size = chunk or len(stages)
        self.low = -1
        self.rows: list[Named] = []

    def __getitem__(self, i: int) -> Named:
        low = i - i % self.size
        if low != self.low:
            self.rows = []  # before the next chunk is built, not after
            with torch.no_grad():
                weights = self.field.weights(self.stages[low : low + self.size])
            constant = {name: w.detach() for name, w in weights.constant.items()}
            self.rows = Weights(weights.moving, constant).rows()
            if not self.rows:
                self.rows = [constant] * self.size
            self.low = low
        return self.rows[i - low]


class Chunk:
    """The weights of some stages: leaves for the evaluations, and a table for their gradients."""

    def __init__(self, weights: Weights, size: int) -> None:
        self.tables = weights.moving
        self.pending = size
        detached = Weights({name: t.detach() for name, t in self.tables.items()}, {})
        self.leaves = [
            {name: _leaf(row, self.tables[name]) for name, row in rows.items()}
            for rows in detached.rows()
        ] or [{} for _ in range(size)]
        # Not zeros: every row is written exactly once.
        self.grads = {
            name: torch.empty_like(table, memory_format=torch.contiguous_format)
            for name, table in self.tables.items()
            if table.requires_grad
        }

    def take(self, i: int, grads: Mapping[str, Tensor | None]) -> bool:
        """Store the gradients of row i; true when the table is full."""
        for name, table in self.grads.items():
            grad = grads[name]
            if grad is None:
                table[i].zero_()
            else:
                table[i].copy_(grad)
        self.pending -= 1
        return self.pending == 0


class Ledger:
    """Hands out weights and conditioning as leaves, and collects what flows back to them.

    ``moving(i)`` belongs to stage i alone; ``shared`` (constant weights, conditioning) to all.
    """

    def __init__(
        self, job: Job, conditioning: Sequence[Tensor], parameters: Sequence[Tensor]
    ) -> None:
        self.job, self.parameters = job, list(parameters)
        self.chunks: dict[int, Chunk] = {}
        self.sums: list[Tensor | None] = [None] * len(self.parameters)
        self.serve(job.stages)
        field_weights = self._weights(self.stages[:1])
        self.constant = field_weights.constant
        self.constant_leaves = {name: _leaf(w, w) for name, w in self.constant.items()}
        conditioning_leaves = [_leaf(c, c) for c in conditioning]
        self.conditioning = job.problem.conditioning.rebuilt(conditioning_leaves)
        self.shared = [*self.constant_leaves.values(), *conditioning_leaves]
        self.shared_grads: list[Tensor | None] = [None] * len(self.shared)

    def serve(self, stages: Stages) -> None:
        """Which stages the rows are for; nothing is recorded in them."""
        self.stages = stages.repeated
        self.size = self.job.method.chunk or len(stages)

    def moving(self, i: int) -> Named:
        """The moving weights of stage i, as leaves."""
        number, place = divmod(i, self.size)
        if number not in self.chunks:
            part = self.stages[number * self.size : (number + 1) * self.size]
            self.chunks[number] = Chunk(self._weights(part), len(part))
        return self.chunks[number].leaves[place]

    def evaluate(self, i: int, x: State) -> State:
        """f at stage i with leaves for weights and conditioning."""
        weights = self.moving(i) | self.constant_leaves
        return self.job.again(i, weights, x, self.conditioning, self.stages)

    def take(self, i: int, grads: Iterable[Tensor | None]) -> None:
        """Collect the gradients of ``moving(i)``, once a stage."""
        number, place = divmod(i, self.size)
        chunk = self.chunks[number]
        if chunk.take(place, dict(zip(chunk.leaves[place], grads, strict=True))):
            del self.chunks[number]
            self._contract([(chunk.tables[name], grad) for name, grad in chunk.grads.items()])

    def take_shared(self, grads: Iterable[Tensor | None]) -> None:
        """Add to the gradients of ``shared``."""
        self.shared_grads = [_sum(a, b) for a, b in zip(self.shared_grads, grads, strict=True)]

    def parameter_grads(self) -> list[Tensor | None]:
        """The gradients of all parameters, when every stage has been taken."""
        assert not self.chunks, "a stage was handed out and never came back"
        pairs = zip(self.constant.values(), self.shared_grads, strict=False)
        self._contract([(w, g) for w, g in pairs if g is not None and w.requires_grad])
        return self.sums

    def conditioning_grads(self) -> list[Tensor | None]:
        """The gradients of all conditioning tensors."""
        return self.shared_grads[len(self.constant) :]

    def _contract(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        if not pairs or not self.parameters:
            return
        outputs, grads = zip(*pairs, strict=True)
        sums = torch.autograd.grad(outputs, self.parameters, grads, allow_unused=True)
        self.sums = [_sum(a, b) for a, b in zip(self.sums, sums, strict=True)]

    def _weights(self, stages: Stages) -> Weights:
        """The field's weights as functions of the parameters that the forward pass had."""
        field, names = self.job.plan.field, self.job.names
        own = own_parameters(field)
        with torch.enable_grad():
            if all(own.get(n) is p for n, p in zip(names, self.parameters, strict=True)):
                return field.weights(stages)
            # The forward pass ran under functional_call, which has ended since.
            named = {f"field.{n}": p for n, p in zip(names, self.parameters, strict=True)}
            weights: Weights = torch.func.functional_call(_Weigher(field), named, (stages,))
            return weights


class _Weigher(nn.Module):
    """``field.weights`` as a module's forward, so that other parameters can be put in its place."""

    def __init__(self, field: Field) -> None:
        super().__init__()
        self.field = field

    def forward(self, stages: Stages) -> Weights:
        return self.field.weights(stages)


def vjp(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients of ``inputs``, None where nothing flows."""
    pairs = [
        (out, grad)
        for out, grad in zip(outputs, grads, strict=True)
        if grad is not None and out.requires_grad
    ]
    live = [n for n, tensor in enumerate(inputs) if tensor.requires_grad]
    result: list[Tensor | None] = [None] * len(inputs)
    if not pairs or not live:
        return result
    outs, given = zip(*pairs, strict=True)
    found = torch.autograd.grad(outs, [inputs[n] for n in live], given, allow_unused=True)
    for n, grad in zip(live, found, strict=True):
        result[n] = grad
    return result


def leaves(state: State) -> State:
    """The state as leaves that require grad."""
    return tuple(part.detach().requires_grad_() for part in state)


def flatten(carry: Carry) -> list[Tensor]:
    """All tensors of a carry."""
    return [part for state in carry for part in state]


def unflatten(parts: Sequence[Any], size: int) -> tuple[Any, ...]:
    """The inverse of ``flatten`` for states of ``size`` tensors."""
    return tuple(tuple(parts[i : i + size]) for i in range(0, len(parts), size))


def _leaf(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(like.requires_grad)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def random_state(device: torch.device) -> list[Tensor]:
    """The states of the generators that an evaluation may draw from."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


@contextmanager
def _as_drawn(states: list[Tensor] | None, device: torch.device) -> Iterator[None]:
    """With the random numbers that follow these states, if any were drawn; restored afterwards."""
    if states is None:
        yield
        return
    now = random_state(device)
    _set_random_state(states, device)
    try:
        yield
    finally:
        _set_random_state(now, device)


def _set_random_state(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)
