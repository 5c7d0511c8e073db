"""Residual layers as a flow: the way back from ``materialise`` where it wrote such layers out."""

import copy
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from nanode.bases import Bucketed
from nanode.block import ODEBlock
from nanode.fields import BatchNorm, TimeVarying, convert_norms
from nanode.fields.swap import StageAware
from nanode.fields.time_varying import refuse_uninitialised
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
        if (difference := _difference(own[0], layer)) is not None:
            raise ValueError(
                f"layer {k} has {difference}; the layers of a flow differ in parameters and norm "
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
            norms = [layer.get_submodule(name) for layer in layers]
            means, variances = ([_row(n, of) for n in norms] for of in _ROWS)
            found[name] = (torch.cat(means), torch.cat(variances))
            part.times = ()  # of a flow that it may have been in
    return found


_ROWS = ("running_mean", "running_var")


def _row(norm: Any, of: str) -> Tensor:
    """Statistics of one norm, which may have none so far."""
    if len(norm.running_mean) > 1:
        raise ValueError(
            f"a BatchNorm in these layers has statistics of {len(norm.running_mean)} evaluations, "
            "where a layer has those of one"
        )
    if not len(norm.running_mean):
        norm.prepare((0.0,))
    row: Tensor = getattr(norm, of)
    return row


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


def _kind(part: nn.Module) -> tuple[type, str]:
    """Class and settings; a parametrised module's own class is made for it alone."""
    return parametrize.type_before_parametrizations(part), part.extra_repr()


#: Attributes that say what has happened to a module so far, not what it does.
_PASSING = ("training", "stage", "times", "updates", "reset_at")


def _settings(part: nn.Module) -> dict[str, Any]:
    """What torch's modules and ours keep in plain attributes, not all of which they show."""
    hooks = {"hooks": len(part._forward_pre_hooks) + len(part._forward_hooks)}
    kind: type = parametrize.type_before_parametrizations(part)
    if kind.__module__.partition(".")[0] not in ("torch", "nanode"):
        return hooks
    return hooks | {
        name: value
        for name, value in vars(part).items()
        if (value is None or isinstance(value, bool | int | float | str | tuple))
        and not name.startswith("_")
        and name not in _PASSING
    }


def _firsts(named: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """All names of things, to the first name of the same."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(thing), name) for name, thing in named}


def _difference(first: nn.Module, other: nn.Module) -> str | None:
    """What a layer has where the first has something else, in words."""
    nothing: tuple[str, None] = ("", None)
    parts, others = (list(m.named_modules(remove_duplicate=False)) for m in (first, other))
    for (name, a), (own, b) in zip_longest(parts, others, fillvalue=nothing):
        where = f" ({name})" if name else ""
        if a is None or b is None or _kind(a) != _kind(b):
            return f"{b} where the first has {a}{where}"
        if name != own:
            return f"a part {own!r} where the first has {name!r}"
        if a.training != b.training:
            modes = ["train mode" if part.training else "eval mode" for part in (b, a)]
            return f"{type(b).__name__} in {modes[0]} where the first has it in {modes[1]}{where}"
        settings, theirs = _settings(a), _settings(b)
        for key in settings | theirs:
            mine, its = settings.get(key), theirs.get(key)
            if mine != its:
                return f"{type(b).__name__} with {key}={its} where the first has {mine}{where}"
    if _firsts(parts) != _firsts(others):
        return "parts that are shared in other places than those of the first"
    of_first, of_other = (
        {
            name: (tuple(p.shape), p.dtype, p.requires_grad)
            for name, p in layer.named_parameters(remove_duplicate=False)
        }
        for layer in (first, other)
    )
    if of_first != of_other:
        return (
            "parameters of other names, shapes or dtypes, or others that are frozen, than the first"
        )
    shared, its_shared = (
        _firsts(layer.named_parameters(remove_duplicate=False)) for layer in (first, other)
    )
    if shared != its_shared:
        return "parameters that are shared in other places than those of the first"
    buffers, its_buffers = dict(first.named_buffers()), dict(other.named_buffers())
    for name in buffers | its_buffers:
        path, _, leaf = name.rpartition(".")
        if leaf in _ROWS and isinstance(first.get_submodule(path), BatchNorm):
            continue
        ours, its_own = buffers.get(name), its_buffers.get(name)
        if ours is None or its_own is None or ours.dtype != its_own.dtype:
            return f"another buffer {name!r} than the first"
        if not torch.equal(ours, its_own.to(ours.device)):
            return f"another buffer {name!r} than the first"
    return None
