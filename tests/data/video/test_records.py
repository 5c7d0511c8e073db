"""Records by number, each verified: round trips and every way of being damaged."""

import pytest

from nanode.data import DataError
from nanode.data.video import Records
from nanode.data.video.example import MalformedError, byte_features
from tests.data.video.writer import example, field, frame, varint

PAYLOADS = [bytes([number]) * 100 for number in range(4)]
SIZE = 116  # 8 + 4 + 100 + 4


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "some.tfrecords"
    path.write_bytes(b"".join(frame(payload) for payload in PAYLOADS))
    return path


def test_any_record_at_once(path):
    records = Records(path, 100)
    assert len(records) == 4
    assert records.size == SIZE
    assert [records[index] for index in (2, 0, 3, 1)] == [PAYLOADS[k] for k in (2, 0, 3, 1)]
    for outside in (4, -1):
        with pytest.raises(IndexError, match=f"records 0 to 3, not {outside}"):
            records[outside]


@pytest.mark.parametrize(
    ("byte", "what"), [(0, "length"), (7, "length"), (8, "length"), (12, "payload"), (115, "pay")]
)
@pytest.mark.parametrize("index", [1, 3])
def test_a_flipped_byte(path, byte, what, index):
    content = bytearray(path.read_bytes())
    content[index * SIZE + byte] ^= 0x10
    path.write_bytes(content)
    records = Records(path, 100)
    message = rf"some\.tfrecords is not usable at offset {index * SIZE} .*CRC of its {what}.*Remove"
    with pytest.raises(DataError, match=message):
        records[index]
    assert records[0] == PAYLOADS[0]  # what is whole can be read


def test_a_flipped_byte_in_the_first_header(path):
    path.write_bytes(b"\xff" + path.read_bytes()[1:])
    with pytest.raises(DataError, match=r"offset 0 .*CRC of its length"):
        Records(path, 100)


@pytest.mark.parametrize("left", [SIZE + 5, SIZE + 50, 2 * SIZE - 1])
def test_a_truncated_file(path, left):
    path.write_bytes(path.read_bytes()[:left])
    message = rf"some\.tfrecords .*offset 116 \(record 1\): the file ends after {left - SIZE} of"
    with pytest.raises(DataError, match=message):
        Records(path, 100)


@pytest.mark.parametrize("left", [0, 5])
def test_a_file_without_a_whole_header(path, left):
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(DataError, match=rf"offset 0 \(record 0\): the file ends at byte {left},"):
        Records(path, 100)


def test_a_file_cut_after_it_was_opened(path):
    records = Records(path, 100)
    path.write_bytes(path.read_bytes()[: SIZE + 50])
    with pytest.raises(DataError, match=r"offset 116 .*ends at byte 166, inside it"):
        records[1]


def test_a_wrong_record_size(path):
    with pytest.raises(DataError, match=r"offset 0 .*wrong record size, expected 99 .* found 100"):
        Records(path, 99)


def test_a_wrong_record_size_further_on(path):
    """Two records of 42 bytes take the place of one: all sizes add up."""
    halves = frame(bytes(42)) + frame(bytes(42))
    assert len(halves) == SIZE
    path.write_bytes(frame(PAYLOADS[0]) + halves + frame(PAYLOADS[2]))
    records = Records(path, 100)
    with pytest.raises(DataError, match=r"offset 116 .*wrong record size, .* found 42"):
        records[1]
    assert records[2] == PAYLOADS[2]


@pytest.mark.parametrize("index", [1, 3])
@pytest.mark.parametrize("other", [30, 99, 130])
def test_a_wrong_record_size_that_changes_the_file_s(path, index, other):
    """It is named where it is, not as the end of the file."""
    parts = [frame(payload) for payload in PAYLOADS]
    parts[index] = frame(bytes(other))
    path.write_bytes(b"".join(parts))
    message = rf"offset {index * SIZE} \(record {index}\): wrong record size, .* found {other}\."
    with pytest.raises(DataError, match=message):
        Records(path, 100)


# ---- examples


def test_features_come_back_in_any_order():
    features = {"0/image/encoded": b"\x00" * 300, "0/action": [1, 2, 300], "1/x": b"", "é": b"y"}
    for keys in (list(features), list(features)[::-1]):
        payload = example({key: features[key] for key in keys})
        found = {key: bytes(value) for key, value in byte_features(memoryview(payload)).items()}
        assert found == {"0/image/encoded": b"\x00" * 300, "1/x": b"", "é": b"y"}


def test_unknown_fields_are_passed_over():
    other = varint(9 * 8 + 0) + varint(2**40) + varint(9 * 8 + 1) + bytes(8)
    other += varint(9 * 8 + 5) + bytes(4) + field(9, b"abc")
    payload = other + example({"k": b"v"}) + other
    assert bytes(byte_features(memoryview(payload))["k"]) == b"v"


def test_lists_of_several_values_are_not_one():
    entry = field(1, b"k") + field(2, field(1, field(1, b"a") + field(1, b"b")))
    assert byte_features(memoryview(field(1, field(1, entry)))) == {}


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"\xff" * 20, "a number does not end"),
        (b"\x0a", "a number does not end"),
        (b"\x0a\x05abc", "field 1 is longer than its message"),
        (b"\x09abc", "field 1 is longer"),
        (b"\x0b", "field 1 is of unknown type 3"),
    ],
)
def test_what_is_no_example(payload, message):
    with pytest.raises(MalformedError, match=message):
        byte_features(memoryview(payload))
