"""CRC-32C (Castagnoli), as TFRecord files use it, in NumPy.

A CRC is linear: the register after bytes A then B is that after A, moved past as many zero bytes
as B has, plus (exclusive or) that after B from zero. So all neighbouring words are joined at once,
then all neighbouring pairs, and so on: log₂ n array operations, none of them per byte. Moving past
2ᵏ zero bytes is a linear map of 32 bits, held as a table for each half of them.
"""

import functools

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

#: The polynomial x³² + x²⁸ + x²⁷ + … + 1, bits reversed.
POLYNOMIAL = 0x82F63B78
HALF = np.uint32(16)
ONES = np.uint32(0xFFFFFFFF)


def crc32c(data: bytes | NDArray[np.uint8]) -> int:
    """The CRC-32C of some bytes.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    values = np.frombuffer(data, np.uint8)
    # Zeros in front leave a register of zero as it is.
    padded = np.zeros(max(4, -(-len(values) // 4) * 4), np.uint8)
    padded[len(padded) - len(values) :] = values
    words = padded.view("<u4").astype(np.uint32, copy=False)
    level = 2  # a word is 2² bytes
    while len(words) > 1:
        if len(words) % 2:
            words = np.concatenate([np.zeros(1, np.uint32), words])
        words = _moved(words[0::2], level) ^ words[1::2]
        level += 1
    # The register begins with ones instead of zeros: what becomes of them is added.
    begin = np.full(1, ONES)
    for place in range(len(values).bit_length()):
        if len(values) >> place & 1:
            begin = _moved(begin, place)
    return int((_moved(words, 2) ^ begin ^ ONES)[0])


def masked(crc: int) -> int:
    """A CRC as it is stored: turned and shifted, since a CRC over a CRC tells little.

    >>> hex(masked(0xE3069283))
    '0xc78ab0e5'
    """
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _moved(words: Words, level: int) -> Words:
    """Registers moved past 2**level zero bytes."""
    low, high = _tables(level)
    # take is a third faster than brackets, and two tables of 2¹⁶ four times faster than four of 2⁸.
    return low.take(words & np.uint32(0xFFFF)) ^ high.take(words >> HALF)


@functools.cache
def _tables(level: int) -> tuple[Words, Words]:
    """What each value of a register's lower and upper half becomes, past 2**level zero bytes."""
    values = np.arange(1 << 16, dtype=np.uint32)
    if level:
        # Twice as far is the same again.
        low, high = (
            _moved(_moved(half, level - 1), level - 1) for half in (values, values << HALF)
        )
        return low, high
    return _past_a_byte(values), _past_a_byte(values << HALF)


def _past_a_byte(words: Words) -> Words:
    for _ in range(8):
        words = (words >> np.uint32(1)) ^ (words & np.uint32(1)) * np.uint32(POLYNOMIAL)
    return words
