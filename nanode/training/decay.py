"""Which parameters decay: weight tensors and their coefficients, never norm affines or biases.

A moving weight's coefficients are stored flat, ``(d, numel)``: their number of axes says nothing.
What counts is the parameter they stand for: its shape and the layer it was taken out of.
"""

import torch
from torch import nn

from nanode.fields import BatchNorm, TimeVarying
from nanode.fields.time_appended import AppendedLayer
from nanode.trajectories import Expansion, Hypernetwork, Orthogonal
from nanode.trajectories.joined import Joined, joined
from nanode.trajectories.trajectory import Trajectory

_NORMS = (
    BatchNorm,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)


def decayed_names(model: nn.Module) -> set[str]:
    """The names of the parameters that weight decay acts on.

    >>> import nanode
    >>> module = nn.Sequential(nanode.BatchNorm(4), nn.Conv2d(4, 4, 1))
    >>> decayed_names(nanode.TimeVarying(module, nanode.Legendre(degree=2)))
    {'trajectory.coefficients.1.weight'}
    """
    wrapped: dict[int, tuple[nn.Module | None, str, torch.Size]] = {}
    for part in model.modules():
        if isinstance(part, TimeVarying):
            for path, coefficients, shape in stored_weights(part.trajectory):
                owner, _, leaf = path.rpartition(".")
                wrapped[id(coefficients)] = part.module.get_submodule(owner), leaf, shape
        elif isinstance(part, Trajectory):  # on its own, as the gates of a field
            for path, coefficients, shape in stored_weights(part):
                wrapped.setdefault(id(coefficients), (None, path.rpartition(".")[2], shape))
    names = set()
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        plain = model.get_submodule(path), leaf, parameter.shape
        if _decays(*wrapped.get(id(parameter), plain)):
            names.add(name)
    return names


def _decays(owner: nn.Module | None, leaf: str, shape: torch.Size) -> bool:
    if isinstance(owner, _NORMS) or "bias" in leaf:
        return False
    # The column of an appended input is part of its layer's weight.
    return len(shape) >= 2 or (isinstance(owner, AppendedLayer) and leaf == "time_weight")


def stored_weights(trajectory: Trajectory) -> list[tuple[str, torch.Tensor, torch.Size]]:
    """What a trajectory stores for each weight: its path, the stored tensor, the weight's shape."""
    if isinstance(trajectory, Joined):
        return [item for part in joined(trajectory) for item in stored_weights(part)]
    if isinstance(trajectory, Orthogonal):
        return stored_weights(trajectory.inner)
    if isinstance(trajectory, Expansion):
        tree = trajectory.coefficients
    elif isinstance(trajectory, Hypernetwork):
        tree = trajectory.embeddings
    else:
        return []
    return [(path, stored, trajectory.shapes[path]) for path, stored in tree]
