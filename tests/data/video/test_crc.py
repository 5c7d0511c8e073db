"""CRC-32C against published values and the textbook form."""

import numpy as np
import pytest

from nanode.data.video.crc import crc32c, masked
from tests.data.video.writer import slow_crc32c, slow_mask

#: The check value of the catalogue of CRCs, and those of RFC 3720, B.4.
PUBLISHED = [
    (b"123456789", 0xE3069283),
    (b"", 0),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


@pytest.mark.parametrize(("data", "expected"), PUBLISHED)
def test_published_values(data, expected):
    assert crc32c(data) == expected
    assert slow_crc32c(data) == expected


def test_every_length_agrees_with_the_textbook():
    data = np.random.default_rng(0).integers(0, 256, 300, dtype=np.uint8).tobytes()
    for length in range(len(data)):
        assert crc32c(data[:length]) == slow_crc32c(data[:length]), length


@pytest.mark.parametrize("length", [4096, 65_535, 100_001])
def test_longer_ones(length):
    data = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8).tobytes()
    assert crc32c(data) == slow_crc32c(data)


def test_the_mask():
    for crc in (0, 1, 0x8000, 0xE3069283, 0xFFFFFFFF):
        assert masked(crc) == slow_mask(crc)
