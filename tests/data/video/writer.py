"""Records in the exact format of BAIR's official files, written from the specification.

Slow and plain on purpose, with a CRC of its own, so that the reader is tested against something
else than itself.
"""

import struct

import numpy as np


def slow_crc32c(data):
    """Bit by bit through a table of bytes: the textbook form."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _entry(value):
    for _ in range(8):
        value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value


_TABLE = [_entry(value) for value in range(256)]


def slow_mask(crc):
    rotated = crc // 2**15 + crc % 2**15 * 2**17
    return (rotated + 0xA282EAD8) % 2**32


def frame(payload):
    """A payload as a TFRecord."""
    length = struct.pack("<Q", len(payload))
    return b"".join(
        [
            length,
            struct.pack("<I", slow_mask(slow_crc32c(length))),
            payload,
            struct.pack("<I", slow_mask(slow_crc32c(payload))),
        ]
    )


def varint(number):
    out = b""
    while number > 0x7F:
        out += bytes([number % 128 + 128])
        number //= 128
    return out + bytes([number])


def field(number, content):
    return varint(number * 8 + 2) + varint(len(content)) + content


def example(features):
    """A tf.train.Example of bytes, float32 arrays and int64 lists by key."""
    entries = b""
    for key, value in features.items():
        if isinstance(value, bytes):
            feature = field(1, field(1, value))
        elif isinstance(value, np.ndarray):
            feature = field(2, field(1, value.astype("<f4").tobytes()))
        else:
            feature = field(3, field(1, b"".join(varint(number) for number in value)))
        entries += field(1, field(1, key.encode()) + field(2, feature))
    return field(1, entries)


def features_of(main, aux1, action, position):
    """The features of one sequence: arrays whose first axis is the frame."""
    features = {}
    for t in range(len(main)):
        features[f"{t}/image_main/encoded"] = main[t].tobytes()
        features[f"{t}/image_aux1/encoded"] = aux1[t].tobytes()
        features[f"{t}/action"] = action[t]
        features[f"{t}/endeffector_pos"] = position[t]
    return features


def clip(seed, frames=30):
    """A seeded clip: images of two cameras, actions and positions."""
    generator = np.random.default_rng(seed)
    main, aux1 = generator.integers(0, 256, (2, frames, 64, 64, 3), dtype=np.uint8)
    return main, aux1, generator.normal(size=(frames, 4)), generator.normal(size=(frames, 3))
