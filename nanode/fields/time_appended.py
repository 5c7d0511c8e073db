"""Time as one more input of every layer: the paper's AppNODE."""

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from nanode.fields.field import Autonomous, Field, check_module, check_norms
from nanode.fields.swap import StageAware, refuse_lent
from nanode.fields.walk import replaced

_DIRECT = (nn.MultiheadAttention, nn.RNNBase)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


class TimeAppended(Autonomous):
    r"""A module in which every linear and convolutional layer sees t as one more input.

    .. math:: W [x, t] = W_x x + t\, w_t, \qquad
              \mathrm{conv}([x, t]) = \mathrm{conv}(x; W_x) + t\,\mathrm{conv}(1; w_t)

    so the activation is never copied. A convolution with groups gets one more channel per group;
    at padded borders the appended channel is padded like any other. Fields inside the module keep
    to their own time.

    >>> import nanode, torch
    >>> field = nanode.TimeAppended(torch.nn.Linear(3, 3))
    >>> x = torch.randn(2, 3)
    >>> weight, w_t = field.module.layer.weight, field.module.time_weight
    >>> appended = torch.cat([x, torch.full((2, 1), 0.4)], dim=1)
    >>> expected = appended @ torch.cat([weight, w_t[:, None]], 1).T + field.module.layer.bias
    >>> torch.allclose(field(0.4, x), expected, atol=1e-6)
    True
    """

    def __init__(self, module: nn.Module) -> None:
        check_module("TimeAppended", module)
        refuse_lent(module)
        check_norms(module)
        kinds = (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED, *_DIRECT, AppendedLayer, Field)
        converted = replaced(module, kinds, _appended)
        if not any(isinstance(part, AppendedLayer) for part in converted.modules()):
            raise ValueError(
                f"{type(module).__name__} has no linear or convolutional layer to append time to; "
                "use nanode.Autonomous(module)"
            )
        super().__init__(converted)


class AppendedLayer(StageAware):
    """A layer and the weights of its extra input, which is t everywhere."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        if isinstance(layer, nn.Linear):
            shape: tuple[int, ...] = (layer.out_features,)
            inputs = layer.in_features + 1
        elif isinstance(layer, _TRANSPOSED):
            shape = (layer.groups, layer.out_channels // layer.groups, *layer.kernel_size)
            inputs = math.prod(layer.weight.shape[1:])  # the outputs, which torch counts there
        else:
            shape = (layer.out_channels, 1, *layer.kernel_size)
            inputs = (layer.in_channels // layer.groups + 1) * math.prod(layer.kernel_size)
        # torch's own rule for a layer with one more input.
        bound = inputs**-0.5
        self.time_weight = nn.Parameter(layer.weight.new_empty(shape).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """The layer at [x, t]."""
        assert self.stage is not None, "an appended layer is called through its field"
        y: Tensor = self.layer(x)
        t = self.stage.time
        if isinstance(t, Tensor):
            t = t.to(y)
        return y + t * self._response(x).to(y.dtype)

    def _response(self, x: Tensor) -> Tensor:
        """The layer's answer to an extra input of ones, without a batch axis of its own."""
        layer = self.layer
        if isinstance(layer, nn.Linear):
            return self.time_weight
        space = x.shape[-len(layer.kernel_size) :]
        ones = x.new_ones(1, layer.groups, *space)
        if isinstance(layer, _TRANSPOSED):
            transpose = _TRANSPOSE[len(layer.kernel_size)]
            response = transpose(
                ones,
                self.time_weight,
                None,
                layer.stride,
                layer.padding,  # type: ignore[arg-type]
                layer.output_padding,
                layer.groups,
                layer.dilation,
            )
        else:
            response = layer._conv_forward(ones, self.time_weight, None)
        return response if x.ndim == len(space) + 2 else response[0]


def _appended(part: nn.Module) -> nn.Module:
    """A layer with t appended; a field or such a layer as it is."""
    if isinstance(part, _DIRECT):
        raise ValueError(
            f"time can't be appended inside {type(part).__name__}, which reads its layers' "
            "weights directly; use nanode.TimeVarying"
        )
    return part if isinstance(part, AppendedLayer | Field) else AppendedLayer(part)
