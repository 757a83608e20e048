"""The directory of one partition's exported files, and how a file gets there: whole, once, and for good.

A file is written under a temporary name, synced, and published by a hard link under its final name, the offset at which
it begins, as segments of a log are called. A link never replaces anything: of two runs that write the same place one
wins, and the other reads in the winner's footer where to go on. Since every file begins where the one before it ends,
and the first one at offset 0, there is no crash and no rival after which two files cover the same offset.

A temporary file is locked (``flock``) by whoever writes it, and the kernel ends the lock with the process. So what can
be locked is of the dead, and is removed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from uuid import UUID, uuid4

import pyarrow as pa
from pyarrow import parquet

from raylog.protocol.ids import Offset, PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.spark.exports.plan import ExportRefused

_NAME = re.compile(r"\d{20}\.parquet")
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp")
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV}
_PREFIX = b"raylog."


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a file's footer tells: for which offsets of which topic the file stands."""

    tp: TopicPartition
    topic_id: TopicId
    base: Offset
    """The offset in its name, where the file before it ends."""
    first: Offset
    """Where its records begin: behind ``base`` when what lies between was not wanted, or was lost."""
    next: Offset
    """Where it ends, without this one."""

    def metadata(self) -> dict[bytes, bytes]:
        """For the key-value metadata of the footer."""
        values = {
            b"topic": self.tp.topic,
            b"partition": self.tp.partition,
            b"topic_id": self.topic_id,
            b"base_offset": self.base,
            b"first_offset": self.first,
            b"next_offset": self.next,
        }
        return {_PREFIX + key: str(value).encode() for key, value in values.items()}


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A published file."""

    path: Path
    coverage: Coverage
    records: int
    size: int
    """In bytes."""


def read_exported(path: Path) -> ExportedFile:
    """What the file's footer tells. Raises ExportRefused when it is no file of an export."""
    try:
        footer = parquet.read_metadata(path)
        found = {key.removeprefix(_PREFIX): value.decode() for key, value in (footer.metadata or {}).items()}
        coverage = Coverage(
            TopicPartition(TopicName(found[b"topic"]), PartitionIndex(int(found[b"partition"]))),
            TopicId(UUID(found[b"topic_id"])),
            *(Offset(int(found[key])) for key in (b"base_offset", b"first_offset", b"next_offset")),
        )
    except (pa.ArrowInvalid, KeyError, ValueError) as error:
        raise ExportRefused(
            f"{path} is damaged, or was not exported from a topic ({error!r}), and an export goes on where the last "
            "file ends: remove this one to have its records exported again, or export into another directory"
        ) from error
    return ExportedFile(path, coverage, footer.num_rows, path.stat().st_size)


class Disk:
    """The operations on files of which each may be the last one of a process. Tests hand in one that is."""

    def create(self, path: Path) -> IO[bytes]:
        """A new file, open for writing. Raises FileExistsError."""
        return path.open("xb")

    def lock(self, file: IO[bytes]) -> bool:
        """Whether the file is ours now: until it is closed nobody else gets it."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def sync(self, file: IO[bytes]) -> None:
        """Return when the file's contents are on the disk."""
        file.flush()
        os.fsync(file.fileno())

    def link(self, path: Path, name: Path) -> None:
        """A second name for the file. Raises FileExistsError when that is taken."""
        os.link(path, name)

    def unlink(self, path: Path) -> None:
        """Take the name away, if it is there."""
        path.unlink(missing_ok=True)

    def sync_directory(self, directory: Path) -> None:
        """Return when the directory's names are on the disk."""
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """Where one partition's files are: topic=T/partition=P, which Spark, Hive and Arrow read as columns."""

    path: Path
    disk: Disk

    @classmethod
    def below(cls, root: Path, tp: TopicPartition, disk: Disk | None = None) -> PartitionDirectory:
        return cls(topic_directory(root, tp.topic) / f"partition={tp.partition}", disk or Disk())

    def file_at(self, base: int) -> Path:
        """The name of the file that begins at an offset."""
        return self.path / f"{base:020d}.parquet"

    def files(self) -> list[Path]:
        """The published files, in order."""
        return sorted(path for path in self.path.glob("*.parquet") if _NAME.fullmatch(path.name))

    def last(self) -> ExportedFile | None:
        """The last published file; None when there is none. Raises ExportRefused when it can't be read."""
        files = self.files()
        return read_exported(files[-1]) if files else None

    def publish(self, file: IO[bytes], temporary: Path, base: int) -> bool:
        """Give the complete file its final name for good; False when another one has that name.

        Raises ExportRefused on a file system that can't do that without replacing what is there.
        """
        self.disk.sync(file)
        try:
            self.disk.link(temporary, self.file_at(base))
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise ExportRefused(
                    f"{self.path}: this file system has no hard links ({error.strerror}), so a file can't be published "
                    "whole and once: export to one that has, such as ext4, XFS or NFS, and copy the files from there"
                ) from error
            raise
        self.disk.sync_directory(self.path)
        return True


def topic_directory(root: Path, topic: str) -> Path:
    """Where the partitions' directories of a topic are."""
    return root / f"topic={topic}"


@contextmanager
def temporary_file(directory: Path, disk: Disk) -> Iterator[tuple[IO[bytes], Path]]:
    """A locked file that is gone afterwards, and which :func:`sweep` removes when its process has died."""
    while True:
        path = directory / f".{uuid4().hex}.tmp"
        with disk.create(path) as file:
            try:
                if disk.lock(file) and path.exists():  # a sweep may have come between
                    yield file, path
                    return
            finally:
                disk.unlink(path)


def sweep(directory: Path, disk: Disk) -> int:
    """Remove the temporary files below ``directory`` that are of the dead; how many."""
    removed = 0
    for path in directory.rglob(".*.tmp"):
        if not _TEMPORARY.fullmatch(path.name):
            continue
        try:
            with path.open("r+b") as file:  # NFS locks what is open for writing
                if disk.lock(file):
                    disk.unlink(path)
                    removed += 1
        except FileNotFoundError:
            continue  # its writer was faster
    return removed
