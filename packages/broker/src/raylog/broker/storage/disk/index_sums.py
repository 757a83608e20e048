"""Checksums of a partition's index files, which Kafka's formats have no room for: the file ``index-checksums``.

An index with a flipped byte can lead past the records that are asked for, or tell a time that has retention delete what
is not old, and nothing in it would show that. So whoever saves the indexes of a closed segment notes here how long they
are, their CRC-32C, and the segment's newest timestamp. Indexes that don't agree, or that are not noted, are made anew
from the log: the file may always be deleted.

A line a segment, all of them below a line with the CRC-32C of the rest.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from raylog.broker.storage.disk.files import FileSystem, read_bytes, write_atomically
from raylog.protocol.ids import Offset

NAME = "index-checksums"


class IndexSum(NamedTuple):
    """What the index files of one segment must be."""

    log_size: int
    """The log file that they were made from: one that grew since has others."""
    index_size: int
    index_crc: int
    time_index_size: int
    time_index_crc: int
    max_timestamp: int
    max_timestamp_offset: int


class IndexSums:
    """The sums of one partition's closed segments. The caller holds the log's flush lock, or is alone."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self._path = directory / NAME
        self._sums = _parse(read_bytes(fs, self._path) or b"")
        self._changed = False

    def get(self, base_offset: Offset, log_size: int) -> IndexSum | None:
        """The sums of the segment's indexes; None when they are not known of a log file of this size."""
        sums = self._sums.get(base_offset)
        return sums if sums is not None and sums.log_size == log_size else None

    def note(self, base_offset: Offset, sums: IndexSum) -> None:
        """The segment's indexes are saved; :meth:`save` must follow."""
        if self._sums.get(base_offset) != sums:
            self._sums[base_offset] = sums
            self._changed = True

    def forget(self, base_offset: Offset) -> None:
        """The segment is about to be cut; :meth:`save` must follow before it is."""
        self._changed = self._sums.pop(base_offset, None) is not None or self._changed

    def save(self, kept: Container[Offset]) -> None:
        """Write what was noted, for the segments that are still ``kept``; no work when nothing was."""
        if not self._changed:
            return
        self._sums = {base: sums for base, sums in self._sums.items() if base in kept}
        rows = "".join(f"{base} {' '.join(map(str, sums))}\n" for base, sums in sorted(self._sums.items())).encode()
        write_atomically(self._fs, self._path, f"{crc32c(rows)}\n".encode() + rows)
        self._changed = False


def _parse(data: bytes) -> dict[Offset, IndexSum]:
    head, _, rows = data.partition(b"\n")
    if head != str(crc32c(rows)).encode():
        return {}  # damaged or not there: all indexes are made anew
    lines = [line.split() for line in rows.decode("ascii", "replace").splitlines()]
    if any(len(line) != 1 + len(IndexSum._fields) for line in lines):
        return {}  # of another version of this file
    return {Offset(int(base)): IndexSum(*map(int, sums)) for base, *sums in lines}
