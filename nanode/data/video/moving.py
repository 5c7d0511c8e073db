"""Moving MNIST: digits that travel over a black frame and bounce off its borders.

Two laws of motion. *Stochastic* (E. Denton, R. Fergus (2018), Stochastic Video Generation with a
Learned Prior): whole-pixel speeds, drawn anew at every bounce. *Deterministic* (N. Srivastava,
E. Mansimov, R. Salakhutdinov (2015), Unsupervised Learning of Video Representations using LSTMs):
straight lines that are mirrored. Both are whole-number arithmetic for the whole batch on the
device: a sequence has the same bits everywhere, and nothing waits for the device.
"""

import functools
import math
from abc import abstractmethod
from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor

from nanode.data.video.clips import Clips, from_bytes, sent
from nanode.data.video.draws import below, draw, fraction, stream
from nanode.data.video.resize import enlarged
from nanode.values import checked_count

SIZE = 64
#: Binary places of a position between 0 and 1, and the 1 itself.
PLACES = 48
ONE = 1 << PLACES
#: Directions, and the way made in a frame.
ANGLES = 1 << 16
STEP = 0.1


class Moving(Clips):
    """Sequences that are made when asked for: ``count`` of them are an epoch, any index is one.

    ``images`` are digits as bytes ``(M, n, n)``, enlarged to ``side`` pixels; ``digits`` of them
    move in a sequence. ``seed`` and ``name`` choose the random stream. A longer clip begins with
    the shorter one.
    """

    #: A digit's side in pixels.
    side: ClassVar[int]
    #: How digits that overlap are put together; the result is clipped at 1.
    overlap: ClassVar[Literal["sum", "amax"]]

    def __init__(
        self,
        name: str,
        images: Tensor,
        *,
        count: int,
        digits: int = 2,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        for what, value, least in (("count", count, 1), ("digits", digits, 1), ("seed", seed, 0)):
            checked_count(what, value, least)
        self.name = name
        self.channels, self.size, self.length = 1, SIZE, None
        self.device = torch.device(device)
        self.digits = digits
        self._count = count
        self._stream = stream(seed, name)
        self._images = enlarged(images, self.side).flatten(1).to(device)
        pixels = torch.arange(self.side, device=device)
        self._pixels = (pixels[:, None] * SIZE + pixels).flatten()

    def __len__(self) -> int:
        return self._count

    def paths(self, indices: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Which digits the sequences show, and the upper left corner (y, x) of each in each frame.

        Shapes: ``(N, digits)`` and ``(N, T, digits, 2)``, both int64.
        """
        sequences = draw(self._stream, sent(indices, self.device))
        digits = draw(sequences[:, None], torch.arange(self.digits, device=self.device))
        numbers = torch.arange(self._draws(length), device=self.device)
        drawn = draw(digits[..., None], numbers)
        return below(drawn[..., 0], len(self._images)), self._corners(drawn[..., 1:], length)

    def _frames(self, indices: Tensor, length: int) -> Tensor:
        which, corners = self.paths(indices, length)
        count = len(indices)
        places = (corners[..., 0] * SIZE + corners[..., 1])[..., None] + self._pixels
        ink = self._images[which].float()[:, None].expand(-1, length, -1, -1)
        frames = torch.zeros(count, length, SIZE * SIZE, dtype=torch.float32, device=self.device)
        # Whole numbers below 2²⁴: the order of the sums, which a GPU leaves open, can't be seen.
        frames.scatter_reduce_(2, places.flatten(2), ink.flatten(2), self.overlap)
        return from_bytes(frames.clamp_(max=255)).reshape(count, length, 1, SIZE, SIZE)

    @abstractmethod
    def _draws(self, length: int) -> int:
        """Draws that a digit needs for ``length`` frames, the one that chooses it included."""

    @abstractmethod
    def _corners(self, drawn: Tensor, length: int) -> Tensor:
        """The corners ``(N, T, digits, 2)`` that come of the other draws ``(N, digits, k)``."""


@final
class Stochastic(Moving):
    """Digits of 32 pixels that leave a border with a new speed; they add where they overlap.

    A digit begins at 0..31 with a speed of -4..4 pixels a frame, each way. Before a frame, a digit
    above 0 or at 32 or below is put to 0 or 31, its vertical speed is drawn from the four that lead
    away from that border, and the horizontal one from -4..4; then the same with the directions
    exchanged.

    Draws: digit, x, y, dx, dy; then four for each frame after the first, used or not: dy away from
    the border, dx; dx away from the border, dy.

    >>> from nanode.data.video import load
    >>> which, corners = load("moving-digits").train.paths(torch.arange(100), 50)
    >>> corners.shape, int(corners.min()), int(corners.max())
    (torch.Size([100, 50, 2, 2]), 0, 31)
    """

    side: ClassVar[int] = 32
    overlap: ClassVar[Literal["sum", "amax"]] = "sum"

    def _draws(self, length: int) -> int:
        return 5 + 4 * (length - 1)

    def _corners(self, drawn: Tensor, length: int) -> Tensor:
        x, y = (below(drawn[..., k], SIZE - self.side) for k in (0, 1))
        dx, dy = (below(drawn[..., k], 9) - 4 for k in (2, 3))
        later = drawn[..., 4:].unflatten(-1, (length - 1, 4))
        away, free = below(later[..., 0::2], 4) + 1, below(later[..., 1::2], 9) - 4
        corners = [torch.stack([y, x], -1)]
        for t in range(length - 1):
            y, x = y + dy, x + dx
            y, dy, dx = self._bounce(y, dy, dx, away[..., t, 0], free[..., t, 0])
            x, dx, dy = self._bounce(x, dx, dy, away[..., t, 1], free[..., t, 1])
            corners.append(torch.stack([y, x], -1))
        return torch.stack(corners, 1)

    def _bounce(
        self, at: Tensor, speed: Tensor, across: Tensor, away: Tensor, free: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The place, the speed and the speed across, all changed where a border was passed."""
        low, high = at < 0, at >= SIZE - self.side
        speed = torch.where(low, away, torch.where(high, -away, speed))
        return at.clamp(0, SIZE - self.side - 1), speed, torch.where(low | high, free, across)


@final
class Deterministic(Moving):
    """Digits of 28 pixels on straight lines, mirrored at the borders; the brighter one is seen.

    A digit begins anywhere in [0, 1]² and moves by 0.1 at a random angle, already before the first
    frame. What leaves [0, 1] is put on the border and its speed across it changes sign. Places
    times 36, rounded down, are pixels.

    Places count in 2⁻⁴⁸, an angle is one of 2¹⁶ (after 20 frames, two neighbours are 0.01 pixels
    apart): no sine is taken on the device, where its last bit would be another.

    Draws: digit, x, y, angle.
    """

    side: ClassVar[int] = 28
    overlap: ClassVar[Literal["sum", "amax"]] = "amax"

    def _draws(self, length: int) -> int:
        return 4

    def _corners(self, drawn: Tensor, length: int) -> Tensor:
        place = torch.stack([fraction(drawn[..., k], PLACES) for k in (1, 0)], -1)
        step = _steps(self.device)[below(drawn[..., 2], ANGLES)]
        corners = []
        for _ in range(length):
            place = place + step
            step = torch.where((place <= 0) | (place >= ONE), -step, step)
            place = place.clamp(0, ONE)
            corners.append((place * (SIZE - self.side)) >> PLACES)
        return torch.stack(corners, 1)


@functools.cache
def _steps(device: torch.device) -> Tensor:
    """The step (y, x) in each direction, in units of 2⁻⁴⁸: int64 ``(ANGLES, 2)``."""
    angles = np.arange(ANGLES) * (2 * math.pi / ANGLES)
    steps = np.stack([np.sin(angles), np.cos(angles)], 1) * (STEP * ONE)
    return torch.from_numpy(np.rint(steps).astype(np.int64)).to(device)
