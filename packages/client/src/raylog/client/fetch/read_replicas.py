"""◆ From which broker to read a partition: its leader, or a replica nearby that the leader named (KIP-392).

To a consumer that names its rack a leader hands no records while a replica in that rack is in sync, it only names the
replica. That is read from until it fails, another leader takes over, or metadata would be too old to be trusted. A
replica that failed is not gone back to for a pause that doubles with each failure in a row, and the leader is
asked without the rack meanwhile: it then serves, where it would name the same replica again and again, one that
is in sync but can't be reached from here, say.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from raylog.client.network.connection import Address
from raylog.client.network.metadata import backoff_ms
from raylog.protocol.ids import TopicPartition

Reach = Callable[[int], Address | None]
"""Where a broker listens; None while it isn't known, or can't be reached."""


class _Preferred(NamedTuple):
    broker: int
    leader_epoch: int
    until_ms: int


class _Failures(NamedTuple):
    in_a_row: int
    until_ms: int
    """When the leader may name a replica again."""


class ReadReplicas:
    """The replicas that leaders named, each trusted for ``max_age_ms``; pauses begin with ``first_pause_ms`` and are at
    most as long as that."""

    def __init__(self, reach: Reach, *, first_pause_ms: int, max_age_ms: int) -> None:
        self._reach = reach
        self._pauses = (first_pause_ms, max_age_ms)
        self._preferred: dict[TopicPartition, _Preferred] = {}
        """In the order in which they are trusted no more."""
        self._failed: dict[TopicPartition, _Failures] = {}

    def prefer(self, tp: TopicPartition, broker: int, leader_epoch: int, now_ms: int) -> None:
        """The leader of that epoch said to read from ``broker``."""
        self._preferred.pop(tp, None)
        self._preferred[tp] = _Preferred(broker, leader_epoch, now_ms + self._pauses[1])

    def address(self, tp: TopicPartition, leader: Address, leader_epoch: int, now_ms: int) -> Address:
        """Where to fetch the partition: at ``leader``, unless it named a replica that can be reached."""
        preferred = self._preferred.get(tp)
        if preferred is None:
            return leader
        if now_ms >= preferred.until_ms or preferred.leader_epoch != leader_epoch:
            del self._preferred[tp]
            return leader
        address = self._reach(preferred.broker)
        if address is None:
            self.failed(tp, now_ms)
            return leader
        return address

    def expired(self, now_ms: int) -> list[TopicPartition]:
        """The partitions whose leaders are to be asked again, since they named a replica long ago; told once."""
        found = []
        for tp, preferred in self._preferred.items():
            if now_ms < preferred.until_ms:
                break
            found.append(tp)
        for tp in found:
            del self._preferred[tp]
        return found

    def failed(self, tp: TopicPartition, now_ms: int) -> None:
        """The replica did not serve the partition: back to the leader, for a while."""
        self._preferred.pop(tp, None)
        before = self._failed.get(tp)
        count = 1 if before is None else before.in_a_row + 1
        self._failed[tp] = _Failures(count, now_ms + backoff_ms(count, *self._pauses))

    def served(self, tp: TopicPartition) -> None:
        """The replica answered as it should: the next pause is the first again."""
        self._failed.pop(tp, None)

    def may_name_rack(self, partitions: Container[TopicPartition], now_ms: int) -> bool:
        """Whether a request for these may say where the consumer is: not during a pause of one of them."""
        return not any(now_ms < failures.until_ms and tp in partitions for tp, failures in self._failed.items())

    def forget(self, tp: TopicPartition) -> None:
        """The partition is not read any more."""
        self._preferred.pop(tp, None)
        self._failed.pop(tp, None)
