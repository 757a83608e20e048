"""◆ Which of a topic's ids is the newest: brokers that lag tell one that it had before (KIP-516).

Ids have no order. One that was never told before is taken; one that was, and was replaced since, comes from a broker
that lags, and is passed over. But what was told first may have been the older one, and what was taken for newer may be
gone: so a former id is taken where brokers go on telling it, or where one of them refused the id that is held.
"""

from __future__ import annotations

from collections.abc import Container

from raylog.protocol.ids import TopicId

__all__ = ["TopicIds"]

_REMEMBERED = 8
"""Ids of a topic that is made anew over and over; brokers do not lag by more."""
_INSISTING = 5
"""So many answers in a row with the same former id are not of a broker that lags for a moment."""


class TopicIds:
    """Of the topics that a client keeps, by name."""

    def __init__(self) -> None:
        self._told: dict[str, list[TopicId]] = {}
        """The one that is held last; also while no broker knows the topic."""
        self._former: dict[str, tuple[TopicId, int]] = {}
        """Which former one the last answers told, and how many in a row."""

    def takes(self, topic: str, topic_id: TopicId) -> bool:
        """Whether to believe that this is the topic's id now."""
        told = self._told.setdefault(topic, [])
        if topic_id in told and topic_id != told[-1]:
            before, times = self._former.get(topic, (topic_id, 0))
            if before != topic_id or times + 1 < _INSISTING:
                self._former[topic] = topic_id, times + 1 if before == topic_id else 1
                return False
            told.remove(topic_id)
        self._former.pop(topic, None)
        if not told or topic_id != told[-1]:
            told.append(topic_id)
            del told[:-_REMEMBERED]
        return True

    def keep(self, topics: Container[str]) -> None:
        """Forget all others."""
        for by_topic in (self._told, self._former):
            for name in [name for name in by_topic if name not in topics]:
                del by_topic[name]

    def refused(self, topic: str, topic_id: TopicId) -> None:
        """A broker knows no topic of that id: if it is the one that is held, any other may be the right one."""
        told = self._told.get(topic)
        if told and told[-1] == topic_id:
            del told[:-1]
