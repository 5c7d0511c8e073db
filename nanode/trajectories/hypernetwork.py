"""Weights as the output of a small network of time: the paper's Hyper-NANODE."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nanode.bases.basis import checked_count, checked_interval
from nanode.stages import Side, Stages
from nanode.trajectories.trajectory import (
    Named,
    Trajectory,
    Tree,
    full_precision,
    scalar_time,
)

#: Activations of Ψ held at once, in numbers.
_CHUNK = 2**22


class Hypernetwork(Trajectory):
    r"""Each weight is one output of a shared network of its embedding and of time.

    .. math:: W_{ij}(t) = \Psi([v_{ij}, t])

    Shapes: ``embedding`` numbers per weight, stored flat as ``(embedding, numel)``; :math:`\Psi` has
    tanh layers of the widths in ``hidden``. By default :math:`\Psi([v, t]) = v_1 + \psi([v, t])`
    with :math:`\psi = 0` at the start and :math:`v_1` the module's own value: the field starts as
    the wrapped module, constant in time. With ``residual=False`` :math:`\Psi` is the bare network,
    scaled to the spread of each parameter at the start.

    The table of a solve takes numel × hidden activations a time. They are recomputed in the
    backward pass, by chunks of weights, and never held.

    >>> import nanode, torch
    >>> path = nanode.Hypernetwork({"weight": torch.eye(2)}, embedding=3, hidden=(16,))
    >>> torch.equal(path(0.3)["weight"], torch.eye(2))
    True
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        embedding: int = 1,
        hidden: Sequence[int] = (32,),
        residual: bool = True,
        interval: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__()
        if not parameters:
            raise ValueError("a hypernetwork needs at least one weight, got none")
        checked_count("embedding", embedding, least=1)
        if not hidden:
            raise ValueError("hidden must name at least one layer width, got none")
        for width in hidden:
            checked_count("a hidden width", width, least=1)
        self.shapes = {name: value.shape for name, value in parameters.items()}
        self.interval = checked_interval(interval)
        self.residual = residual
        vectors = {}
        for name, value in parameters.items():
            flat = value.detach().reshape(1, -1)
            others = torch.randn(embedding - 1, flat.shape[1]).to(flat)
            first = flat if residual else torch.randn_like(flat)
            vectors[name] = nn.Parameter(torch.cat([first, others]), value.requires_grad)
        self.embeddings = Tree(vectors)
        # Outputs of the bare network are brought to each parameter's own mean and spread.
        like = next(iter(parameters.values()))
        for name, statistic in (("mean", Tensor.mean), ("spread", _deviation)):
            numbers = [float(statistic(value.detach().double())) for value in parameters.values()]
            self.register_buffer(name, torch.tensor(numbers).to(like))
        widths = (embedding + 1, *hidden, 1)
        layers = [nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False)]
        if residual:
            nn.init.zeros_(layers[-1].weight)
            nn.init.zeros_(layers[-1].bias)
        self.layers = nn.ModuleList(layers).to(like)

    mean: Tensor
    spread: Tensor

    def forward(self, t: float | Tensor, side: Side = "right") -> Named:
        """Every weight at time t."""
        return {name: rows[0] for name, rows in self._at(scalar_time(t)[None]).items()}

    def table(self, stages: Stages) -> Named:
        """Every weight at every stage."""
        key = ("times", self.mean.device)
        if key not in stages.memo:
            times = torch.tensor([stage.time for stage in stages], dtype=torch.float64)
            stages.memo[key] = times.to(self.mean.device, self.mean.dtype)
        return self._at(stages.memo[key])

    def energy(self, m: int = 0) -> Tensor:
        r"""The sum over all weights of :math:`\int W(t)^2 dt`, by Gauss–Legendre quadrature."""
        if m != 0:
            raise ValueError(
                f"a hypernetwork's energy is known for m = 0 only, got m = {m}; "
                "smoothness penalties need an Expansion"
            )
        nodes, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(32))
        t0, t1 = self.interval
        times = t0 + (t1 - t0) * (nodes + 1) / 2
        total = [
            w.flatten(1).square().sum(1) @ weights.to(w) * (t1 - t0) / 2
            for w in self._at(times).values()
        ]
        return torch.stack(total).sum()

    def _at(self, times: Tensor) -> Named:
        times = times.to(self.mean)
        weights = {}
        for number, (name, vectors) in enumerate(self.embeddings.items()):
            chunk = max(1, _CHUNK // (len(times) * self.layers[0].out_features))
            parts = [
                checkpoint(self._psi, part, times, use_reentrant=False)
                if torch.is_grad_enabled()
                else self._psi(part, times)
                for part in vectors.split(chunk, dim=1)
            ]
            values = torch.cat(parts, dim=1)
            if self.residual:
                values = vectors[0] + values
            else:
                values = self.mean[number] + self.spread[number] * values
            weights[name] = values.view(-1, *self.shapes[name])
        return weights

    def _psi(self, vectors: Tensor, times: Tensor) -> Tensor:
        """ψ([v, t]) for every weight at every time: (embedding, n) and (times,) to (times, n)."""
        first, *others = self.layers
        # The first layer is linear in [v, t]: neither is copied to the size of the other.
        with full_precision(vectors):
            by_vector = first.weight[:, :-1] @ vectors + first.bias[:, None]
            h = by_vector + times[:, None, None] * first.weight[:, -1:]
            for layer in others:
                h = layer.weight @ torch.tanh(h) + layer.bias[:, None]
            return h[:, 0]


def _deviation(values: Tensor) -> Tensor:
    return values.std(correction=0)
