"""A fetch session (KIP-227) from the follower's side: what the leader remembers, so that requests name only changes.

The first request names everything and has epoch 0; the leader answers with the session's id, and each later request has
the next epoch. After any failure nobody knows what the leader remembers: the next request is a full one again, which
also ends the session that it names. So it is where a partition was left out and is wanted again before the leader heard
of that: an answer about its former time was dropped, perhaps. A leader that gives no session gets full requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple
from uuid import UUID

from raylog.protocol.wire.fetch import FetchPartition, FetchTopic, ForgottenTopic

__all__ = ["FollowerSession", "SessionRequest"]

NO_SESSION = 0
INITIAL_EPOCH = 0
_MAX_EPOCH = 2**31 - 1

Key = tuple[UUID, int]
"""A partition by its topic's id and its index."""


class SessionRequest(NamedTuple):
    """What goes into a Fetch request."""

    session_id: int
    session_epoch: int
    topics: Sequence[FetchTopic]
    forgotten: Sequence[ForgottenTopic]


class FollowerSession:
    """What is wanted of one leader, and what of that it knows. One thread at a time uses it."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._wanted: dict[Key, FetchPartition] = {}
        self._changed: set[Key] = set()
        """What the leader has heard nothing or something else of, by the last request."""
        self._forgotten: set[Key] = set()
        """What it has heard of and that is wanted no more."""
        self._is_anew = False
        """Something is wanted again of which it was not told that it was not: it would not tell what it told before."""

    def __len__(self) -> int:
        return len(self._wanted)

    def want(self, topic_id: UUID, part: FetchPartition) -> None:
        """Fetch this of the partition from now on. The same again is no news."""
        key = (topic_id, part.partition)
        if self._wanted.get(key) != part:
            self._wanted[key] = part
            self._changed.add(key)
            if key in self._forgotten:
                self._forgotten.discard(key)
                self._is_anew = True

    def leave_out(self, topic_id: UUID, partition: int) -> None:
        """Fetch nothing of it any more."""
        key = (topic_id, partition)
        if self._wanted.pop(key, None) is not None:
            self._changed.discard(key)
            self._forgotten.add(key)

    def request(self) -> SessionRequest:
        """The next request. Then comes :meth:`answered` or :meth:`reset`, and what is wanted may change before."""
        changed, self._changed = self._changed, set()
        forgotten, self._forgotten = self._forgotten, set()
        if self._is_anew:
            self.reset()
            self._is_anew = False
        if self._epoch == INITIAL_EPOCH:
            return SessionRequest(self._id, INITIAL_EPOCH, self._topics(self._wanted), ())
        topics = [
            ForgottenTopic("", topic_id, [partition for _, partition in keys])
            for topic_id, keys in groupby(sorted(forgotten), itemgetter(0))
        ]
        return SessionRequest(self._id, self._epoch, self._topics(changed), topics)

    def answered(self, session_id: int) -> None:
        """The leader took the request in, and answered with this session."""
        self._id = session_id
        if session_id == NO_SESSION:
            self._epoch = INITIAL_EPOCH
        else:
            self._epoch = self._epoch + 1 if self._epoch < _MAX_EPOCH else 1

    def reset(self) -> None:
        """The leader refused the session, or nobody knows what became of the request: name everything again."""
        self._epoch = INITIAL_EPOCH

    def _topics(self, keys: Iterable[Key]) -> list[FetchTopic]:
        return [
            FetchTopic("", topic_id, [self._wanted[key] for key in group])
            for topic_id, group in groupby(sorted(keys), itemgetter(0))
        ]
