"""◆ The client's side of a fetch session (KIP-227): what a broker remembers need not be asked for again.

The first request names every partition and makes a session; those that follow name only what is to be asked
differently and what is to be forgotten. A partition that an answer named is asked for anew, whatever became of the
answer, since the broker counts it as told. When an answer is lost, the broker doesn't know the session (any more), or a
topic was made anew, it begins anew with a full request, which also ends the old session.

What a request costs depends on what changed since the last one, not on how many partitions there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from raylog.protocol.ids import NO_TOPIC_ID, TopicId, TopicName, TopicPartition
from raylog.protocol.wire.fetch import FetchPartition

_NONE, _INITIAL_EPOCH, FINAL_EPOCH = 0, 0, -1
_MAX_EPOCH = 2**31 - 1
_SPARE_TOPICS = 16
"""How many topics may be remembered beyond twice what is read."""


class Wanted(NamedTuple):
    """What to ask of one partition."""

    fetch: FetchPartition
    topic_id: TopicId
    buffer: object
    """What the answer goes into; one that was asked for another is void."""
    of_replica: bool
    """Whether the broker is not the leader."""


class SessionRequest(NamedTuple):
    """What to put into the next request."""

    session_id: int
    epoch: int
    partitions: dict[TopicPartition, FetchPartition]
    forgotten: list[TopicPartition]


class FetchSession:
    """The session with one broker. One request at a time: :meth:`request`, then :meth:`answered` or :meth:`failed`."""

    __slots__ = ("_changed", "_epoch", "asked", "id", "topic_ids", "topic_names", "wanted")

    def __init__(self) -> None:
        self.id = _NONE
        self.topic_ids: dict[TopicName, TopicId] = {}
        """Of the topics that the broker may look for, which requests and answers name by their ids (KIP-516)."""
        self.topic_names: dict[TopicId, TopicName] = {}
        """The inverse."""
        self._epoch = _INITIAL_EPOCH
        self.wanted: dict[TopicPartition, Wanted] = {}
        """What the next request is to ask for."""
        self.asked: dict[TopicPartition, Wanted] = {}
        """What the broker looks for since the last one, without being told again."""
        self._changed: dict[TopicPartition, None] = {}
        """Where the two may differ."""

    def want(self, tp: TopicPartition, wanted: Wanted) -> None:
        """Ask for this from the next request on."""
        if self.wanted.get(tp) != wanted:
            self._changed[tp] = None
            self.wanted[tp] = wanted

    def forget(self, tp: TopicPartition) -> None:
        """Do not ask for the partition any more."""
        self._changed[tp] = None
        self.wanted.pop(tp, None)

    def request(self) -> SessionRequest:
        """The request after which the broker looks for exactly what is wanted."""
        changed, self._changed = self._changed, {}
        topic_ids = _ids({tp: wanted for tp in changed if (wanted := self.wanted.get(tp)) is not None})
        if any(self.topic_ids.get(name, topic_id) != topic_id for name, topic_id in topic_ids.items()):
            self._epoch = _INITIAL_EPOCH
        if self._epoch == _INITIAL_EPOCH:
            self.asked = self.wanted.copy()
            self._name(_ids(self.asked))
            return SessionRequest(self.id, _INITIAL_EPOCH, {tp: wanted.fetch for tp, wanted in self.asked.items()}, [])
        if len(self.topic_ids) > 2 * len(self.asked) + _SPARE_TOPICS:
            read = {tp.topic for tp in self.asked}  # those that are to be forgotten now, too
            self._name({**{name: self.topic_ids[name] for name in self.topic_ids.keys() & read}, **topic_ids})
        else:
            self.topic_ids.update(topic_ids)
            self.topic_names.update((topic_id, name) for name, topic_id in topic_ids.items())
        partitions: dict[TopicPartition, FetchPartition] = {}
        forgotten: list[TopicPartition] = []
        for tp in changed:
            wanted, before = self.wanted.get(tp), self.asked.pop(tp, None)
            if wanted is not None:
                self.asked[tp] = wanted
                if before is None or before.fetch != wanted.fetch:
                    partitions[tp] = wanted.fetch
            elif before is not None:
                forgotten.append(tp)
        return SessionRequest(self.id, self._epoch, partitions, forgotten)

    def _name(self, topic_ids: dict[TopicName, TopicId]) -> None:
        """These topics, and no others."""
        self.topic_ids = topic_ids
        self.topic_names = {topic_id: name for name, topic_id in topic_ids.items()}

    def answered(self, session_id: int, named: Iterable[TopicPartition]) -> None:
        """The answer came, without an error about the session, and had something of the partitions ``named``."""
        if session_id == _NONE:
            self.failed(unknown=True)  # the broker has no room for one
            return
        self.id = session_id
        self._epoch = self._epoch + 1 if self._epoch < _MAX_EPOCH else 1
        for tp in named:
            if tp in self.asked:
                self.asked[tp] = _ASK_AGAIN
                self._changed[tp] = None

    def failed(self, *, unknown: bool = False) -> None:
        """No answer came, or the broker refused the session; ``unknown``: it hasn't got it."""
        self._epoch = _INITIAL_EPOCH
        if unknown:
            self.id = _NONE


def _ids(wanted: Mapping[TopicPartition, Wanted]) -> dict[TopicName, TopicId]:
    return {tp.topic: each.topic_id for tp, each in wanted.items()}


_ASK_AGAIN = Wanted(FetchPartition(-1, -1, -1), NO_TOPIC_ID, None, False)
"""What no partition is asked for: it differs from whatever comes next."""
