"""Tables of weights as compiled evaluations want them: cast and laid out once, not at every stage.

Compiled for one stage, an evaluation casts that stage's row to autocast's dtype and, for a
convolution in channels-last, lays it out anew: K times a solve, and K times again where it is
repeated. Done to the whole table beforehand the numbers are the same, gradients too, as long as
each row is used once, by a layer that autocast casts it for: so only weights of plain layers in
plain sequences are cast, which no other code can read.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nanode.fields.field import Field, Weights
from nanode.fields.swap import Lender
from nanode.gradients.precision import autocast_of
from nanode.gradients.problem import Prepare, as_they_are, has_versions
from nanode.solvers.stepper import State

#: Layers whose weights autocast casts, whatever is given to them.
CAST = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


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
    lender, module = (getattr(field, name, None) for name in ("_lender", "module"))
    if not isinstance(lender, Lender) or not isinstance(module, nn.Module):
        return as_they_are
    if not enabled or not has_versions(x):
        return as_they_are
    wide = x[0].ndim == 4 and x[0].is_contiguous(memory_format=torch.channels_last)
    return Laid(dtype, frozenset(_kernels(module, lender)), wide)


def _kernels(module: nn.Module, lender: Lender) -> Iterator[str]:
    """The names of weights that one plain layer uses, once, and nothing else."""
    uses = Counter(name for _, _, name, _ in lender.places)
    for owner, leaf, name, _ in lender.places:
        # Not subclasses, which may do something else; not what weight_norm keeps in a layer.
        plain = type(owner) in CAST and leaf == "weight" and not owner._forward_pre_hooks
        if plain and uses[name] == 1 and _in_sequence(module, name):
            yield name


def _in_sequence(module: nn.Module, weight: str) -> bool:
    """Whether all that is around the layer of a weight are sequences, which only call it."""
    above: nn.Module = module
    for branch in weight.split(".")[:-1]:
        if type(above) is not nn.Sequential:
            return False
        above = above.get_submodule(branch)
    return above is not module
