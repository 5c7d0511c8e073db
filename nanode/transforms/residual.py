"""Residual layers as a flow: the way back from ``materialise``."""

import copy
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from nanode.bases import Bucketed
from nanode.block import ODEBlock
from nanode.fields import BatchNorm, TimeVarying, convert_norms
from nanode.gradients import Gradient
from nanode.trajectories import Untied


def from_layers(
    layers: Iterable[nn.Module], *, gradient: Gradient | None = None, compile: bool = False
) -> ODEBlock:
    r"""Layers that are added to their input, :math:`x \leftarrow x + m_k(x)`, as a flow.

    .. math:: x_{k+1} = x_k + s \, dt \, m(x_k, W(t_k)), \quad s = K, \quad dt = 1 / K

    One bucket for each of K Euler steps holds copies of that layer's parameters, and each
    evaluation has the statistics of that layer's batch norms, so that the flow computes what the
    layers do. It can be projected to another basis, solved with less memory, and trained on.

    Layers may differ in parameters and statistics alone. What a module of your own keeps in plain
    attributes is taken from the first.

    >>> import nanode, torch
    >>> layers = [torch.nn.Linear(3, 3) for _ in range(4)]
    >>> flow, x = nanode.from_layers(layers), torch.randn(2, 3)
    >>> expected = x
    >>> for layer in layers:
    ...     expected = expected + layer(expected)
    >>> torch.allclose(flow(x), expected, atol=1e-6)
    True
    """
    layers = list(layers)
    if not layers or not all(isinstance(layer, nn.Module) for layer in layers):
        raise ValueError("from_layers takes the modules m_k of x + m_k(x), at least one")
    own = [convert_norms(copy.deepcopy(layer)) for layer in layers]
    for k, layer in enumerate(own):
        if (difference := _difference(own[0], layer)) is not None:
            raise ValueError(
                f"layer {k} has {difference}; the layers of a flow differ in parameters and norm "
                "statistics alone"
            )
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
            norms = [layer.get_submodule(name) for layer in layers]
            means, variances = ([getattr(n, of) for n in norms] for of in _ROWS)
            found[name] = (torch.cat(means), torch.cat(variances))
    return found


_ROWS = ("running_mean", "running_var")


def _kind(part: nn.Module) -> tuple[type, str]:
    """Class and settings; a parametrised module's own class is made for it alone."""
    return parametrize.type_before_parametrizations(part), part.extra_repr()


def _difference(first: nn.Module, other: nn.Module) -> str | None:
    """What a layer has where the first has something else, in words."""
    nothing: tuple[str, None] = ("", None)
    pairs = zip_longest(first.named_modules(), other.named_modules(), fillvalue=nothing)
    for (name, a), (_, b) in pairs:
        if a is None or b is None or _kind(a) != _kind(b):
            return f"{b} where the first has {a}" + (f" ({name})" if name else "")
    of_first, of_other = (
        {name: (tuple(p.shape), p.requires_grad) for name, p in layer.named_parameters()}
        for layer in (first, other)
    )
    if of_first != of_other:
        return "parameters of other names or shapes, or others that are frozen, than the first"
    theirs = dict(other.named_buffers())
    for name, buffer in first.named_buffers():
        if name.rpartition(".")[2] not in _ROWS and not torch.equal(buffer, theirs[name]):
            return f"another buffer {name!r} than the first"
    return None
