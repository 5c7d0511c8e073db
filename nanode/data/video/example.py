"""The part of protocol buffers that a ``tf.train.Example`` needs, as far as images are asked for.

An Example holds Features (field 1), which hold map entries (field 1) of a key (field 1) and a
Feature (field 2); a Feature holds a list of bytes (field 1), of floats (2) or of int64 (3).
"""

from collections.abc import Iterator

#: How a field is encoded: varint, 8 bytes, bytes with their length, 4 bytes.
VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5


class MalformedError(ValueError):
    """Bytes that are no Example; the message says why."""


def byte_features(example: memoryview) -> dict[str, memoryview]:
    """The features of an Example that are one value of bytes, by key; nothing is copied.

    >>> example = bytes.fromhex("0a0d 0a0b 0a016b 1206 0a04 0a02 6869")
    >>> {key: bytes(value) for key, value in byte_features(memoryview(example)).items()}
    {'k': b'hi'}
    """
    found = {}
    for features in _fields(example, 1):
        for entry in _fields(features, 1):
            key = b"".join(_fields(entry, 1)).decode(errors="replace")
            values = [
                value
                for feature in _fields(entry, 2)
                for items in _fields(feature, 1)
                for value in _fields(items, 1)
            ]
            if len(values) == 1:
                found[key] = values[0]
    return found


def _fields(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """The contents of a message's fields of number ``wanted`` that are bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == BYTES:
            length, at = _varint(message, at)
        elif kind == VARINT:
            length = _varint(message, at)[1] - at
        elif kind in (EIGHT, FOUR):
            length = 8 if kind == EIGHT else 4
        else:
            raise MalformedError(f"field {number} is of unknown type {kind}")
        if at + length > len(message):
            raise MalformedError(f"field {number} is longer than its message")
        if number == wanted and kind == BYTES:
            yield message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, lowest first, and where it ends."""
    value = 0
    for place in range(10):
        if at + place >= len(message):
            break
        value |= (message[at + place] & 0x7F) << (7 * place)
        if message[at + place] < 0x80:
            return value, at + place + 1
    raise MalformedError("a number does not end")
