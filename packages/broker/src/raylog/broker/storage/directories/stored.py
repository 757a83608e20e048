"""The files of a log directory as rows, for people and tools; read only, whatever state they are in.

A broker may be appending meanwhile: what is read is a moment's view.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from crc32c import crc32c

from raylog.broker.storage.disk import checkpoint, index_sums
from raylog.broker.storage.disk.files import File, RealFile, RealFileSystem
from raylog.broker.storage.segments.segment import INDEX, LOG, SNAPSHOT, TIME_INDEX
from raylog.broker.storage.state.producers import Producers
from raylog.protocol.errors import CorruptMessage, InvalidRecord, InvalidRequest, UnsupportedCompressionType
from raylog.protocol.ids import TimestampMs
from raylog.protocol.records import HEADER_SIZE, BatchHeader, decode_batch, read_header, validate_batch

Row = dict[str, Any]

_INDEX_ENTRY = struct.Struct(">ii")
_TIME_INDEX_ENTRY = struct.Struct(">qi")
_OFFSET_CHECKPOINTS = (checkpoint.RECOVERY_POINTS, checkpoint.HIGH_WATERMARKS, checkpoint.LOG_STARTS)
_BUFFER = 1 << 20
_FOREVER = TimestampMs(2**63 - 1)


class ReadOnlyFiles(RealFileSystem):
    """Files that nobody here may change: reading needs no right to write."""

    def open(self, path: Path, *, create: bool = False) -> File:
        return RealFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))


class StoredBatch(NamedTuple):
    """A batch where it lies. Without a header nothing after it can be found."""

    position: int
    header: BatchHeader | None
    data: bytes
    problem: str
    """What is wrong with it; empty when it is good."""
    torn: bool = False
    """True when the file ends before the batch does."""


def read_batches(path: Path) -> Iterator[StoredBatch]:
    """All batches of a ``.log`` file in order, each checked; the last one may be torn."""
    with path.open("rb", buffering=_BUFFER) as file:
        yield from _batches(file, os.fstat(file.fileno()).st_size)


def _batches(file: BinaryIO, size: int) -> Iterator[StoredBatch]:
    position = 0
    while position < size:
        head = file.read(HEADER_SIZE)
        try:
            header = read_header(head)
        except CorruptMessage as error:
            torn = len(head) < HEADER_SIZE
            problem = f"{len(head)} bytes at the end are no whole batch header" if torn else _here(error)
            yield StoredBatch(position, None, head, problem, torn)
            return
        if header.size > size - position:
            problem = f"a batch of {header.size} bytes begins {size - position} bytes before the end"
            yield StoredBatch(position, None, head, problem, True)
            return
        data = head + file.read(header.size - HEADER_SIZE)
        try:
            validate_batch(data, sparse=True)
            problem = ""
        except (CorruptMessage, InvalidRecord, UnsupportedCompressionType) as error:
            problem = _here(error)
        yield StoredBatch(position, header, data, problem)
        position += header.size


def _here(error: Exception) -> str:
    """The batch was checked as if it began the file; its real position is told beside."""
    return str(error).replace("the batch at position 0", "the batch")


def index_entries(path: Path) -> list[tuple[int, int]]:
    """(last offset of a batch, its position) of an ``.index`` file. CorruptMessage when it is torn."""
    base, data = base_offset(path), path.read_bytes()
    if len(data) % _INDEX_ENTRY.size:
        raise CorruptMessage(f"{len(data)} bytes are no whole entries of {_INDEX_ENTRY.size}")
    return [(base + relative, position) for relative, position in _INDEX_ENTRY.iter_unpack(data)]


def time_index_entries(path: Path) -> list[tuple[int, int]]:
    """(timestamp, last offset of the batch that brought it) of a ``.timeindex`` file. CorruptMessage: it is torn."""
    base, data = base_offset(path), path.read_bytes()
    if len(data) % _TIME_INDEX_ENTRY.size:
        raise CorruptMessage(f"{len(data)} bytes are no whole entries of {_TIME_INDEX_ENTRY.size}")
    return [(timestamp, base + relative) for timestamp, relative in _TIME_INDEX_ENTRY.iter_unpack(data)]


def base_offset(path: Path) -> int:
    """The offset that a segment's file is named by. Raises InvalidRequest."""
    if not path.stem.isdigit():
        raise InvalidRequest(f"{path} is not named by an offset as Kafka's segments are")
    return int(path.stem)


def rows_of(path: Path, *, records: bool = False) -> Iterator[Row]:
    """One file as rows: batches (or with ``records`` their records), index entries, producers, a checkpoint's lines.

    Raises InvalidRequest for a file that is none of a log directory's, CorruptMessage for one that can't be read.
    """
    suffix, name = path.suffix, path.name
    if suffix == LOG:
        yield from _record_rows(path) if records else _batch_rows(path)
    elif suffix == INDEX:
        yield from ({"last_offset": offset, "position": position} for offset, position in index_entries(path))
    elif suffix == TIME_INDEX:
        yield from ({"timestamp": timestamp, "last_offset": offset} for timestamp, offset in time_index_entries(path))
    elif suffix == SNAPSHOT:
        yield from _producer_rows(path)
    elif name == checkpoint.LEADER_EPOCHS:
        for epoch, start in checkpoint.read_lines(ReadOnlyFiles(), path, columns=2):
            yield {"leader_epoch": int(epoch), "start_offset": int(start)}
    elif name in _OFFSET_CHECKPOINTS:
        for tp, offset in checkpoint.read_offsets(ReadOnlyFiles(), path).items():
            yield {"topic": tp.topic, "partition": tp.partition, "offset": offset}
    elif name == index_sums.NAME:
        yield from index_sum_rows(path)
    elif name == checkpoint.PARTITION_METADATA:
        yield {"topic_id": str(checkpoint.read_topic_id(ReadOnlyFiles(), path.parent))}
    elif name == checkpoint.META_PROPERTIES:
        yield dict(checkpoint.read_properties(ReadOnlyFiles(), path) or {})
    else:
        raise InvalidRequest(
            f"{path} is no file of a log; give a .log, .index, .timeindex, .snapshot or checkpoint file, or a directory"
        )


def index_sum_rows(path: Path) -> Iterator[Row]:
    """What the indexes of closed segments must be. CorruptMessage when the file's own checksum is wrong."""
    head, _, rows = path.read_bytes().partition(b"\n")
    if head != str(crc32c(rows)).encode():
        raise CorruptMessage(f"{path} is damaged: its checksum is wrong")
    for line in rows.decode().splitlines():
        base, *sums = map(int, line.split())
        yield {"base_offset": base, **index_sums.IndexSum(*sums)._asdict()}


def _batch_rows(path: Path) -> Iterator[Row]:
    for batch in read_batches(path):
        header = batch.header
        row: Row = {"base_offset": None, "last_offset": None, "position": batch.position, "valid": not batch.problem}
        if header is not None:
            row |= {
                "base_offset": header.base_offset,
                "last_offset": header.last_offset,
                "position": batch.position,
                "size": header.size,
                "records": header.record_count,
                "leader_epoch": header.leader_epoch,
                "compression": _codec_name(header),
                "timestamp_type": "LogAppendTime" if header.timestamp_type else "CreateTime",
                "max_timestamp": header.max_timestamp,
                "producer_id": header.producer_id,
                "producer_epoch": header.producer_epoch,
                "base_sequence": header.base_sequence,
                "last_sequence": header.last_sequence,
                "transactional": header.is_transactional,
                "control": header.is_control,
                "crc": header.crc,
            }
        yield {**row, "problem": batch.problem}


def _codec_name(header: BatchHeader) -> str:
    try:
        return header.codec.name.lower()
    except UnsupportedCompressionType:
        return "unknown"


def _record_rows(path: Path) -> Iterator[Row]:
    for batch in read_batches(path):
        if batch.problem:
            yield {"offset": None, "timestamp": None, "problem": f"position {batch.position}: {batch.problem}"}
            continue
        try:
            records = decode_batch(batch.data)
        except (CorruptMessage, UnsupportedCompressionType) as error:
            yield {"offset": None, "timestamp": None, "problem": f"position {batch.position}: {error}"}
            continue
        for record in records:
            yield {
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": {name: _text(value) for name, value in record.headers},
                "problem": "",
            }


def _text(data: bytes | None) -> str | None:
    """Bytes to look at: what is no UTF-8 as ``\\xff``."""
    return None if data is None else data.decode("utf-8", "backslashreplace")


def _producer_rows(path: Path) -> Iterator[Row]:
    for producer in Producers.decode(path.read_bytes(), _FOREVER):
        last = producer.batches[-1] if producer.batches else None
        yield {
            "producer_id": producer.id,
            "producer_epoch": producer.epoch,
            "first_sequence": last.first_sequence if last else None,
            "last_sequence": last.last_sequence if last else None,
            "last_offset": last.last_offset if last else None,
            "last_timestamp": producer.last_seen_ms,
            "coordinator_epoch": producer.coordinator_epoch,
            "transaction_start": producer.transaction_start if producer.transaction_start >= 0 else None,
        }
