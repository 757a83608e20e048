"""What a group has to handle until it is drained, while brokers fail and topics are deleted or cut.

The cluster is looked at once a second. A look that fails for now is taken again; a topic counts as gone when two looks
in a row do not find it, for the broker that answers one may lag.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence, Set

from raylog.client.admin import Admin
from raylog.protocol.errors import (
    BrokerNotAvailable,
    RaylogError,
    RequestTimedOut,
    UnknownTopicOrPartition,
    is_retriable,
)
from raylog.protocol.ids import LATEST, Offset, TopicId, TopicName, TopicPartition
from raylog.protocol.logs import Logger

__all__ = ["GroupDrain"]

log = Logger(__name__)

LOOK_S = 1.0
_CALL_S = 5.0
"""How long one look may wait for the cluster's answer to a question."""
_FIRST_LOOK_S = 60.0
"""How long the first answer may take to come; without a timeout of the drain's."""


class GroupDrain:
    """Begins with where the topics of a group end; asked again and again, :meth:`is_done` says when that is reached."""

    def __init__(
        self,
        group: str,
        subscribes: Callable[[str], bool],
        open_admin: Callable[[float], Admin],
        timeout_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``open_admin``: an admin client whose calls may take so many seconds; ``clock``: in seconds, monotonic."""
        self._group = group
        self._subscribes = subscribes
        self._open_admin = open_admin
        self._timeout_s = timeout_s
        self._clock = clock
        self._begun = self._look_at = clock()
        self._ends: dict[TopicPartition, Offset] | None = None
        """Where the topics ended at first, no farther than they go now; None while that is not known."""
        self._topic_ids: dict[TopicName, TopicId] = {}
        self._missing: Set[TopicName] = frozenset()
        """Topics that the last look did not find."""
        self._committed: dict[TopicPartition, Offset] = {}
        self._problem: RaylogError | None = None

    def is_done(self, owned: Container[TopicPartition], positions: Mapping[TopicPartition, int]) -> bool:
        """Whether all is handled, by members that own ``owned`` and stand at ``positions``, or by others, who commit.

        Raises RequestTimedOut after the timeout, UnknownTopicOrPartition for a topic that was deleted, and what keeps
        the ends from being known for good.
        """
        if self._clock() >= self._look_at:
            self._look(owned, positions)
            self._look_at = self._clock() + LOOK_S
        behind = self._behind(positions)
        if self._ends is not None and not behind:
            return True
        if self._timeout_s is not None and self._left_s() <= 0:
            handled = {**self._committed, **positions}
            why = [f"{tp} at {handled.get(tp, 'no position')} of {end}" for tp, end in behind.items()]
            raise RequestTimedOut(
                f"group {self._group} is not drained within {self._timeout_s:g} s: "
                + (", ".join(why) or f"it is not known where its topics end: {self._problem}")
            )
        return False

    def _behind(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Offset]:
        """Where those end that are not handled."""
        handled = {**self._committed, **positions}
        return {tp: end for tp, end in (self._ends or {}).items() if handled.get(tp, 0) < end}

    def _left_s(self) -> float:
        """How long a call may take now."""
        if self._timeout_s is None:
            return _CALL_S
        return min(_CALL_S, self._begun + self._timeout_s - self._clock())

    def _look(self, owned: Container[TopicPartition], positions: Mapping[TopicPartition, int]) -> None:
        left_s = self._left_s()
        if self._ends is None and self._problem is None:
            left_s = max(left_s, LOOK_S)  # the first look is taken however late it is: it says what is left
        if left_s <= 0:
            return
        gone: Set[TopicName] = frozenset()
        try:
            with self._open_admin(left_s) as admin:
                gone = self._look_at_topics(admin)
                if any(tp not in owned for tp in self._behind(positions)):  # of members that others made, if of anybody
                    found = admin.list_group_offsets(self._group)
                    self._committed = {tp: committed.offset for tp, committed in found.items()}
        except RaylogError as error:
            passes = is_retriable(error) or isinstance(error, BrokerNotAvailable)
            if not passes or (self._ends is None and self._clock() >= self._begun + _FIRST_LOOK_S):
                raise
            self._problem = error
            log.warning("group %s: it is not known how far it has to go: %s; asking again", self._group, error)
        for topic in gone:
            raise UnknownTopicOrPartition(
                f"group {self._group}: topic {topic} was deleted while it was drained, and what was left of it is "
                "gone; drain again for the others"
            )

    def _look_at_topics(self, admin: Admin) -> Set[TopicName]:
        """Where they end; those that are gone."""
        topics = {topic.name: topic for topic in admin.list_topics() if self._subscribes(topic.name)}
        if self._ends is None:
            partitions = [(name, found.partition) for name, topic in topics.items() for found in topic.partitions]
            self._ends = _ends(admin, partitions)
            self._topic_ids = {name: topic.topic_id for name, topic in topics.items()}
            return frozenset()
        there = {name for name, topic in topics.items() if topic.topic_id == self._topic_ids.get(name)}
        before, self._missing = self._missing, self._topic_ids.keys() - there
        for tp, now in _ends(admin, [tp for tp in self._ends if tp.topic in there]).items():
            if now < self._ends[tp]:
                log.warning(
                    "group %s: %s ends at offset %d now, and at %d before: the log was cut",
                    self._group, tp, now, self._ends[tp],
                )  # fmt: skip
                self._ends[tp] = now
        return before & self._missing


def _ends(admin: Admin, partitions: Sequence[tuple[str, int]]) -> dict[TopicPartition, Offset]:
    return {tp: at.offset for tp, at in admin.list_offsets(dict.fromkeys(partitions, LATEST)).items()}
