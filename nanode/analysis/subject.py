"""What is analysed: a block and an input, seen as a map between vectors.

Note *eval mode*. Everything here looks at a copy of the block in eval mode: batch norms use their
stored statistics (interpolated in time between the evaluations they were recorded at), dropout is
off, and the block and its buffers stay as they are. With the batch's own statistics samples would
depend on each other, and there would be no Jacobian of one sample.
"""

import copy
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from nanode.block import ODEBlock, augmented, flows
from nanode.fields import Field
from nanode.fields.swap import with_parameters
from nanode.gradients.problem import checked_state
from nanode.solvers.stepper import State
from nanode.trajectories.trajectory import Named


class Layout:
    """Several tensors as one vector, and back."""

    def __init__(self, parts: State) -> None:
        self.shapes = [part.shape for part in parts]
        self.dtypes = [part.dtype for part in parts]
        self.sizes = [part.numel() for part in parts]
        self.size = sum(self.sizes)

    def vector(self, parts: State) -> Tensor:
        """The parts one after another."""
        return torch.cat([part.reshape(-1) for part in parts])

    def parts(self, vector: Tensor) -> State:
        """The vector cut up again."""
        pieces = vector.split(self.sizes)
        return tuple(
            piece.reshape(shape).to(dtype)
            for piece, shape, dtype in zip(pieces, self.shapes, self.dtypes, strict=True)
        )


class Subject:
    """A block and an input to look at: a copy in eval mode, and its state as one vector."""

    def __init__(self, block: ODEBlock, x: Any, conditioning: tuple[Any, ...]) -> None:
        if not isinstance(block, ODEBlock):
            raise ValueError(
                f"expected an ODEBlock, got {type(block).__name__}; for a model with blocks in it "
                "use nanode.analysis.analyse"
            )
        refuse_inference_mode()
        x, conditioning = tree_map(_detached, (x, conditioning))
        self.block = copy.deepcopy(block).eval()
        self.block.plan()  # now, not amid a derivative
        #: θ: the field's parameters that are trained, by name.
        self.parameters: Named = {
            name: p for name, p in self.block.field.named_parameters() if p.requires_grad
        }
        self.block.requires_grad_(False)
        self.named = Layout(tuple(self.parameters.values()))
        leaves, self.structure = tree_flatten(augmented(x, block.augment, block.augment_axis))
        self.state = checked_state(leaves, self.block.field.modules())
        if any(part.is_complex() for part in self.state):
            raise ValueError(
                "the analysis is for real states; write a complex one as its real and imaginary "
                "parts"
            )
        if any(part.dtype.itemsize < 4 for part in self.state):
            raise ValueError(
                f"the analysis is for states in single or double precision, got "
                f"{self.state[0].dtype}; use block.float() and x.float()"
            )
        if not any(part.numel() for part in self.state):
            shapes = [tuple(part.shape) for part in self.state]
            raise ValueError(
                f"expected a state to look at, got an empty one, of shape {shapes}; give at least "
                "one sample, such as x[:1]"
            )
        self.conditioning = conditioning
        self.layout = Layout(self.state)
        self.x = self.layout.vector(self.state)

    @property
    def size(self) -> int:
        """How many numbers the state has."""
        return self.layout.size

    @property
    def theta(self) -> Tensor:
        """θ as one vector, of the state's dtype."""
        if not self.parameters:
            raise ValueError("the block's field has no parameters that require grad")
        if complex_ones := [name for name, p in self.parameters.items() if p.is_complex()]:
            raise ValueError(
                "sensitivities are for real parameters; write a complex one as its real and "
                f"imaginary parts, or leave it out by requires_grad_(False): {complex_ones}"
            )
        return self.named.vector(tuple(self.parameters.values())).to(self.x)

    @property
    def columns(self) -> dict[str, slice]:
        """Where in θ each parameter lies."""
        ends = [*accumulate(self.named.sizes, initial=0)]
        return {
            name: slice(*pair) for name, pair in zip(self.parameters, pairwise(ends), strict=True)
        }

    def with_theta(self, theta: Tensor, function: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """A function of the block's field, called while the field has these parameters."""
        parts = zip(self.parameters, self.named.parts(theta), strict=True)
        return with_parameters(self.block.field, dict(parts), function, *inputs)


def as_block(caller: str, given: Any) -> ODEBlock:
    """A block, or the one that was compiled; refuse what is none, and name the blocks inside."""
    given = getattr(given, "_orig_mod", given)
    if isinstance(given, ODEBlock):
        return given
    inside = flows(given) if isinstance(given, nn.Module) else {}
    raise ValueError(
        f"{caller} takes an ODEBlock, got {type(given).__name__}; "
        + (
            f"the blocks inside are {', '.join(map(repr, inside))}: take one by "
            "model.get_submodule(name), with what comes in there as x"
            if inside
            else "make one by nanode.ODEBlock(field, steps)"
        )
    )


def field_of(given: Field | ODEBlock) -> Field:
    """The field of a block, or the field itself; a ValueError for anything else."""
    if isinstance(given, ODEBlock):
        return given.field
    if not isinstance(given, Field):
        kind = given.__name__ if isinstance(given, type) else type(given).__name__
        raise ValueError(
            f"expected an ODEBlock or a field, got {kind}; make one of a module with "
            "nanode.TimeVarying(module, basis), or take the blocks out of a model one by one"
        )
    return given


def refuse_inference_mode() -> None:
    """Raise where torch records nothing: derivatives would all be zero, without a word."""
    if torch.is_inference_mode_enabled():
        raise ValueError(
            "the analysis differentiates, which torch.inference_mode() forbids; use torch.no_grad()"
        )


def check_small(what: str, size: int, limit: int, instead: str) -> None:
    """Refuse an exact method whose matrices are too large."""
    if size > limit:
        raise ValueError(
            f"{what} is {size:,}, too large for the exact method (limit={limit:,}); use the "
            f"estimate {instead}, which forms no matrix, or raise limit="
        )


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
