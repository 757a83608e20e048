"""A segment's two sparse indexes, in Kafka's formats: ``.index`` and ``.timeindex``.

Both live in memory as arrays and on disk as big-endian entries, offsets relative to the segment's base:

* offset index, 8 bytes: the *last* offset of a batch (int32), the batch's position in the log file (int32);
* time index, 12 bytes: the highest timestamp so far (int64), the last offset of the batch that brought it (int32).
  Every record with a higher timestamp than an entry's comes after the entry's offset.

The active segment's indexes are in memory only: after a crash they are rebuilt from the log anyway. A file is written
once the segment is closed, and taken away when the segment is opened again and closed anew: a file that is there is
whole and right, one that is missing is made anew. Those of closed segments are loaded when first needed and may be
unloaded again.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import ClassVar

from crc32c import crc32c

from raylog.broker.storage.disk.files import FileSystem, read_bytes, remove_file, write_atomically
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.ids import NO_TIMESTAMP, FilePosition, Offset, TimestampMs

Columns = tuple["array[int]", "array[int]"]
"""Keys, which grow, and what they lead to. Appended values first, so that readers need no lock."""


Sum = tuple[int, int]
"""Length and CRC-32C of a file."""


class _Index:
    """What both indexes share: two growing columns, in memory or on disk."""

    ENTRY_SIZE: ClassVar[int]

    def __init__(self, fs: FileSystem, path: Path, base_offset: Offset) -> None:
        self.path = path
        self._fs = fs
        self._base = base_offset
        self._columns: Columns | None = None
        self._saved = False
        self._sum: Sum = (0, 0)
        """What the saved file must be."""

    def _columns_in_memory(self) -> Columns:
        columns = self._columns
        if columns is None:
            columns = self._columns = self._decode(self._checked(read_bytes(self._fs, self.path)))
        return columns

    def _checked(self, data: bytes | None) -> bytes:
        if data is None or (len(data), crc32c(data)) != self._sum:
            raise CorruptMessage(f"{self.path} is missing or damaged")
        return data

    @property
    def is_loaded(self) -> bool:
        """Whether it is in memory: else the next look-up reads its file."""
        return self._columns is not None

    def __len__(self) -> int:
        return len(self._columns_in_memory()[0])

    def size_bytes(self) -> int:
        """The size on disk, once saved."""
        return len(self) * self.ENTRY_SIZE

    def clear(self) -> None:
        """Begin anew, in memory."""
        self._columns = self._decode(b"")
        self._saved = False

    def save(self) -> Sum:
        """Write the entries, durably and all or none; no work when they are there already."""
        if not self._saved:
            data = self._encode(self._columns_in_memory())
            write_atomically(self._fs, self.path, data)
            self._saved, self._sum = True, (len(data), crc32c(data))
        return self._sum

    def unlink(self) -> None:
        """Delete the file, if there is one; :meth:`save` writes it anew."""
        self._saved = False
        if self._fs.exists(self.path):
            remove_file(self._fs, self.path)

    def unload(self) -> None:
        """Give the memory back; only what is saved."""
        if self._saved:
            self._columns = None

    def open_saved(self, must_be: Sum) -> bool:
        """Take up a saved file without loading it; False when there is none of that length.

        Whoever needs it first loads it, and gets CorruptMessage when its checksum is another.
        """
        if not self._fs.exists(self.path):
            return False
        file = self._fs.open(self.path)
        try:
            size = file.size()
        finally:
            file.close()
        self._columns, self._saved, self._sum = None, True, must_be
        return size == must_be[0]

    def _append(self, key: int, value: int) -> None:
        keys, values = self._columns_in_memory()
        values.append(value)
        keys.append(key)
        self._saved = False

    def _keep(self, count: int) -> None:
        """Drop the entries from number ``count`` on; new arrays, for readers may be in the old ones."""
        keys, values = self._columns_in_memory()
        if count < len(keys):
            self._columns = (keys[:count], values[:count])
            self._saved = False

    def _decode(self, data: bytes) -> Columns:
        raise NotImplementedError

    def _encode(self, columns: Columns) -> bytes:
        raise NotImplementedError


class OffsetIndex(_Index):
    """Where batches lie."""

    ENTRY_SIZE = 8

    def append(self, last_offset: Offset, position: FilePosition) -> None:
        """Add a batch by its last offset."""
        self._append(last_offset - self._base, position)

    def lookup(self, offset: Offset) -> FilePosition:
        """A position at or before the batch that holds ``offset``."""
        keys, positions = self._columns_in_memory()
        at = bisect_right(keys, offset - self._base) - 1
        return FilePosition(positions[at] if at >= 0 else 0)

    def last_before(self, offset: Offset, count: int) -> Offset:
        """The last offset of the last batch before ``offset`` that is among the first ``count`` entries; the offset
        before the segment's first when there is none.
        """
        keys, _ = self._columns_in_memory()
        at = bisect_left(keys, offset - self._base, 0, min(count, len(keys))) - 1
        return Offset(self._base + (keys[at] if at >= 0 else -1))

    def last_position(self) -> FilePosition:
        """The position of the last entry, 0 when there is none: where to begin to look for the end."""
        _, positions = self._columns_in_memory()
        return FilePosition(positions[-1] if positions else 0)

    def truncate_to(self, offset: Offset) -> None:
        """Drop entries at or above ``offset``."""
        self._keep(bisect_left(self._columns_in_memory()[0], offset - self._base))

    def _decode(self, data: bytes) -> Columns:
        flat = array("i", data)
        if sys.byteorder == "little":
            flat.byteswap()
        return flat[::2], flat[1::2]

    def _encode(self, columns: Columns) -> bytes:
        keys, values = columns
        flat = array("i", bytes(8 * len(keys)))
        flat[::2] = keys
        flat[1::2] = values
        if sys.byteorder == "little":
            flat.byteswap()
        return flat.tobytes()


class TimeIndex(_Index):
    """When what was written."""

    ENTRY_SIZE = 12

    def maybe_append(self, timestamp: TimestampMs, offset: Offset) -> None:
        """Add an entry when ``timestamp`` is above the last one's."""
        keys, _ = self._columns_in_memory()
        if timestamp >= 0 and (not keys or timestamp > keys[-1]):
            self._append(timestamp, offset - self._base)

    def peak_until(self, offset: Offset) -> tuple[TimestampMs, Offset]:
        """The highest timestamp of the batches that end at or before ``offset``, where the offset index has an entry,
        and the last offset of the batch that brought it; -1 and the base offset when there is none.
        """
        keys, offsets = self._columns_in_memory()
        at = bisect_right(offsets, offset - self._base, 0, len(keys)) - 1
        return (TimestampMs(keys[at]), Offset(self._base + offsets[at])) if at >= 0 else (NO_TIMESTAMP, self._base)

    def reached(self, timestamp: TimestampMs) -> Offset | None:
        """The last offset of a batch that has ``timestamp`` or a later one. Between it and the entry of the offset
        index before it lies the first one that has. None when that comes after the last entry of the offset index.
        """
        keys, offsets = self._columns_in_memory()
        at = bisect_left(keys, timestamp)
        return Offset(self._base + offsets[at]) if at < len(keys) else None

    def last(self) -> tuple[TimestampMs, Offset]:
        """The highest timestamp and its batch's last offset; -1 and the base offset when there is none."""
        keys, offsets = self._columns_in_memory()
        if not keys:
            return NO_TIMESTAMP, self._base
        return TimestampMs(keys[-1]), Offset(self._base + offsets[-1])

    def truncate_to(self, offset: Offset) -> None:
        """Drop entries of batches at or above ``offset``."""
        _, offsets = self._columns_in_memory()
        self._keep(bisect_left(offsets, offset - self._base))

    def _decode(self, data: bytes) -> Columns:
        flat = struct.unpack(f">{'qi' * (len(data) // 12)}", data)
        return array("q", flat[::2]), array("i", flat[1::2])

    def _encode(self, columns: Columns) -> bytes:
        keys, values = columns
        flat = [0] * (2 * len(keys))
        flat[::2] = keys
        flat[1::2] = values
        return struct.pack(f">{'qi' * len(keys)}", *flat)
