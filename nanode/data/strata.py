"""A share of every class, chosen by a rule that depends on no random number generator."""

import hashlib
from numbers import Integral

import torch
from torch import Tensor


def stratified(labels: Tensor, count: int, seed: int = 0) -> Tensor:
    r"""Indices, ascending, of ``count`` items with as many of each class as its share.

    Class c of :math:`N_c` items among N gives :math:`\lfloor \mathrm{count}\,N_c/N \rfloor`, and
    the largest remainders one more. Within a class the items with the smallest hash of
    (seed, index) are taken: generators may change between versions of a library, hashes do not,
    and the images that a choice was made on must stay the same images.

    >>> labels = torch.tensor([0, 1] * 6)
    >>> chosen = stratified(labels, 4)
    >>> torch.bincount(labels[chosen])
    tensor([2, 2])
    """
    if not (isinstance(count, Integral) and 0 < count < len(labels)):
        raise ValueError(
            f"expected to hold out between 1 and {len(labels) - 1} of {len(labels)} images, got "
            f"{count}"
        )
    members: dict[int, list[int]] = {}
    for index, label in enumerate(labels.tolist()):
        members.setdefault(label, []).append(index)
    shares = {label: divmod(count * len(rows), len(labels)) for label, rows in members.items()}
    missing = count - sum(whole for whole, _ in shares.values())
    extra = sorted(shares, key=lambda label: (-shares[label][1], label))[:missing]
    chosen = []
    for label, rows in members.items():
        share = shares[label][0] + (label in extra)
        chosen += sorted(rows, key=lambda index: _rank(seed, index))[:share]
    return torch.tensor(sorted(chosen), dtype=torch.int64, device="cpu")


def _rank(seed: int, index: int) -> bytes:
    return hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=16).digest()
