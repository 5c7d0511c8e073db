"""What a field was like in the forward pass, so that a repeated evaluation is the same."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from nanode.fields.field import Field
from nanode.fields.norms import BatchNorm
from nanode.fields.walk import parts_of, traits
from nanode.trajectories.trajectory import version

#: By name: a buffer, and how often it had been changed.
Buffers = dict[str, tuple[Tensor, int]]
COMPARABLE = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.complex128, torch.complex64, torch.bool, torch.uint8),
    *(torch.int64, torch.int32, torch.int16, torch.int8),
}
#: Buffers of so many numbers are compared by their values too.
SMALL = 16_384


class Snapshot:
    """A field's modules, modes, settings and buffers; ``check`` raises once they are others."""

    def __init__(self, field: Field) -> None:
        self.field, self.buffers = field, buffers(field)
        self.modules, self.modes, _, self.settings = traits(parts_of(field))

    def check(self) -> None:
        """Before a backward pass: what is evaluated again must be what was evaluated."""
        # Hooks may come and go, as those that only look do.
        modules, modes, _, settings = traits(parts_of(self.field))
        if modes != self.modes:
            raise RuntimeError(
                "the field was switched between train() and eval() after the forward pass, so its "
                "evaluations can't be repeated; call backward() first"
            )
        if (modules, settings) != (self.modules, self.settings):
            raise RuntimeError(
                "a module of the field was replaced after the forward pass, or its p, eps or "
                "momentum was, so its evaluations can't be repeated; call backward() first"
            )
        changed = moved(self.buffers, buffers(self.field))
        if changed is not None:
            raise RuntimeError(
                f"the field's buffer {changed!r} was changed after the forward pass, or was lent "
                "to it by functional_call, so its evaluations can't be repeated; call backward() "
                "first, or use gradient=nanode.Backprop()"
            )


def buffers(field: Field) -> Buffers:
    """The buffers that evaluations read: a norm in training mode only writes its own."""
    return {
        f"{path}.{name}": (buffer, version(buffer) + _updates(part))
        for path, part in field.named_modules()
        if not (isinstance(part, BatchNorm) and part.training)
        for name, buffer in part._buffers.items()
        if buffer is not None
    }


def _updates(part: nn.Module) -> int:
    return part.updates if isinstance(part, BatchNorm) else 0


def keep(field: Field) -> Callable[[], None]:
    """Keeps the buffers; what it returns puts back those that trial evaluations have moved."""
    kept = [
        (buffer, buffer.clone(), version(buffer), isinstance(part, BatchNorm) and part.training)
        for part in field.modules()
        for buffer in part.buffers(recurse=False)
    ]

    @torch.no_grad()
    def put_back() -> None:
        for buffer, before, count, moves in kept:
            if moves or version(buffer) != count:  # a copy counts as a change itself
                buffer.copy_(before)

    return put_back


def copies(found: Buffers) -> dict[str, Tensor]:
    """The values of small buffers, for ``rewritten``."""
    small = {name: b for name, (b, _) in found.items() if is_plain(b) and b.numel() <= SMALL}
    return {name: b.clone() for name, b in small.items()}


def is_plain(tensor: Tensor) -> bool:
    """Whether it is no tensor of a special kind, and can be compared number by number."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and not (tensor.is_meta or tensor.is_nested)
        and tensor.dtype in COMPARABLE
    )


def rewritten(found: Buffers, values: dict[str, Tensor]) -> str | None:
    """The name of a buffer that has other values now.

    Not every change is counted: not those by ``F.batch_norm``, by observers, or of ``.data``.
    """
    for name, value in values.items():
        now = found[name][0]
        if not bool(((now == value) | ((now != now) & (value != value))).all()):  # NaN as well
            return name
    return None


def moved(before: Buffers, after: Buffers) -> str | None:
    """The name of a buffer that is another one or was changed; None if there is none."""
    for name, (buffer, now) in after.items():
        if name not in before:
            return name
        earlier, count = before[name]
        if earlier is buffer and count != now:
            return name
        # Another tensor of the same values will do: functional_call has put its own in and out.
        if earlier is not buffer and not _same(earlier, buffer):
            return name
    return None


def _same(one: Tensor, other: Tensor) -> bool:
    alike = (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
    return alike and torch.equal(one, other)
