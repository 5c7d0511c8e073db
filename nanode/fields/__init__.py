"""f(t, x): modules whose weights move, and fields to compare them with."""

from nanode.fields.callback import Callback, as_field
from nanode.fields.field import Autonomous, Field, Weights
from nanode.fields.gated import Gated
from nanode.fields.norms import BatchNorm, convert_norms, prepare_norms
from nanode.fields.time_appended import TimeAppended
from nanode.fields.time_varying import TimeVarying

__all__ = [
    "Autonomous",
    "BatchNorm",
    "Callback",
    "Field",
    "Gated",
    "TimeAppended",
    "TimeVarying",
    "Weights",
    "as_field",
    "convert_norms",
    "prepare_norms",
]
