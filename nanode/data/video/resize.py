"""Digits enlarged, the same to the last bit everywhere."""

import torch
from torch import Tensor

#: Images at once: the work space stays below 100 MB.
CHUNK = 4096


def enlarged(images: Tensor, side: int) -> Tensor:
    r"""Square images at another side, by linear interpolation between pixel centres.

    Output pixel i of m lies at :math:`((2i + 1) n - m) / 2m` in an input of n: weights are whole
    multiples of 1/2m, so everything is counted in whole numbers (in float64, whose products no
    setting makes coarser) and rounded once, half up. Pillow's bilinear filter rounds a second
    time, between rows and columns: it differs by one level at most.

    Shapes: bytes ``(M, n, n)`` to bytes ``(M, side, side)``.

    >>> enlarged(torch.tensor([[[0, 200], [0, 200]]], dtype=torch.uint8), 4)[0, 0]
    tensor([  0,  50, 150, 200], dtype=torch.uint8)
    """
    n = images.shape[-1]
    if side < n:
        raise ValueError(f"expected a side of at least {n} pixels, got {side}")
    weights = torch.zeros(side, n, dtype=torch.float64, device=images.device)
    for i in range(side):
        whole, part = divmod((2 * i + 1) * n - side, 2 * side)
        weights[i, max(whole, 0)] += 2 * side - part
        weights[i, min(whole + 1, n - 1)] += part
    unit = 4 * side * side
    return torch.cat(
        [
            ((weights @ chunk.double() @ weights.T).int() + unit // 2).floor_divide(unit).byte()
            for chunk in images.split(CHUNK)
        ]
    )
