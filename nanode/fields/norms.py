"""Batch norm inside a field.

Note *statistics per evaluation*: a field is evaluated many times a solve, on states whose
distribution changes with time, and once more each for the backward pass. One set of running
statistics would mix all of that. Here each evaluation of a solve has its own set, by stage index,
and only the first pass through it updates the set.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanode.doubles import in_double, widened
from nanode.fields.swap import StageAware
from nanode.fields.walk import parts_of, replaced
from nanode.stages import Stage
from nanode.tracing import traced


class BatchNorm(StageAware):
    r"""Batch norm with one set of statistics per evaluation of the solve.

    .. math:: y = \gamma \frac{x - \mu_i}{\sqrt{\sigma_i^2 + \epsilon}} + \beta

    Shapes: x is ``(batch, features, ...)``; ``running_mean`` and ``running_var`` are
    ``(evaluations, features)``, sized by the block that the field belongs to. In training mode
    :math:`\mu_i, \sigma_i` are the batch's own; in eval mode they are evaluation i's running ones.
    With a single evaluation this is ``nn.BatchNorm``. Before there is a block, a norm made by
    ``convert_norms`` has one row, which every evaluation starts from.

    Each process of a distributed run normalises by its own batch, as ``nn.BatchNorm`` does:
    statistics are not synchronised as ``nn.SyncBatchNorm``'s are.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self,
        features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
    ) -> None:
        super().__init__()
        self.features, self.eps, self.momentum, self.affine = features, eps, momentum, affine
        #: The times of the evaluations that the statistics belong to.
        self.times: tuple[float, ...] = ()
        #: How often they were moved: torch's own count leaves out what batch norm does.
        self.updates = self.reset_at = 0
        if affine:
            self.weight = nn.Parameter(torch.ones(features))
            self.bias = nn.Parameter(torch.zeros(features))
        else:
            self.register_parameter("weight", None)
            self.register_parameter("bias", None)
        self.register_buffer("running_mean", torch.zeros(0, features))
        self.register_buffer("running_var", torch.ones(0, features))

    def prepare(self, times: Sequence[float]) -> None:
        """Make room for evaluations at these times, carrying over statistics of an earlier grid.

        Between the times of the earlier grid statistics are interpolated linearly. One row without
        a time, as ``convert_norms`` leaves it, holds for all.
        """
        times = tuple(times)
        if self.fits(times):
            return
        # Under inference mode too: what is made there could never be trained.
        with torch.inference_mode(False):
            self._make_room(times)

    def _make_room(self, times: tuple[float, ...]) -> None:
        mean, var = (
            rows.clone() if rows.is_inference() else rows
            for rows in (self.running_mean, self.running_var)
        )
        if len(self.times) == len(mean) > 0:
            mean, var = (_interpolated(a, self.times, times) for a in (mean, var))
        elif len(mean) == 1:
            mean, var = (a.repeat(len(times), 1) for a in (mean, var))
        else:
            mean = mean.new_zeros(len(times), self.features)
            var = var.new_ones(len(times), self.features)
        self.running_mean, self.running_var, self.times = mean, var, times

    def fits(self, times: Sequence[float]) -> bool:
        """Whether the statistics belong to evaluations at these times, or such as round to them."""
        if tuple(times) == self.times:
            return True
        return len(times) == len(self.times) and all(map(self._belongs, range(len(times)), times))

    def _belongs(self, i: int | Tensor, time: float | Tensor) -> bool:
        """Whether the statistics of evaluation i are those of this time, up to rounding."""
        if i >= len(self.times):
            return False
        first, last = self.times[0], self.times[-1]
        near = 1e-6 * max(abs(first), abs(last))
        if len(self.times) > 1:  # never so far that another evaluation lies there
            near = min(near, abs(last - first) / len(self.times) / 8)
        return abs(float(time) - self.times[int(i)]) <= near

    def get_extra_state(self) -> Tensor:
        """The times, for the state dict: statistics alone don't say what they belong to."""
        return torch.tensor(self.times, dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Times that came with statistics; as many of another grid will be interpolated."""
        if len(state) == len(self.running_mean):
            self.times = tuple(state.tolist())

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        *others: Any,
    ) -> None:
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, *others
        )
        # Statistics without times are taken for those of the block's own grid.
        if (key := f"{prefix}_extra_state") in missing_keys:
            missing_keys.remove(key)

    def reset_parameters(self) -> None:
        """Affine back to ones and zeros."""
        if self.affine:
            nn.init.ones_(self.weight)
            nn.init.zeros_(self.bias)

    def reset_running_stats(self) -> None:
        """The statistics of every evaluation back to zeros and ones."""
        self.running_mean.zero_()
        self.running_var.fill_(1.0)
        self.reset_at = self.updates

    def forward(self, x: Tensor) -> Tensor:
        """Normalised x."""
        stage = self.stage
        if stage is not None and isinstance(stage.index, Tensor):
            return self._compiled(x, stage, stage.index)
        mean = var = None
        if stage is not None and stage.index >= 0:
            room = len(self.times)
            if not room or (self.training and stage.index >= room):
                raise ValueError(
                    f"this norm has statistics for {room} evaluations and was "
                    f"asked for number {stage.index}; solve through nanode.ODEBlock or "
                    "nanode.odeint, which make room for all of them"
                )
            if not self.training:
                mean, var = self.statistics(stage)
            elif stage.record:
                mean, var = self.running_mean[stage.index], self.running_var[stage.index]
                if not traced():
                    self.updates += 1
        elif not self.training:
            raise ValueError(
                "in eval mode this norm's statistics belong to the evaluations of a fixed grid; "
                "call the field through nanode.ODEBlock or nanode.odeint with a fixed-step "
                "solver, or use GroupNorm with adaptive solvers"
            )

        def normalised(mean: Tensor | None, var: Tensor | None) -> Tensor:
            return F.batch_norm(
                x, mean, var, self.weight, self.bias, self.training, self.momentum, self.eps
            )

        if not self.training or mean is None or var is None or not _vectorized(mean):
            return normalised(mean, var)
        # torch.vmap's rule for batch norm moves a copy of a table's row. A whole tensor it moves.
        moved = mean.clone(), var.clone()
        y = normalised(*moved)
        mean.copy_(moved[0])
        var.copy_(moved[1])
        return y

    def statistics(self, stage: Stage) -> tuple[Tensor, Tensor]:
        """The statistics of an evaluation; on another grid than theirs, interpolated in time."""
        i = stage.index
        if self._belongs(i, stage.time):
            return self.running_mean[i], self.running_var[i]
        time = [float(stage.time)]
        mean, var = self.running_mean, self.running_var
        return tuple(_interpolated(rows, self.times, time)[0] for rows in (mean, var))  # type: ignore[return-value]

    def _compiled(self, x: Tensor, stage: Stage, index: Tensor) -> Tensor:
        """The same with the evaluation's number as a tensor, so that one graph serves all."""
        if not self.training:
            mean = self.running_mean.index_select(0, index[None])[0]
            var = self.running_var.index_select(0, index[None])[0]
            scale = torch.rsqrt(var + self.eps)
            scale = scale if self.weight is None else scale * self.weight
            shift = -mean * scale if self.bias is None else self.bias - mean * scale
            return (x * _along(scale, x) + _along(shift, x)).to(x.dtype)
        if stage.record and x.numel():  # an empty batch has no statistics
            with torch.no_grad():
                axes = [axis for axis in range(x.ndim) if axis != 1]
                var, mean = torch.var_mean(widened(x), dim=axes, correction=0)
                self._update(index, mean, var, x.numel() // x.shape[1])
        # The compiler merges these statistics with the ones above.
        return F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)

    def _update(self, index: Tensor, mean: Tensor, var: Tensor, count: int) -> None:
        """Move the running statistics of one evaluation towards the batch's."""
        unbiased = var * (count / max(count - 1, 1))
        for running, value in ((self.running_mean, mean), (self.running_var, unbiased)):
            row = running.index_select(0, index[None])
            moved = torch.lerp(row, value[None].to(row.dtype), self.momentum)
            running.index_copy_(0, index[None], moved)

    def extra_repr(self) -> str:
        """Features and evaluations."""
        return f"{self.features}, evaluations={len(self.times)}"


def _vectorized(x: Tensor) -> bool:
    """Whether ``torch.vmap`` hides an axis of x, under whatever other transforms."""
    if not torch._C._are_functorch_transforms_active():
        return False
    while not torch._C._functorch.is_batchedtensor(x):
        if not torch._C._functorch.is_gradtrackingtensor(x):
            return False
        x = torch._C._functorch.get_unwrapped(x)
    return True


def _along(values: Tensor, x: Tensor) -> Tensor:
    """Values per feature, shaped to spread over x."""
    return values.view(1, -1, *[1] * (x.ndim - 2))


#: What ``convert_norms`` replaces.
CONVERTED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def convert_norms(module: nn.Module) -> nn.Module:
    """Replace every ``nn.BatchNorm`` that keeps statistics by ``nanode.BatchNorm``.

    Affine parameters are kept, and so are statistics: each evaluation starts from them. So a
    trained module is in eval mode what it was. ``nn.SyncBatchNorm`` and ``nn.InstanceNorm`` have no
    counterpart here and stay as they are.

    >>> import nanode
    >>> nanode.convert_norms(nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()))[0]
    BatchNorm(8, evaluations=0)
    """
    return replaced(module, CONVERTED, _converted)


def _converted(norm: Any) -> nn.Module:
    """One of torch's norms as one of ours; without statistics, as it is."""
    if not norm.track_running_stats:
        return norm  # type: ignore[no-any-return]
    if norm.momentum is None:
        raise ValueError("nanode.BatchNorm needs a number as momentum, got None")
    if type(norm).forward is not nn.modules.batchnorm._BatchNorm.forward:
        raise ValueError(
            f"{type(norm).__name__} does more than batch norm, by a forward of its own, which "
            "nanode.BatchNorm hasn't; split it into nn.BatchNorm and the rest"
        )
    own = BatchNorm(norm.num_features, norm.eps, norm.momentum, norm.affine)
    if norm.affine:
        own.weight, own.bias = norm.weight, norm.bias
    if norm.running_mean is not None:
        own.running_mean = norm.running_mean.detach()[None].clone()
        own.running_var = norm.running_var.detach()[None].clone()
    return own.train(norm.training)


def prepare_norms(module: nn.Module, times: Sequence[float]) -> None:
    """Make room for the evaluations at these times in every norm of a field.

    Norms in eval mode that have statistics keep them: they interpolate instead.
    """
    norms = norms_in(module)
    trained = (n.times for n in norms if n.training and n.momentum and n.updates > n.reset_at)
    if _apart(next(trained, ()), times):
        warnings.warn(
            "a BatchNorm that was trained over one interval is now trained over another one, and "
            "takes its statistics along: it keeps those of one. Solve over all of it at once (at= "
            "gives the states on the way), or use GroupNorm",
            stacklevel=4,
        )
    for norm in norms:
        if norm.training or not norm.times:
            norm.prepare(times)


def _apart(old: Sequence[float], new: Sequence[float]) -> bool:
    """Whether two stretches of time, none of them a point, have at most an end in common."""
    if not (old and new) or min(old) == max(old) or min(new) == max(new):
        return False
    return max(old) <= min(new) or max(new) <= min(old)


def norms_in(module: nn.Module) -> list[BatchNorm]:
    """Every norm with statistics per evaluation."""
    return [part for part in parts_of(module) if isinstance(part, BatchNorm)]


def _interpolated(rows: Tensor, old: Sequence[float], new: Sequence[float]) -> Tensor:
    """Rows at old times, linearly interpolated to new ones; rows of one time are averaged first."""
    times, where = np.unique(np.asarray(old), return_inverse=True)
    shares = np.stack([np.interp(np.asarray(new), times, unit) for unit in np.eye(len(times))], 1)
    # One product with the rows, by torch: its function transforms can't follow numpy.
    matrix = torch.from_numpy((shares / np.bincount(where))[:, where])
    wide = in_double(rows)
    return (matrix.to(wide.device) @ wide).to(rows)
