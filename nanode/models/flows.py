"""A row's flows: its rule for the field, and how the field is solved, by names."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from nanode.block import ODEBlock
from nanode.gradients import Backprop, Backsolve, Checkpointed, Gradient, Reversal
from nanode.models.rows import Setting, buckets_of, make_flow, warn_of_unused_buckets
from nanode.solvers import (
    RK4,
    Coupled,
    Euler,
    Heun,
    Leapfrog,
    Midpoint,
    ReversibleHeun,
    Stepper,
)
from nanode.values import check_choice, check_flag, check_number, checked_count

#: Solvers by name, with the evaluations that a step takes.
SOLVERS: dict[str, tuple[Callable[[], Stepper], int]] = {
    "euler": (Euler, 1),
    "midpoint": (Midpoint, 2),
    "heun": (Heun, 2),
    "rk4": (RK4, 4),
    "leapfrog": (Leapfrog, 1),
    "reversible-heun": (ReversibleHeun, 1),
    "coupled-euler": (lambda: Coupled(Euler()), 2),
    "coupled-midpoint": (lambda: Coupled(Midpoint()), 4),
    "coupled-rk4": (lambda: Coupled(RK4()), 8),
}
GRADIENTS: dict[str, Callable[[], Gradient]] = {
    "backprop": Backprop,
    "checkpointed": Checkpointed,
    "reversal": Reversal,
    "backsolve": Backsolve,
}


@dataclass(frozen=True)
class Flows:
    """Makes the flows of one model, which differ in their networks alone."""

    #: The row, one of ``names()``.
    name: str
    #: Evaluations in each flow, whatever the solver; None: ``usual``, or a step in each bucket.
    steps: int | None
    usual: int
    solver: str = "euler"
    gradient: str = "backprop"
    #: Of a step; None: 1, or the number of solver steps for residual rows.
    scale: float | None = None
    moving_norms: bool = True
    compile: bool = False

    def __post_init__(self) -> None:
        check_choice("solver", self.solver, SOLVERS)
        check_choice("gradient", self.gradient, GRADIENTS)
        check_flag("moving_norms", self.moving_norms)
        check_flag("compile", self.compile)
        if self.scale is not None:
            check_number("scale", self.scale)
        evaluations, cost = self._evaluations()
        if checked_count("steps", evaluations) % cost:
            own = "" if self.steps is not None else ", which is the default; give steps"
            raise ValueError(
                f"steps counts evaluations, and {self.solver} makes {cost} a step: expected a "
                f"multiple of {cost}, got {evaluations}{own}"
            )
        if not self.moving_norms and self.name.startswith("uncon-resnet"):
            raise ValueError(
                "the layers of uncon-resnet have norms of their own: leave moving_norms out, or "
                "use con-resnet"
            )
        warn_of_unused_buckets(self.name, evaluations // cost, cost)

    def block(self, network: Callable[[int], nn.Module], width: int) -> ODEBlock:
        """The flow of a network on so many channels."""
        evaluations, cost = self._evaluations()
        count = evaluations // cost
        flow = make_flow(self.name, Setting(network, width, count, self.moving_norms))
        usual = float(count) if flow.residual else 1.0
        return ODEBlock(
            flow.field,
            count,
            SOLVERS[self.solver][0](),
            GRADIENTS[self.gradient](),
            scale=usual if self.scale is None else self.scale,
            augment=flow.augment,
            compile=self.compile,
        )

    def _evaluations(self) -> tuple[int, int]:
        """In all, and in a step."""
        cost = SOLVERS[self.solver][1]
        usual = max(self.usual, buckets_of(self.name) * cost)
        return (usual if self.steps is None else self.steps), cost
