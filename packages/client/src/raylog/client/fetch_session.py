"""◆ The client's side of a fetch session (KIP-227): what a broker remembers need not be asked for again.

The first request names every partition and makes a session; those that follow name only what is to be asked
differently and what is to be forgotten. A partition that an answer named is asked for anew, whatever became of the
answer, since the broker counts it as told. When an answer is lost, the broker doesn't know the session (any more), or a
topic was made anew, it begins anew with a full request, which also ends the old session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from raylog.protocol.fetch import FetchPartition
from raylog.protocol.ids import TopicId, TopicName, TopicPartition

_NONE, _INITIAL_EPOCH, FINAL_EPOCH = 0, 0, -1
_MAX_EPOCH = 2**31 - 1


class SessionRequest(NamedTuple):
    """What to put into the next request."""

    session_id: int
    epoch: int
    partitions: list[tuple[TopicPartition, FetchPartition]]
    forgotten: list[TopicPartition]


class FetchSession:
    """The session with one broker. One request at a time: :meth:`request`, then :meth:`answered` or :meth:`failed`."""

    __slots__ = ("_epoch", "_known", "id", "topic_ids", "topic_names")

    def __init__(self) -> None:
        self.id = _NONE
        self.topic_ids: dict[TopicName, TopicId] = {}
        """Of the topics that the broker may look for, which requests and answers name by their ids (KIP-516)."""
        self.topic_names: dict[TopicId, TopicName] = {}
        """The inverse."""
        self._epoch = _INITIAL_EPOCH
        self._known: dict[TopicPartition, FetchPartition] = {}
        """What the broker will look for without being told again."""

    def request(
        self, wanted: Mapping[TopicPartition, FetchPartition], topic_ids: Mapping[TopicName, TopicId]
    ) -> SessionRequest:
        """The request after which the broker looks for exactly ``wanted``, whose topics have ``topic_ids``."""
        if any(self.topic_ids.get(name, topic_id) != topic_id for name, topic_id in topic_ids.items()):
            self._epoch = _INITIAL_EPOCH
        if self._epoch == _INITIAL_EPOCH:
            self._known, self.topic_ids, self.topic_names = dict(wanted), {}, {}
        self.topic_ids.update(topic_ids)
        self.topic_names.update((topic_id, name) for name, topic_id in topic_ids.items())
        if self._epoch == _INITIAL_EPOCH:
            return SessionRequest(self.id, _INITIAL_EPOCH, [*wanted.items()], [])
        known = self._known
        changed = [(tp, asked) for tp, asked in wanted.items() if known.get(tp) != asked]
        forgotten = [tp for tp in known if tp not in wanted]
        for tp in forgotten:
            del known[tp]
        known.update(changed)
        return SessionRequest(self.id, self._epoch, changed, forgotten)

    def answered(self, session_id: int, named: Iterable[TopicPartition]) -> None:
        """The answer came, without an error about the session, and had something of the partitions ``named``."""
        if session_id == _NONE:
            self.failed(unknown=True)  # the broker has no room for one
            return
        self.id = session_id
        self._epoch = self._epoch + 1 if self._epoch < _MAX_EPOCH else 1
        for tp in named:
            if tp in self._known:
                self._known[tp] = _ASK_AGAIN

    def failed(self, *, unknown: bool = False) -> None:
        """No answer came, or the broker refused the session; ``unknown``: it hasn't got it."""
        self._epoch = _INITIAL_EPOCH
        if unknown:
            self.id = _NONE


_ASK_AGAIN = FetchPartition(-1, -1, -1)
"""What no partition is asked for: it differs from whatever comes next."""
