"""Target: the files of a log directory, any of them spoilt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from fuzz.target import Target
from kit.faulty_files import LossyFileSystem
from kit.partitions import NOW, TP, append, lead, open_shelf, values
from raylog.broker.partition.partition import Partition
from raylog.broker.storage.disk.files import FileSystem, write_atomically
from raylog.protocol.errors import CorruptMessage, OffsetOutOfRange, RaylogError
from raylog.protocol.ids import Offset, TimestampMs
from raylog.protocol.records import batch_headers

_ROOT = Path("/disk")
_SETTINGS = {"segment.bytes": "400", "index.interval.bytes": "0"}


_LATER = (f"{TP}/index-checksums",)
"""Names that came after the first inputs were kept: inputs name files by number, so these go to the end."""


def _disk() -> dict[str, bytes]:
    """A log directory after a clean stop: each file's content, in the order of their numbers."""
    fs = LossyFileSystem()
    shelf = open_shelf(_ROOT, fs=fs, topic=_SETTINGS)
    for number in range(12):
        append(shelf.partition, b"v%d" % number, b"w" * 20, timestamps=(NOW + number, NOW - number))
        append(shelf.partition, b"p%d" % number, producer=(number % 2, 0, number // 2))
        if number == 6:
            lead(shelf.partition, 4)
    shelf.dirs.close(1)
    return dict(sorted(_files(fs, _ROOT), key=lambda file: (file[0] in _LATER, file[0])))


def _files(fs: LossyFileSystem, directory: Path) -> Iterator[tuple[str, bytes]]:
    for name in fs.list_dir(directory):
        path = directory / name
        try:
            file = fs.open(path)
        except IsADirectoryError:
            yield from _files(fs, path)
            continue
        yield str(path.relative_to(_ROOT)), file.pread(file.size(), 0)
        file.close()


def _write(fs: FileSystem, name: str, content: bytes) -> None:
    fs.make_dirs((_ROOT / name).parent)
    write_atomically(fs, _ROOT / name, content)


_disk_files: dict[str, bytes] = {}


def files(data: bytes) -> None:
    """Which file of a log directory, whether the stop was clean, then what that file holds now.

    Whatever it is: the directory opens or says in one sentence why not, reading ends, and appending goes on.
    """
    logging.getLogger("raylog").setLevel(logging.CRITICAL)  # every input is told in many lines
    if not _disk_files:
        _disk_files.update(_disk())
    if len(data) < 2:
        return
    names = list(_disk_files)
    fs = LossyFileSystem()
    spoilt = names[data[0] % len(names)]
    for name, content in _disk_files.items():
        if name != ".kafka_cleanshutdown" or data[1] & 1:
            _write(fs, name, data[2:] if name == spoilt else content)
    try:
        shelf = open_shelf(_ROOT, fs=fs, topic=_SETTINGS, epoch=5, now_ms=NOW)
    except RaylogError as error:
        if spoilt not in ("meta.properties", f"{TP}/partition.metadata", f"{TP}/leader-epoch-checkpoint"):
            raise AssertionError(f"a log directory does not open with a spoilt {spoilt}") from error
        return
    partition = shelf.partition
    offsets = partition.offsets
    assert 0 <= offsets.start <= offsets.high_watermark.offset <= offsets.end.offset < 2**63
    readers: tuple[Callable[[], object], ...] = (
        lambda: _read_all(partition),
        lambda: partition.offset_for_timestamp(TimestampMs(NOW + 5)),
        partition.max_timestamp_offset,
    )
    for read in readers:
        try:
            read()
        except (CorruptMessage, OffsetOutOfRange):
            assert spoilt.endswith(".log"), spoilt  # everything else can be made anew
    base = append(partition, b"after", timestamps=(NOW + 100,))
    assert values(partition, base) == [b"after"]
    shelf.dirs.close(1)


def _read_all(partition: Partition) -> None:
    """Read as consumers do; an end inside a batch is damage, for they would ask for the same offset for ever."""
    at = partition.log_start_offset
    while (info := partition.read(at, 1 << 20)).data is not None:
        try:
            headers = [header for _, header in batch_headers(info.data.read())]
        finally:
            info.data.release()
        if not headers:
            raise CorruptMessage(f"the log ends inside a batch at offset {at}")
        assert headers[-1].next_offset > at
        at = Offset(headers[-1].next_offset)


def _file_seeds() -> Iterator[bytes]:
    disk = _disk()
    for number, name in enumerate(disk):
        yield bytes([number, 0]) + disk[name]
        yield bytes([number, 1]) + disk[name]
        yield bytes([number, 1]) + disk[name][:-1]


FILE_TARGETS = {"files": Target(files, _file_seeds, max_len=1024)}
