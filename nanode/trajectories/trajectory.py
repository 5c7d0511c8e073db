"""The interface of a trajectory: weights as functions of time."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from nanode.bases import Basis
from nanode.stages import Side, Stages
from nanode.tracing import traced

Named = dict[str, Tensor]
#: Makes a trajectory for named tensors, whose values it starts from.
TrajectoryFactory = Callable[[Mapping[str, Tensor]], "Trajectory"]


class Trajectory(nn.Module, ABC):
    r"""Named weights as functions of time, :math:`\theta(t; \alpha)`; owns :math:`\alpha`.

    ``trajectory(t)`` gives the weights at one time, ``trajectory.table(stages)`` those of a whole
    solve with a leading axis. Both are differentiable in :math:`\alpha`, the first in t too.
    """

    #: The shape of each weight that moves, by name.
    shapes: dict[str, torch.Size]
    #: Where the trajectory is defined; solves must stay inside.
    interval: tuple[float, float]
    #: Times inside the interval where a weight or one of its derivatives jumps.
    breakpoints: tuple[float, ...] = ()
    #: Those breakpoints where a weight itself jumps.
    jumps: tuple[float, ...] = ()

    @abstractmethod
    def forward(self, t: float | Tensor, side: Side = "right") -> Named:
        """Every weight at time t (a number or a tensor without axes)."""

    @abstractmethod
    def table(self, stages: Stages) -> Named:
        """Every weight at every stage: ``name -> (len(stages), *shape)``."""

    def prepare(self, stages: Stages) -> None:
        """Have the stages keep what ``table`` asks of them, so that no tracer has to make it.

        A graph that makes it is compiled again as soon as it is there.
        """

    @abstractmethod
    def energy(self, m: int = 0) -> Tensor:
        r"""The sum over all weights of :math:`\int_{t_0}^{t_1} W^{(m)}(t)^2 dt`."""


class Tree(nn.Module):
    """Parameters filed under dotted paths, so that state-dict keys show the wrapped module's.

    Tensors that are no parameters are filed as buffers.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._paths = tuple(tensors)
        for path, tensor in tensors.items():
            *branches, leaf = path.split(".")
            node: nn.Module = self
            for branch in branches:
                if branch not in node._modules:
                    node.add_module(branch, nn.Module())
                node = node.get_submodule(branch)
            if isinstance(tensor, nn.Parameter):
                node.register_parameter(leaf, tensor)
            else:
                node.register_buffer(leaf, tensor)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Each path with its tensor; None while a field around this one has taken it."""
        # ``dict(iter(tree))``, not ``dict(tree)``: a wrapped submodule may be called keys.
        # No public method or attribute here: a wrapped submodule may have its name.
        # Read through the attributes, so that ``functional_call`` on a model reaches them.
        for path in self._paths:
            branch, _, leaf = path.rpartition(".")
            node = self.get_submodule(branch)
            # Nobody calls a branch. What makes a weight before a call, as torch's pruning and its
            # older norms of weights do, is due here.
            for hook in node._forward_pre_hooks.values():
                if getattr(hook, "_tensor_name", getattr(hook, "name", None)) == leaf:
                    hook(node, ())
            yield path, getattr(node, leaf)

    def __getitem__(self, path: str) -> Tensor:
        """The tensor of a path."""
        if path not in self:
            raise KeyError(f"{path!r}, where there are: {', '.join(self._paths)}")
        return dict(iter(self))[path]

    def __contains__(self, path: object) -> bool:
        """Whether it is one of the paths."""
        return path in self._paths

    def __repr__(self) -> str:
        """Each path and shape on a line: the branches are bare modules, which print nothing."""
        shapes = {path: getattr(tensor, "shape", None) for path, tensor in self}
        lines = [
            f"  {path}: {'moved by another field' if shape is None else tuple(shape)}"
            for path, shape in shapes.items()
        ]
        return "\n".join(["Tree(", *lines, ")"]) if lines else "Tree()"


def trainable(value: Tensor) -> bool:
    """Whether what replaces a tensor is to be trained: a parameter as before, a bare tensor yes."""
    return value.requires_grad or not isinstance(value, nn.Parameter)


def scalar_time(t: float | Tensor) -> Tensor:
    """t as a tensor without axes; a Python number is kept in double precision."""
    if isinstance(t, Tensor):
        if t.ndim != 0:
            raise ValueError(
                f"t must be a number or a tensor without axes, got shape {tuple(t.shape)}; "
                "for many times at once use torch.func.vmap(field.weights_at)(times)"
            )
        return t
    if not math.isfinite(t):
        raise ValueError(f"t must be a finite number, got {t!r}")
    return torch.tensor(t, dtype=torch.float64, device="cpu")


def full_precision(like: Tensor) -> AbstractContextManager[Any]:
    """Without autocast: weights are computed in their own dtype, and cast where they are used."""
    kind = like.device.type
    # The meta device has no autocast. Entering torch's takes longer than asking, but an exported
    # program may run where it is on.
    if kind == "meta" or not (torch.is_autocast_enabled(kind) or traced()):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def kept(stages: Stages, key: Any, make: Callable[[], Tensor]) -> Tensor:
    """What ``make`` makes for these stages, made once."""
    if key in stages.memo:
        found: Tensor = stages.memo[key]
        return found
    with torch.inference_mode(False):  # what is kept must serve training too
        made = make()
    if type(made) is Tensor:  # while a model is exported it is a stand-in, useless afterwards
        stages.memo[key] = made
    return made


def basis_values(basis: Basis, stages: Stages, like: Tensor) -> Tensor:
    """The basis at all stages in the dtype and on the device of ``like``, made once per grid.

    Values are computed in float64 on the host: on a long grid single precision would lose the high
    frequencies, and a device copy a solve would be a host sync a solve.
    """
    if traced() and any(True for _ in basis.buffers()):
        # A tracer can't ask whether buffers have changed, so what they give is part of the graph.
        return basis.on(stages).to(device=like.device, dtype=like.dtype)
    key, exact = kept_values(basis, stages)
    there = (*key, like.device, like.dtype)
    return kept(stages, there, lambda: exact.to(device=like.device, dtype=like.dtype))


def kept_values(basis: Basis, stages: Stages) -> tuple[tuple[Any, ...], Tensor]:
    """The basis at all stages in float64, kept beside them, and under which key."""
    fingerprint = tuple((id(buffer), version(buffer)) for buffer in basis.buffers())
    key = (id(basis), fingerprint)
    if key not in stages.memo:
        with torch.inference_mode(False):
            values = basis.on(stages)
        if type(values) is not Tensor:  # a stand-in, as in ``kept``
            return key, values
        # All that the key names is kept beside the values: no id can be given to another meanwhile.
        stages.memo[key] = basis, list(basis.buffers()), values
    return key, stages.memo[key][2]


def squared(values: Tensor) -> Tensor:
    """|w|² of every number; unlike abs, it has second derivatives at zero."""
    return (values * values.conj()).real


def gathered(parameter: Tensor) -> Tensor:
    """All of a parameter of which each process has a part (a ``DTensor``); others as they are."""
    full = getattr(parameter, "full_tensor", None)
    return parameter if full is None else full()


class Reached(nn.Module):
    """Any function as a module with another one in it, for ``functional_call`` to reach."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """The function's value."""
        return function(*inputs)


def version(tensor: Tensor) -> int:
    """How often a tensor has been changed; those of inference mode don't count."""
    return 0 if tensor.is_inference() else tensor._version
