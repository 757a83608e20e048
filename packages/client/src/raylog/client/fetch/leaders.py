"""Whom a consumer asks for a partition, and when: its leader, while the topic is the one to be read.

A partition that failed is left alone for a moment. The user is told of a topic or partition that is gone, again and
again: one that no broker knows may have been created a moment ago.
"""

from __future__ import annotations

from collections.abc import Callable

from raylog.client.fetch.subscription import Subscription
from raylog.client.network.connection import Address
from raylog.client.network.network import Network
from raylog.coordination.host.clocks import monotonic_ms
from raylog.protocol.errors import RaylogError, UnknownTopicOrPartition
from raylog.protocol.ids import NO_TOPIC_ID, TopicPartition

__all__ = ["Leaders"]

_MISSING_GRACE_MS = 2_000
"""How long a topic or partition that no broker knows may be one that was just created."""


class Leaders:
    """Of the partitions of ``subscription``. ``complain`` is told what the user must hear; ``backoff_ms``: how long a
    partition that failed is left alone."""

    def __init__(
        self,
        network: Network,
        subscription: Subscription,
        complain: Callable[[TopicPartition, RaylogError], None],
        backoff_ms: int,
        clock: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._network = network
        self._subscription = subscription
        self._complain = complain
        self._backoff_ms = backoff_ms
        self._clock = clock
        self._resting: dict[TopicPartition, int] = {}
        """Partitions that failed, and until when they are left alone."""
        self._missing: dict[str | TopicPartition, int] = {}
        """Topics that brokers don't know, partitions that their topics don't have, and since when."""

    def keep(self) -> None:
        """Forget what is not read any more."""
        if self._resting:
            self._resting = {tp: until_ms for tp, until_ms in self._resting.items() if tp in self._subscription}
        if self._missing:
            read = self._subscription.topics()
            self._missing = {
                key: since_ms
                for key, since_ms in self._missing.items()
                if (key in self._subscription if isinstance(key, TopicPartition) else key in read)
            }

    def address(self, tp: TopicPartition, now_ms: int) -> Address | None:
        """Where to ask for the partition; None while that is not known."""
        address = self._network.leader_address(tp)
        if self._is_another(tp):
            self._network.metadata.need_update()  # what is known of its leader is of a topic that had the name before
            return None
        if address is None:
            self._look_whether_gone(tp, now_ms)
        elif self._missing:
            self._missing.pop(tp.topic, None)
            self._missing.pop(tp, None)
        return address

    def _look_whether_gone(self, tp: TopicPartition, now_ms: int) -> None:
        view = self._network.metadata.view
        topic, what = view.topics.get(tp.topic), ""
        key: str | TopicPartition = tp.topic
        if topic is not None and tp.partition >= len(topic.partitions):
            count = len(topic.partitions)
            key, what = tp, f"the topic has {count} partition{'s' if count != 1 else ''}; it was made anew?"
        elif isinstance(view.errors.get(tp.topic), UnknownTopicOrPartition):
            what = "no broker knows the topic any more; it was deleted?"
        if not what:
            self._missing.pop(key, None)
        elif now_ms - self._missing.setdefault(key, now_ms) >= _MISSING_GRACE_MS:
            self._missing[key] = now_ms
            self._complain(tp, UnknownTopicOrPartition(f"{tp}: {what} assign others"))

    def rest(self, tp: TopicPartition) -> None:
        """It failed: leave it alone for a moment."""
        self._resting[tp] = self._clock() + self._backoff_ms

    def rests(self, tp: TopicPartition, now_ms: int) -> bool:
        """Whether it is left alone."""
        until_ms = self._resting.get(tp)
        if until_ms is None:
            return False
        if now_ms < until_ms:
            return True
        del self._resting[tp]
        return False

    def _is_another(self, tp: TopicPartition) -> bool:
        """Whether the topic that the metadata tells of is not the one to be read."""
        place, known = self._subscription.get(tp), self._network.metadata.view.topics.get(tp.topic)
        return place is not None and known is not None and NO_TOPIC_ID != place.topic_id != known.topic_id
