"""Logs as clients alone cannot write them: with control batches, and with what compaction leaves."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from crc32c import crc32c

from kit.cluster import InProcessCluster
from raylog.coordination.host.clocks import wall_ms
from raylog.protocol.batches.header import CRC_POSITION, HEADER, HEADER_SIZE, LOG_OVERHEAD, batch_headers, read_header
from raylog.protocol.batches.rows import long_varint
from raylog.protocol.ids import PartitionIndex, TimestampMs, TopicName, TopicPartition
from raylog.protocol.records import Record, encode_batch

__all__ = ["append_as_stored", "compacted", "control_batch"]

_AFTER_CRC = CRC_POSITION + 4


def compacted(records: Sequence[Record], keep: Collection[int]) -> bytes:
    """A batch of ``records`` as compaction leaves it: those at the indexes ``keep`` are there, at their offsets, and
    the header goes on to the last offset that there was."""
    whole = encode_batch(records)
    header = read_header(whole, 0)
    kept, pos = [], HEADER_SIZE
    for index in range(len(records)):
        length, behind = long_varint(whole, pos)
        end = behind + (length >> 1)
        kept.append(whole[pos:end] if index in keep else b"")
        pos = end
    body = b"".join(kept)
    changed = header._replace(batch_length=HEADER_SIZE - LOG_OVERHEAD + len(body), record_count=len(keep))
    data = bytearray(HEADER.pack(*changed) + body)
    data[CRC_POSITION:_AFTER_CRC] = crc32c(bytes(data[_AFTER_CRC:])).to_bytes(4, "big")
    return bytes(data)


def control_batch() -> bytes:
    """The marker with which a transaction is committed (KIP-98)."""
    return encode_batch(
        [Record(b"\0\0\0\0\0\0", b"\0\0\0\1")], producer_id=5, producer_epoch=1, transactional=True, control=True
    )


def append_as_stored(cluster: InProcessCluster, topic: str, partition: int, *batches: bytes) -> None:
    """Put batches at the end of a log that has one replica, past the checks of what clients may write."""
    tp = TopicPartition(TopicName(topic), PartitionIndex(partition))
    log = cluster.leader(topic, partition).partitions.get(tp).log
    data = memoryview(bytearray(b"".join(batches)))
    headers = [header for _, header in batch_headers(data)]
    with log.lock:
        log.append(data, headers, leader_epoch=log.epochs.latest, now_ms=TimestampMs(wall_ms()), visible=True)
