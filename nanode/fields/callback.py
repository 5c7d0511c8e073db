"""Any callable as a field."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from nanode.fields.field import ConstantField, Field
from nanode.fields.functions import FunctionModule, reached, takes_two, warn_of_order


def as_field(field: Any) -> Field:
    """A field as it is; any other callable f(t, x) as a field."""
    if isinstance(field, Field):
        return field
    if isinstance(field, nn.Module) and not takes_two(field):
        raise ValueError(
            f"a field is called as f(t, x), and {type(field).__name__} takes x alone; use "
            "nanode.Autonomous(module), or nanode.TimeVarying(module, basis) for weights that move"
        )
    if callable(field):
        warn_of_order(field, depth=4)
        return Callback(field)
    raise ValueError(f"expected a Field or a callable f(t, x), got {type(field).__name__}")


class Callback(ConstantField):
    """Any callable f(t, x, *conditioning), as other ODE libraries take.

    A module's parameters are known to the solve; a plain function has none, and what it closes over
    gets gradients only by ``Backprop`` (other gradient methods raise). So give a module itself, not
    its ``forward``, whose parameters a block wouldn't have.
    """

    takes_time = True

    def __init__(self, function: Callable[..., Any]) -> None:
        module = function if isinstance(function, nn.Module) else FunctionModule(function)
        super().__init__(module)
        #: Where the weights of fields that it calls jump, of which a solver knows nothing.
        self.hidden_jumps = _jumps_in(
            list(module.modules() if module is function else reached(function))
        )


def _jumps_in(parts: Sequence[nn.Module]) -> tuple[float, ...]:
    """Where the weights of fields among these modules jump."""
    # Those of a block (which can't be named here) are solved by it, and so is all inside of them.
    blocks = [part for part in parts if hasattr(part, "solver")]
    solved = [
        field for block in blocks if isinstance(field := getattr(block, "field", None), Field)
    ]
    known = {inside for field in solved for inside in field.modules()}
    fields = [part for part in parts if isinstance(part, Field) and part not in known]
    return tuple(sorted({t for field in fields for t in field.jumps}))
