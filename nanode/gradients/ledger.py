"""The weights and conditioning of a backward pass: handed out as leaves, gradients collected."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from nanode.fields.field import Weights
from nanode.gradients.once import refuse_batched
from nanode.gradients.problem import Conditioning
from nanode.gradients.pullback import vjp
from nanode.solvers.stepper import State
from nanode.stages import Stages
from nanode.trajectories.trajectory import Named

#: f at a stage once more: (stages, index, weights, x, conditioning) to its value.
Again = Callable[[Stages, int, Named, State, tuple[Any, ...]], State]


#: The weights of some stages, as functions of the parameters named.
Table = Callable[[Stages, Named], Weights]


class ForwardRows:
    """Each stage's weights for a pass without gradients, from a table of at most ``chunk`` rows."""

    def __init__(
        self, stages: Stages, chunk: int | None, table: Callable[[Stages], Weights]
    ) -> None:
        self.stages, self.table = stages, table
        self.size = chunk or len(stages)
        self.low = -1
        self.rows: list[Named] = []

    def __getitem__(self, i: int) -> Named:
        low = i - i % self.size
        if low != self.low:
            self.rows = []  # before the next chunk is built, not after
            weights = self.table(self.stages[low : low + self.size])
            constant = {name: w.detach() for name, w in weights.constant.items()}
            self.rows = Weights(weights.moving, constant).rows(self.size)
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
            for rows in detached.rows(size)
        ]
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
                refuse_batched(grad)
                table[i].copy_(grad)
        self.pending -= 1
        return self.pending == 0


class Ledger:
    """Hands out weights and conditioning as leaves, and collects what flows back to them.

    ``moving(i)`` belongs to stage i alone; ``shared`` to all: conditioning, and behind it constant
    weights, which are known from the first ``moving`` on.
    """

    def __init__(
        self,
        parameters: Named,
        conditioning: tuple[Conditioning, Sequence[Tensor]],
        stages: Stages,
        chunk: int | None,
        again: Again,
        table: Table,
    ) -> None:
        self.chunk, self.again, self.table = chunk, again, table
        self.parameters = {name: _own_leaf(p) for name, p in parameters.items()}
        self.chunks: dict[int, Chunk] = {}
        self.sums: list[Tensor | None] = [None] * len(parameters)
        self.serve(stages)
        structure, tensors = conditioning
        self.shared = [_leaf(tensor, tensor) for tensor in tensors]
        self.shared_grads: list[Tensor | None] = [None] * len(tensors)
        self.conditioning = structure.rebuilt(self.shared)
        self.constant: Named = {}
        self.constant_leaves: Named = {}

    def serve(self, stages: Stages) -> None:
        """Which stages the rows are for; nothing is recorded in them."""
        self.stages = stages.repeated
        self.size = self.chunk or len(stages)

    def moving(self, i: int) -> Named:
        """The moving weights of stage i, as leaves."""
        number, place = divmod(i, self.size)
        if number not in self.chunks:
            part = self.stages[number * self.size : (number + 1) * self.size]
            weights = self.table(part, self.parameters)
            self.chunks[number] = Chunk(weights, len(part))
            if not self.constant:
                self._share(weights.constant)
        return self.chunks[number].leaves[place]

    def _share(self, constant: Named) -> None:
        """Constant weights, which come with the first table."""
        if not all(w.is_leaf for w in constant.values()):  # whose graph goes with the first chunk
            constant = self.table(self.stages[:1], self.parameters).constant
        self.constant = constant
        self.constant_leaves = {name: _leaf(w, w) for name, w in constant.items()}
        self.shared += self.constant_leaves.values()
        self.shared_grads += [None] * len(constant)

    def evaluate(self, i: int, x: State) -> State:
        """f at stage i with leaves for weights and conditioning."""
        weights = self.moving(i) | self.constant_leaves
        return self.again(self.stages, i, weights, x, self.conditioning)

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
        own = self.shared_grads[len(self.shared) - len(self.constant) :]
        pairs = zip(self.constant.values(), own, strict=True)
        self._contract([(w, g) for w, g in pairs if g is not None and w.requires_grad])
        return self.sums

    def conditioning_grads(self) -> list[Tensor | None]:
        """The gradients of all conditioning tensors."""
        return self.shared_grads[: len(self.shared) - len(self.constant)]

    def _contract(self, pairs: list[tuple[Tensor, Tensor]]) -> None:
        if not pairs:
            return
        outputs, grads = zip(*pairs, strict=True)
        sums = vjp(outputs, list(self.parameters.values()), grads)
        self.sums = [_sum(a, b) for a, b in zip(self.sums, sums, strict=True)]


def _own_leaf(parameter: Tensor) -> Tensor:
    """A parameter; an alias where hooks wait for its gradient, which is not yet whole here.

    And where it is a copy that hooks on saved tensors made (to offload or compress them), whose
    gradient would be the parameter's.
    """
    if parameter.is_leaf and not parameter._backward_hooks and _ends_in_itself(parameter):
        return parameter
    return _leaf(parameter, parameter)


def _ends_in_itself(leaf: Tensor) -> bool:
    if not leaf.requires_grad:
        return True
    end: Any = get_gradient_edge(leaf).node
    return end.variable is leaf


def _leaf(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(like.requires_grad)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b
