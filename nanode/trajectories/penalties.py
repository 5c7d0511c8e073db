r"""Penalties on moving weights, for a whole model in one call.

Three readings of "L2" on :math:`W(t) = \sum_k \alpha_k z_k(t)`, each a sum over all weights of all
trajectories in the model: on the coefficients, on the function, and on its derivatives. The last
two are exact, through the basis's Gram matrices:
:math:`\int W^{(m)}(t)^2 dt = \alpha^\top G_m \alpha`.
"""

import torch
from torch import Tensor, nn

from nanode.trajectories.trajectory import Reached, Trajectory, gathered, squared
from nanode.values import checked_count


def coefficient_penalty(model: nn.Module) -> Tensor:
    r"""The sum of squares of all that the model's trajectories learn, :math:`\|\alpha\|^2`."""
    squares = [
        squared(gathered(parameter)).sum()
        for trajectory in trajectories(model)
        for parameter in trajectory.parameters()
    ]
    return torch.stack(squares).sum()


def function_penalty(model: nn.Module) -> Tensor:
    r"""The mean-square size of the weights over time, :math:`\int \|W(t)\|^2 dt`.

    >>> import nanode, torch
    >>> field = nanode.TimeVarying(torch.nn.Linear(2, 2, bias=False), nanode.Legendre(degree=3))
    >>> weight = field.trajectory(0.0)["weight"]  # constant in t, on an interval of length 1
    >>> torch.allclose(nanode.function_penalty(field), weight.square().sum())
    True
    """
    return torch.stack([_energy(trajectory, 0) for trajectory in trajectories(model)]).sum()


def smoothness_penalty(model: nn.Module, m: int = 1) -> Tensor:
    r"""How much the weights move, :math:`\int \|W^{(m)}(t)\|^2 dt`; zero for constant weights."""
    m = checked_count("m", m, 1, "; for m = 0 use function_penalty(model)")
    return torch.stack([_energy(trajectory, m) for trajectory in trajectories(model)]).sum()


def _energy(trajectory: Trajectory, m: int) -> Tensor:
    """The energy of a trajectory; of all of it where each process has a part of its parameters."""
    own = dict(trajectory.named_parameters())
    whole = {name: gathered(parameter) for name, parameter in own.items()}
    if all(whole[name] is parameter for name, parameter in own.items()):
        return trajectory.energy(m)
    given = {f"module.{name}": parameter for name, parameter in whole.items()}
    inputs = (trajectory.energy, m)
    energy: Tensor = torch.func.functional_call(Reached(trajectory), given, inputs)
    return energy


def trajectories(model: nn.Module) -> list[Trajectory]:
    """Every trajectory in the model, each once; those inside another are that one's business.

    So are those whose coefficients are moved by a field around theirs.
    """
    every = [module for module in model.modules() if isinstance(module, Trajectory)]
    inside = {part for one in every for part in one.modules() if part is not one}
    found = [one for one in every if one not in inside and not _taken(one)]
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no weights that move in time; "
            "wrap a module with nanode.TimeVarying first"
        )
    return found


def _taken(trajectory: Trajectory) -> bool:
    """Whether a field around this one has taken all that the trajectory learns."""
    places = [p for part in trajectory.modules() for p in part._parameters.values()]
    return bool(places) and all(p is None for p in places)
