"""Random numbers by counting: draw n of a stream is a hash of (stream, n), not the next of a state.

Nothing is kept between draws, so sequence i of a data set is the same whatever batch asks for it,
in whatever order and on whatever device: all of it is int64 arithmetic modulo 2⁶⁴.

The hash is SplitMix64 (G. Steele, D. Lea, C. Flood (2014), Fast Splittable Pseudorandom Number
Generators), whose output passes BigCrush: draw n of stream s is ``mix(s + (n + 1) γ)``. A draw is
itself the start of another stream, which is how a data set splits into sequences and a sequence
into digits. Two starts are 64-bit hashes: among a million sequences of a thousand draws, the
chance that any two share a draw is below 1e-4.
"""

import hashlib

from torch import Tensor


def _signed(word: int) -> int:
    """A 64-bit word as int64 holds it."""
    return word - (1 << 64) if word >> 63 else word


GAMMA = _signed(0x9E3779B97F4A7C15)
FIRST = _signed(0xBF58476D1CE4E5B9)
SECOND = _signed(0x94D049BB133111EB)


def stream(seed: int, purpose: str) -> int:
    """The start of a stream of its own for each (seed, purpose)."""
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return _signed(int.from_bytes(digest, "big"))


def draw(start: int | Tensor, number: Tensor) -> Tensor:
    """Draw ``number`` of the streams that begin at ``start``: 64 random bits as int64.

    Shapes: both int64, broadcast together.

    >>> import torch
    >>> [hex(value % 2**64) for value in draw(0, torch.arange(2)).tolist()]
    ['0xe220a8397b1dcdaf', '0x6e789e6aa1b965f4']
    """
    z = start + GAMMA * (number + 1)
    z = (z ^ _shifted(z, 30)) * FIRST
    z = (z ^ _shifted(z, 27)) * SECOND
    return z ^ _shifted(z, 31)


def below(bits: Tensor, count: int) -> Tensor:
    r"""Draws as whole numbers from 0 to ``count`` - 1, below 2³¹.

    The upper 32 bits are a fraction of ``count``, rounded down: no value is likelier than another
    by more than ``count`` / 2³².

    >>> import torch
    >>> below(torch.tensor([0, -1, 2**62]), 100)
    tensor([ 0, 99, 25])
    """
    return (_shifted(bits, 32) * count) >> 32


def fraction(bits: Tensor, places: int) -> Tensor:
    """Draws as fractions: whole numbers of 0 to 2**places - 1, to be divided by 2**places.

    >>> import torch
    >>> fraction(torch.tensor([0, -1, 2**62]), 3)
    tensor([0, 7, 2])
    """
    return _shifted(bits, 64 - places)


def _shifted(z: Tensor, by: int) -> Tensor:
    """A right shift that brings in zeros; that of int64 repeats the sign."""
    return (z >> by) & ((1 << (64 - by)) - 1)
