"""The small text files of a log directory and of a partition, in Kafka's formats. All are replaced atomically.

* offset checkpoints (``recovery-point-offset-checkpoint``, ``replication-offset-checkpoint``,
  ``log-start-offset-checkpoint``): a version line ``0``, a count line, then ``topic partition offset`` lines. That of
  the log starts, the only place that knows which records were deleted, has a last line ``#crc 0 …`` over the others:
  a partition of a topic that cannot be, for Kafka;
* ``leader-epoch-checkpoint``: the same with ``epoch start-offset`` lines; one that begins before the log's start tells
  nothing of where that is;
* ``partition.metadata``: ``version: 0`` and ``topic_id: …`` (16 bytes in URL-safe base64 without padding); then, ours,
  ``crc: …`` over the id, for a log with another topic's id would be set aside (Kafka reads the first two lines);
* ``meta.properties``: Java properties, ``version=0`` with ``broker.id``, ``cluster.id``, ``directory.id``;
* ``.kafka_cleanshutdown``: JSON; its being there says that all is flushed, and it names the broker's incarnation;
* ``.raylog_lost_data``, ours: the partitions that ended before their checkpoints when they were loaded, one a line. It
  is there until the broker has registered as one that lost data.

A file that cannot be read as such raises CorruptMessage; the callers say what that means for them.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

from raylog.broker.storage.disk.files import FileSystem, read_bytes, remove_file, write_atomically
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.ids import Offset, PartitionIndex, TopicId, TopicName, TopicPartition

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_STOP = ".kafka_cleanshutdown"
LOST_DATA = ".raylog_lost_data"
NO_INCARNATION = -1
"""Of a process that stopped before it had registered."""
LOCK = ".lock"

_VERSION = "0"


def read_lines(fs: FileSystem, path: Path, columns: int) -> list[list[str]]:
    """The rows of a checkpoint file; none when there is no file. CorruptMessage when it is not one."""
    data = read_bytes(fs, path)
    if data is None:
        return []
    lines = data.decode("utf-8", "replace").splitlines()
    rows = [line.split() for line in lines[2:]]
    if lines[:1] != [_VERSION] or lines[1:2] != [str(len(rows))] or any(len(row) != columns for row in rows):
        raise CorruptMessage(f"{path} is damaged: it is not a checkpoint of version 0 with {columns} columns")
    return rows


def write_lines(fs: FileSystem, path: Path, rows: Sequence[Iterable[object]]) -> None:
    """Replace a checkpoint file."""
    lines = [_VERSION, str(len(rows)), *(" ".join(map(str, row)) for row in rows)]
    write_atomically(fs, path, ("\n".join(lines) + "\n").encode())


def read_offsets(fs: FileSystem, path: Path) -> dict[TopicPartition, Offset]:
    """An offset checkpoint; CorruptMessage, too, where its checksum, if it has one, is another."""
    try:
        found = {
            TopicPartition(TopicName(topic), PartitionIndex(int(partition))): Offset(int(offset))
            for topic, partition, offset in read_lines(fs, path, columns=3)
        }
    except ValueError as error:
        raise CorruptMessage(f"{path} is damaged: {error}") from error
    checksum = found.pop(_CHECKSUM, None)
    if checksum not in (None, _checksum(found)):
        raise CorruptMessage(f"{path} is damaged: its offsets have another checksum")
    return found


def write_offsets(
    fs: FileSystem, path: Path, offsets: Mapping[TopicPartition, Offset], *, checksum: bool = False
) -> None:
    """Replace an offset checkpoint; with ``checksum`` a changed digit shows."""
    rows = [(tp.topic, tp.partition, offset) for tp, offset in sorted(offsets.items())]
    if checksum:
        rows.append((*_CHECKSUM, _checksum(offsets)))
    write_lines(fs, path, rows)


_CHECKSUM = TopicPartition(TopicName("#crc"), PartitionIndex(0))


def _checksum(offsets: Mapping[TopicPartition, Offset]) -> Offset:
    rows = "".join(f"{tp.topic} {tp.partition} {offset}\n" for tp, offset in sorted(offsets.items()))
    return Offset(zlib.crc32(rows.encode()))


def encode_topic_id(topic_id: TopicId) -> str:
    """Kafka's text for a topic id: 22 characters."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def decode_topic_id(text: str) -> TopicId:
    """The topic id that Kafka's text stands for; ValueError when it is none."""
    return TopicId(UUID(bytes=base64.urlsafe_b64decode(text + "==")))


def read_topic_id(fs: FileSystem, directory: Path) -> TopicId | None:
    """The topic id in a partition's directory; None when there is no partition.metadata."""
    data = read_bytes(fs, directory / PARTITION_METADATA)
    if data is None:
        return None
    lines = data.decode("utf-8", "replace").splitlines()
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    try:
        topic_id = decode_topic_id(fields["topic_id"])
    except (KeyError, ValueError) as error:
        raise CorruptMessage(f"{directory / PARTITION_METADATA} is damaged: no topic_id in it") from error
    if len(lines) > 2 and lines[2:] != [_crc_line(topic_id)]:  # Kafka writes two
        raise CorruptMessage(f"{directory / PARTITION_METADATA} is damaged: its topic_id has another checksum")
    return topic_id


def write_topic_id(fs: FileSystem, directory: Path, topic_id: TopicId) -> None:
    """Write partition.metadata."""
    text = f"version: 0\ntopic_id: {encode_topic_id(topic_id)}\n{_crc_line(topic_id)}\n"
    write_atomically(fs, directory / PARTITION_METADATA, text.encode())


def _crc_line(topic_id: TopicId) -> str:
    return f"crc: {zlib.crc32(topic_id.bytes):08x}"


def read_properties(fs: FileSystem, path: Path) -> dict[str, str] | None:
    """A Java properties file without escapes; None when there is none."""
    data = read_bytes(fs, path)
    if data is None:
        return None
    lines = (line.strip() for line in data.decode("utf-8", "replace").splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def write_properties(fs: FileSystem, path: Path, properties: Mapping[str, str]) -> None:
    """Replace a Java properties file."""
    text = "#\n" + "".join(f"{key}={value}\n" for key, value in sorted(properties.items()))
    write_atomically(fs, path, text.encode())


def write_clean_stop(fs: FileSystem, log_dir: Path, broker_epoch: int) -> None:
    """Say that everything in ``log_dir`` is flushed: the next start need not recover."""
    text = json.dumps({"version": 0, "brokerEpoch": broker_epoch})
    write_atomically(fs, log_dir / CLEAN_STOP, text.encode())


def take_clean_stop(fs: FileSystem, log_dir: Path) -> int | None:
    """The incarnation that the last clean stop ended, NO_INCARNATION where it ended none; None: it was not clean.

    The marker is gone afterwards, durably, for this run may end uncleanly.
    """
    data = read_bytes(fs, log_dir / CLEAN_STOP)
    if data is None:
        return None
    remove_file(fs, log_dir / CLEAN_STOP)
    fs.fsync_dir(log_dir)
    try:
        return int(json.loads(data)["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        return NO_INCARNATION


def write_lost_data(fs: FileSystem, log_dir: Path, partitions: Iterable[TopicPartition]) -> None:
    """Note, durably, which logs lost records."""
    write_atomically(fs, log_dir / LOST_DATA, "".join(f"{tp}\n" for tp in partitions).encode())
