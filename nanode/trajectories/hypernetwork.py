"""Weights as the output of a small network of time: the paper's Hyper-NANODE."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nanode.bases.basis import checked_interval, numbers
from nanode.bases.quadrature import gauss
from nanode.stages import Side, Stages
from nanode.trajectories.initial import spread
from nanode.trajectories.trajectory import (
    Named,
    Trajectory,
    Tree,
    full_precision,
    kept,
    scalar_time,
    squared,
    trainable,
)
from nanode.values import checked_count

#: Activations of Ψ held at once, in numbers.
_CHUNK = 2**22


class Hypernetwork(Trajectory):
    r"""Each weight is one output of a shared network of its embedding and of time.

    .. math:: W_{ij}(t) = \Psi([v_{ij}, t])

    Shapes: ``embedding`` numbers a weight, stored flat as ``(embedding, numel)``; :math:`\Psi` has
    tanh layers of the widths in ``hidden``. By default
    :math:`\Psi([v, t]) = v_1 + \psi([v, t]) / \sqrt{n h}` for a parameter of :math:`n` weights and
    a last layer of width :math:`h`, with :math:`\psi = 0` at the start and :math:`v_1` the module's
    own value: the field starts as the wrapped module, constant in time, and a step of that layer
    moves weights no farther than about their own. Trained by SGD such weights hardly move in time
    (by 1 % of their size on digits); those of an ``Expansion`` do. With ``residual=False``
    :math:`\Psi` is the bare network, scaled to the spread of each parameter at the start.

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
        if frozen := [name for name, value in parameters.items() if not trainable(value)]:
            raise ValueError(
                "all weights of a hypernetwork move by layers that they share, so that what "
                f"doesn't require grad wouldn't stay as it is: {', '.join(frozen)}. Leave it "
                "constant (overrides={name: None}), or freeze the field as a whole afterwards"
            )
        checked_count("embedding", embedding, least=1)
        if isinstance(hidden, int) or not hidden:
            raise ValueError(f"hidden must be layer widths, such as (32,); got {hidden!r}")
        for width in hidden:
            checked_count("a hidden width", width, least=1)
        self.shapes = {name: value.shape for name, value in parameters.items()}
        self.interval = checked_interval(interval)
        self.residual = residual
        vectors = {}
        for name, value in parameters.items():
            flat = value.detach().reshape(1, value.numel())
            others = torch.randn(embedding - 1, flat.shape[1]).to(flat)
            first = flat if residual else torch.randn_like(flat)
            vectors[name] = nn.Parameter(torch.cat([first, others]))
        self.embeddings = Tree(vectors)
        # Outputs of the bare network are brought to each parameter's own mean and spread.
        like = next(iter(parameters.values()))
        for name, statistic in (("mean", torch.mean), ("spread", spread)):
            each = [statistic(value.detach()).to(like) for value in parameters.values()]
            self.register_buffer(name, torch.stack(each))
        self.width = max(hidden)
        widths = (embedding + 1, *hidden, 1)
        layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
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
        return self._at(self._times(stages))

    def prepare(self, stages: Stages) -> None:
        """The times, as the network takes them."""
        self._times(stages)

    def _times(self, stages: Stages) -> Tensor:
        key = ("times", self.mean.device, self.mean.dtype)

        def times() -> Tensor:
            exact = torch.tensor(numbers(stages), dtype=torch.float64, device="cpu")
            return exact.to(self.mean.device, self.mean.dtype)

        return kept(stages, key, times)

    def energy(self, m: int = 0) -> Tensor:
        r"""The sum over all weights of :math:`\int W(t)^2 dt`, by Gauss–Legendre quadrature."""
        if m != 0:
            raise ValueError(
                f"a hypernetwork's energy is known for m = 0 only, got m = {m}; "
                "smoothness penalties need an Expansion"
            )
        times, weights = gauss(self.interval, 32)
        total = []
        for w in self._at(times).values():
            squares = squared(w).reshape(len(times), w[0].numel()).sum(1)
            total.append(squares @ weights.to(squares))
        return torch.stack(total).sum()

    def _at(self, times: Tensor) -> Named:
        times = times.to(self.mean)
        # Passed to the checkpoint, not read in it: under ``functional_call`` the modules hold other
        # tensors by the time of the backward pass.
        layers = list(self.layers.parameters())
        # What is recomputed under torch.func's transforms would meet tensors of one that has ended.
        recomputed = torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()
        weights = {}
        for number, (name, vectors) in enumerate(self.embeddings):
            chunk = max(1, _CHUNK // (max(1, len(times)) * self.width))
            parts = [
                checkpoint(
                    _psi, part, times, *layers, use_reentrant=False, preserve_rng_state=False
                )
                if recomputed
                else _psi(part, times, *layers)
                for part in vectors.split(chunk, dim=1)
            ]
            values = torch.cat(parts, dim=1)
            if self.residual:
                # A step of each of the h moves all n at once. Undivided, at a rate that suits a
                # weight by itself, it drowns them in what they have in common.
                values = vectors[0] + values / (vectors.shape[1] * layers[-2].shape[1]) ** 0.5
            else:
                values = self.mean[number] + self.spread[number] * values
            weights[name] = values.view(len(times), *self.shapes[name])
        return weights


def _psi(vectors: Tensor, times: Tensor, *layers: Tensor) -> Tensor:
    """ψ([v, t]) for every weight at every time: (embedding, n) and (times,) to (times, n)."""
    (first, bias), *others = zip(layers[::2], layers[1::2], strict=True)
    # The first layer is linear in [v, t]: neither is copied to the size of the other.
    with full_precision(vectors):
        by_vector = first[:, :-1] @ vectors + bias[:, None]
        h = by_vector + times[:, None, None] * first[:, -1:]
        for weight, bias in others:
            h = weight @ torch.tanh(h) + bias[:, None]
        return h[:, 0]
