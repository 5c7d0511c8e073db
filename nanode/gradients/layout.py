"""Tables of weights as compiled evaluations want them: cast and laid out once, not at every stage.

Compiled for one stage, an evaluation casts that stage's row to autocast's dtype and, for a
convolution in channels-last, lays it out anew: K times a solve, and K times again where it is
repeated. Done to the whole table beforehand the numbers are the same, gradients too: a row belongs
to one stage, so that none of them is added to another before it is back in full precision.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nanode.fields.field import Field, Weights
from nanode.fields.swap import Lender
from nanode.gradients.ledger import Prepare
from nanode.gradients.precision import autocast_of
from nanode.solvers.stepper import State

#: Modules whose weights autocast casts, whatever is given to them.
CAST = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


def as_they_are(weights: Weights) -> Weights:
    """No preparation."""
    return weights


@dataclass(frozen=True)
class Laid:
    """Casts the tables of some weights, and lays out those of 2-D convolutions."""

    dtype: torch.dtype
    names: frozenset[str]
    channels_last: bool

    def __call__(self, weights: Weights) -> Weights:
        """The same weights, moving ones ready for use."""
        moving = {name: self._ready(name, table) for name, table in weights.moving.items()}
        return Weights(moving, weights.constant)

    def _ready(self, name: str, table: Tensor) -> Tensor:
        if name not in self.names or table.dtype != torch.float32:
            return table
        if self.channels_last and table.ndim == 5:  # stage, out, in, height, width
            last = table.movedim(2, -1).to(self.dtype, memory_format=torch.contiguous_format)
            return last.movedim(-1, 2)
        return table.to(self.dtype, memory_format=torch.contiguous_format)


def preparation(field: Field, x: State) -> Prepare:
    """What the tables of a compiled solve are to be under the present autocast."""
    enabled, dtype = autocast_of(x[0].device)
    lender = getattr(field, "_lender", None)
    if not enabled or not isinstance(lender, Lender):
        return as_they_are
    # Not subclasses, which may do something else with them; nor what another module shares.
    owners: dict[str, set[bool]] = {}
    for owner, _, name, own in lender.places:
        for known in {name, own}:
            owners.setdefault(known, set()).add(type(owner) in CAST)
    names = frozenset(name for name, cast in owners.items() if cast == {True})
    wide = x[0].ndim == 4 and x[0].is_contiguous(memory_format=torch.channels_last)
    return Laid(dtype, names, wide)
