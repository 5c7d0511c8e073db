"""Several fields mixed in proportions that change with time."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from nanode.bases import Basis, Monomial
from nanode.bases.basis import Interval
from nanode.fields.field import Autonomous, Field, Weights
from nanode.fields.swap import alone
from nanode.stages import Side, Stage, Stages
from nanode.trajectories import Expansion
from nanode.trajectories.trajectory import Named


class Gated(Field):
    r"""d whole fields mixed by sigmoid gates of time.

    .. math:: \dot h = \sum_{n=1}^{d} \sigma(g_n(t))\, f_n(t, h)

    Shapes: the d logits g(t) are expanded in ``basis`` (by default linear in t). They start at
    values spread over [-1, 1], different for each field and constant in time. Modules among
    ``fields`` become autonomous fields. With one field and a large logit this is that field.

    >>> import nanode, torch
    >>> gated = nanode.Gated([torch.nn.Linear(3, 3) for _ in range(4)])
    >>> gated(0.5, torch.randn(2, 3)).shape
    torch.Size([2, 3])
    """

    def __init__(self, fields: Sequence[nn.Module], basis: Basis | None = None) -> None:
        super().__init__()
        if not isinstance(fields, Iterable):
            raise ValueError(
                f"Gated mixes several fields or modules, got one {type(fields).__name__}; write "
                "nanode.Gated([first, second])"
            )
        fields = list(fields)
        if not fields:
            raise ValueError("Gated needs at least one field, got none")
        for member in fields:
            if not isinstance(member, nn.Module):
                raise ValueError(
                    f"Gated mixes fields and modules, got {type(member).__name__}; wrap a function "
                    "as nanode.Callback(f)"
                )
        members = [f if isinstance(f, Field) else Autonomous(f) for f in fields]
        intervals = {member.interval for member in members if member.interval is not None}
        if basis is None:
            basis = Monomial(degree=1, interval=next(iter(intervals), (0.0, 1.0)))
        if not isinstance(basis, Basis):
            raise ValueError(
                f"basis must be a Basis such as nanode.Monomial(degree=1), got {basis!r}"
            )
        intervals.add(basis.interval)
        if len(intervals) != 1:
            raise ValueError(
                f"the fields and gates of a Gated field must share an interval, got "
                f"{sorted(intervals)}"
            )
        self.interval: Interval = basis.interval
        self.fields = nn.ModuleList(members)
        like = next(self.fields.parameters(), torch.zeros(()))
        spread = torch.linspace(-1, 1, len(members)) if len(members) > 1 else torch.zeros(1)
        logits = spread.to(device=like.device, dtype=like.dtype.to_real())
        self.gates = Expansion({"logits": nn.Parameter(logits)}, basis)
        self.settle()

    def settle(self) -> None:
        """Take over where fields and gates jump; again after one was replaced."""
        parts: list[Field | Expansion] = [*self.members(), self.gates]
        self.breakpoints = tuple(sorted({t for part in parts for t in part.breakpoints}))
        self.jumps = tuple(sorted({t for part in parts for t in part.jumps}))

    def weights(self, stages: Stages) -> Weights:
        """The weights of every field, under its number, and the logits of the gates."""
        with alone(self):
            moving: Named = self.gates.table(stages)
            constant: Named = {}
            for n, field in enumerate(self.members()):
                own = field.weights(stages)
                moving |= {f"{n}.{name}": w for name, w in own.moving.items()}
                constant |= {f"{n}.{name}": w for name, w in own.constant.items()}
        return Weights(moving, constant)

    def weights_at(self, t: float | Tensor, side: Side = "right") -> Named:
        """The weights of every field and the logits at time t."""
        with alone(self):
            named: Named = self.gates(t, side)
            for n, field in enumerate(self.members()):
                named |= {f"{n}.{name}": w for name, w in field.weights_at(t, side).items()}
        return named

    def evaluate(self, weights: Named, stage: Stage, x: Any, *conditioning: Any) -> Any:
        """The gated sum of all fields at x."""
        pairs = zip(self.members(), self.split(weights), strict=True)
        values = (field.evaluate(own, stage, x, *conditioning) for field, own in pairs)
        return mixed(torch.sigmoid(weights["logits"]), values)

    def split(self, weights: Named) -> list[Named]:
        """The weights of each field, under its own names."""
        own: list[Named] = [{} for _ in self.fields]
        for name, w in weights.items():
            n, dot, rest = name.partition(".")
            if dot:
                own[int(n)][rest] = w
        return own

    def members(self) -> list[Field]:
        """The fields."""
        return [field for field in self.fields if isinstance(field, Field)]


def mixed(gates: Tensor, values: Iterable[Any]) -> Any:
    """The sum of values, which may have several parts, each times its gate."""
    total: Any = None
    for gate, value in zip(gates, values, strict=True):
        part = tree_map(lambda v, gate=gate: gate.to(v.dtype) * v, value)
        total = part if total is None else tree_map(torch.add, total, part)
    return total
