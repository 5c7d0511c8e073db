"""Residual layers as a flow: the way back from ``materialise`` where it wrote such layers out."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nanode.bases import Bucketed
from nanode.block import ODEBlock
from nanode.fields import BatchNorm, TimeVarying, convert_norms
from nanode.fields.swap import StageAware
from nanode.fields.time_varying import refuse_uninitialised
from nanode.gradients import Gradient
from nanode.trajectories import Untied
from nanode.transforms.difference import STATISTICS, difference


def from_layers(
    layers: Iterable[nn.Module], *, gradient: Gradient | None = None, compile: bool = False
) -> ODEBlock:
    r"""Layers that are added to their input, :math:`x \leftarrow x + m_k(x)`, as a flow.

    .. math:: x_{k+1} = x_k + s \, dt \, m(x_k, W(t_k)), \quad s = K, \quad dt = 1 / K

    One bucket for each of K Euler steps holds copies of that layer's parameters, and each
    evaluation has the statistics of that layer's batch norms, so that the flow computes what the
    layers do. It can be projected to another basis, solved with less memory, and trained on.

    Layers may differ in parameters and statistics alone, and are refused otherwise. What a module
    of your own keeps in plain attributes isn't compared; the first layer's holds for all.

    The evaluations of a flow that ``materialise`` has written out become that flow again where it
    was solved by ``Euler`` with ``scale=steps`` on an interval of length 1, in equal steps.

    >>> import nanode, torch
    >>> layers = [torch.nn.Linear(3, 3) for _ in range(4)]
    >>> flow, x = nanode.from_layers(layers), torch.randn(2, 3)
    >>> expected = x
    >>> for layer in layers:
    ...     expected = expected + layer(expected)
    >>> torch.allclose(flow(x), expected, atol=1e-6)
    True
    """
    layers = list(layers) if isinstance(layers, Iterable) else []
    if not layers or not all(isinstance(layer, nn.Module) for layer in layers):
        raise ValueError("from_layers takes the modules m_k of x + m_k(x), at least one")
    for layer in layers:
        refuse_uninitialised(dict(layer.named_parameters()))
    own = [convert_norms(copy.deepcopy(layer)) for layer in layers]
    for k, layer in enumerate(own):
        if (found := difference(own[0], layer)) is not None:
            raise ValueError(
                f"layer {k} has {found}; the layers of a flow differ in parameters and norm "
                "statistics alone"
            )
        _refuse_another_time(layer, k / len(own))
    statistics = _statistics(own)
    field = TimeVarying(own[0], Bucketed(len(own)), start=Untied(iter(own[1:]).__next__))
    flow = ODEBlock(field, len(own), scale=len(own), gradient=gradient, compile=compile)
    for name, (mean, var) in statistics.items():
        norm = own[0].get_submodule(name)
        assert isinstance(norm, BatchNorm)
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(var)
    flow.training = field.training = layers[0].training  # each part has its own mode
    return flow


def _statistics(layers: Sequence[nn.Module]) -> dict[str, tuple[Tensor, Tensor]]:
    """Those of all layers, a row each, by the norm's name."""
    found = {}
    for name, part in layers[0].named_modules():
        if isinstance(part, BatchNorm):
            norms: list[Any] = [layer.get_submodule(name) for layer in layers]
            for norm in norms:
                if not len(norm.running_mean):
                    norm.prepare((0.0,))
                if len(norm.running_mean) > 1:
                    raise ValueError(
                        f"a BatchNorm in these layers has statistics of {len(norm.running_mean)} "
                        "evaluations, where a layer has those of one"
                    )
            mean, var = (torch.cat([getattr(norm, of) for norm in norms]) for of in STATISTICS)
            found[name] = mean, var
            part.times = ()  # of a flow that it may have been in
    return found


def _refuse_another_time(layer: nn.Module, time: float) -> None:
    """Refuse what was written out for another time than it would be told here."""
    for part in layer.modules():
        stage = part.stage if isinstance(part, StageAware) else None
        if stage is not None and abs(float(stage.time) - time) > 1e-9:
            raise ValueError(
                f"{type(part).__name__} in a layer was written out for the time "
                f"{float(stage.time):g}, which would be {time:g} in the flow; from_layers makes "
                "flows on (0, 1) in equal steps"
            )
