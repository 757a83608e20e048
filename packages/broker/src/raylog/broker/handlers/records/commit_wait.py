"""Waiting until what was appended with acks=all is committed: until the in-sync replicas have it, too.

A wait ends for a partition when its high watermark has passed the batch in the leader epoch of the append, when the
partition lost its leadership or too many of its replicas, or when the request's time is over; then nobody knows, and
the client must ask again (RequestTimedOut).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raylog.broker.handlers.records.watermark_wait import WatermarkWait
from raylog.broker.partition.partition import AppendInfo, Partition
from raylog.broker.replication.delayed_operations import DelayedOperations
from raylog.protocol.errors import RaylogError, RequestTimedOut
from raylog.protocol.ids import Offset, TopicPartition

__all__ = ["Appended", "CommitWait"]


class Appended(NamedTuple):
    """An append that must be committed before it is acknowledged."""

    partition: Partition
    info: AppendInfo


class CommitWait(WatermarkWait[Appended]):
    """The wait of one request; :attr:`errors` has those that must not be acknowledged."""

    def __init__(self, produces: DelayedOperations, appended: Sequence[Appended], timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        super().__init__(produces, appended, timeout_ms)

    def required(self, each: Appended) -> tuple[TopicPartition, Offset]:
        return each.partition.tp, Offset(each.info.last_offset + 1)

    def is_done(self, each: Appended) -> bool:
        return each.partition.role.check_committed(each.info)

    def late(self, each: Appended) -> RaylogError:
        return RequestTimedOut(
            f"{each.partition.tp}: appended up to offset {each.info.last_offset}, but the in-sync replicas did not "
            f"have it within {self._timeout_ms} ms; it may be committed later"
        )
