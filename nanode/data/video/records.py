"""Records of one fixed size in a TFRecord file, read by their number and verified each time.

A record is its length (8 bytes, little-endian), the masked CRC-32C of those 8 bytes, the payload,
and the masked CRC-32C of the payload (4 bytes each). TensorFlow is not needed.
"""

import os
import struct
from pathlib import Path
from typing import BinaryIO, final

from nanode.data.source import DataError
from nanode.data.video.crc import crc32c, masked

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
REMEDY = "Remove the file and unpack it again from the official archive"


@final
class Records:
    """The records of the file at ``path``, of which each has a payload of ``payload`` bytes.

    Since all have one size, record k begins at byte k · ``size``, and nothing before it is read.
    """

    def __init__(self, path: Path, payload: int) -> None:
        self.path = path
        self.payload = payload
        #: Bytes of a record with its frame.
        self.size = HEADER.size + payload + FOOTER.size
        self._count, rest = divmod(path.stat().st_size, self.size)
        with path.open("rb") as file:
            self._check_header(file, 0)
            if rest:
                # A record of another size, which makes the file's size wrong too, is named first.
                for index in range(1, self._count + (rest >= HEADER.size)):
                    self._check_header(file, index)
                raise self.fault(
                    self._count, f"the file ends after {rest:,} of its {self.size:,} bytes"
                )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> bytes:
        """The payload of record ``index``, whose header and checksums are right."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.path} has records 0 to {len(self) - 1}, not {index}")
        with self.path.open("rb") as file:
            self._check_header(file, index)
            payload = self._read(file, self.payload, index)
            (stored,) = FOOTER.unpack(self._read(file, FOOTER.size, index))
        self._compare("payload", payload, stored, index)
        return payload

    def fault(self, index: int, why: str) -> DataError:
        """The error for record ``index``, with its file and offset."""
        return DataError(
            f"{self.path} is not usable at offset {index * self.size:,} (record {index}): {why}. "
            f"{REMEDY}"
        )

    def _check_header(self, file: BinaryIO, index: int) -> None:
        """Read the header of record ``index``; the file is then at its payload."""
        file.seek(index * self.size)
        header = self._read(file, HEADER.size, index)
        length, stored = HEADER.unpack(header)
        self._compare("length", header[:8], stored, index)
        if length != self.payload:
            raise self.fault(
                index, f"wrong record size, expected {self.payload:,} bytes, found {length:,}"
            )

    def _read(self, file: BinaryIO, count: int, index: int) -> bytes:
        content = file.read(count)
        if len(content) != count:
            end = os.fstat(file.fileno()).st_size
            raise self.fault(index, f"the file ends at byte {end:,}, inside it")
        return content

    def _compare(self, what: str, content: bytes, stored: int, index: int) -> None:
        computed = masked(crc32c(content))
        if computed != stored:
            raise self.fault(
                index,
                f"damaged, the CRC of its {what} is 0x{computed:08x}, stored is 0x{stored:08x}",
            )
