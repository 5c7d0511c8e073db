"""Exact gradients from a few stored states: each segment between them is solved again."""

from dataclasses import dataclass
from math import ceil, isqrt

import torch
from torch import Tensor

from nanode.gradients.ledger import Ledger
from nanode.gradients.pullback import flatten, leaves, vjp
from nanode.gradients.recompute import Job, Recomputing, as_views
from nanode.solvers.stepper import Carry, State
from nanode.values import checked_count


@dataclass(frozen=True)
class Checkpointed(Recomputing):
    """Keeps the state at the start of each of ``segments`` pieces (√K by default).

    The backward pass solves a piece again with its graph, then differentiates it: one evaluation
    and one vector–Jacobian product a stage, and the activations of one piece at a time. As many
    segments as steps keeps every state and the activations of a single step. Serves any stepper;
    ``Reversal`` holds less, but only invertible steppers can use it.
    """

    segments: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.segments is not None:
            checked_count("segments", self.segments, least=1)

    def bounds(self, steps: int) -> list[int]:
        """The first step of each segment, and the number of steps."""
        count = self.segments if self.segments is not None else isqrt(steps - 1) + 1
        count = min(count, steps)
        return [ceil(steps * n / count) for n in range(count + 1)]

    def forward(self, job: Job, x: State) -> tuple[dict[int, State], list[State]]:
        """One pass, keeping x and what each later segment starts from."""
        inner = self.bounds(job.plan.grid.steps)[1:-1]
        kept: list[State] = [x]

        def keep(k: int, carry: Carry) -> None:
            if k in inner:
                kept.extend(carry)

        wanted, _ = job.march(x, keep)
        return wanted, kept

    def backward(
        self, job: Job, ledger: Ledger, kept: list[State], grads: dict[int, State]
    ) -> State:
        """Segment by segment, last to first."""
        bounds = self.bounds(job.plan.grid.steps)
        segments = len(bounds) - 1
        width = (len(kept) - 1) // max(1, segments - 1)  # states in a carry
        flowing: list[Tensor | None] = []
        for n in reversed(range(segments)):
            begin = kept[1 + (n - 1) * width : 1 + n * width] if n else kept[:1]
            ends = kept[1 + n * width : 1 + (n + 1) * width] if n < segments - 1 else []
            piece = tuple(begin), tuple(ends)
            flowing = self._segment(job, ledger, piece, bounds[n : n + 2], grads, flowing)
        return tuple(flowing)  # type: ignore[arg-type]

    def _segment(
        self,
        job: Job,
        ledger: Ledger,
        piece: tuple[Carry, Carry],
        bounds: list[int],
        grads: dict[int, State],
        flowing: list[Tensor | None],
    ) -> list[Tensor | None]:
        """The gradients of what one segment starts from, given those of what it ends in.

        ``piece`` is what it started from and, but for the last, what it ended in.
        """
        (begin, expected), (first, last) = piece, bounds
        start = tuple(leaves(state) for state in begin)
        used: dict[int, None] = {}  # a stepper may evaluate a stage several times
        reached: list[Tensor] = []
        given: list[Tensor | None] = []

        def f(i: int, x: State) -> State:
            used[i] = None
            return ledger.evaluate(i, x)

        def visit(k: int, carry: Carry) -> None:
            if k in grads:
                reached.extend(carry[0])
                given.extend(grads[k])

        with torch.enable_grad():
            plain = job.problem.evaluator is None  # the field's own code
            seen = tuple(as_views(state) for state in start) if plain else start
            carry = seen if first else job.problem.open(f, seen[0])
            end = job.problem.march(f, carry, visit, first, last)
        if flowing:
            reached.extend(flatten(end))
            given.extend(flowing)
        if expected and job.compares:
            job.compare(flatten(end), flatten(expected), flatten(carry))
        own = flatten(start)
        rows = [list(ledger.moving(i).values()) for i in used]
        found = vjp(reached, [*own, *ledger.shared, *(w for row in rows for w in row)], given)
        ledger.take_shared(found[len(own) : len(own) + len(ledger.shared)])
        position = len(own) + len(ledger.shared)
        for i, row in zip(used, rows, strict=True):
            ledger.take(i, found[position : position + len(row)])
            position += len(row)
        return found[: len(own)]
