"""Fetch sessions (KIP-227): what a client fetches is remembered, so that requests and responses name only changes.

A full fetch (session epoch 0) makes a session. Each later request names its id and the next epoch, adds or changes
partitions, and forgets others. The response leaves out a partition that has no records, no error, and the high
watermark and log start that were told last. A request with another epoch than the next one is refused, for it was
sent twice or out of order; the client then begins anew with a full fetch. Epoch -1 fetches without a session.

What makes a request over a thousand idle partitions cheap: the session watches its partitions (see delayed.py) and
keeps the set of those that must be looked at, :attr:`FetchSession.due`. A partition leaves it when a response told all
that there was, and comes back when it advances or changes its leader, or when the client asks anew.

The cache has so many slots. A new session takes the place of one that was not used for two minutes, or of one that
has been there for two minutes and has fewer partitions; a follower's may also replace any consumer's. If there is
neither, the client gets session id 0, which means that it has none, and goes on with full fetches.

No clock, chance or socket: times, ids and the lock are handed in. Lock order: this one, then that of DelayedFetches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any
from uuid import UUID

from raylog.broker.replication.delayed import DelayedFetches, FetchWatch, Level
from raylog.protocol.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from raylog.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from raylog.protocol.ids import TopicPartition

NO_SESSION = 0
INITIAL_EPOCH, FINAL_EPOCH = 0, -1
_MAX_EPOCH = 2**31 - 1

EVICTION_MS = 120_000
"""A session unused for so long may be evicted by any other; one younger than this by none of its kind (Kafka's)."""

MAX_PARTITIONS = 500_000
"""Over all sessions: each takes some 500 bytes, and a request may name any number, of topics that are not there."""

Key = tuple[str, UUID, int]
"""A partition as the client names it: topic name or id, and index."""

_turn = attrgetter("turn")


class SessionPartition:
    """What a session knows of one partition."""

    __slots__ = ("high_watermark", "key", "log_start", "tp", "turn", "wanted")

    def __init__(self, key: Key, wanted: FetchPartition, turn: int) -> None:
        self.key = key
        self.wanted = wanted
        """What the client asks of it, as of its last word."""
        self.tp: TopicPartition | None = None
        """Where the session watches it: by the name that the topic had when it was read last."""
        self.high_watermark = -1
        self.log_start = -1
        """Both as told last; -1 has them told again."""
        self.turn = turn
        """When it had records last: those that waited longest are read first (KIP-74)."""

    def has_news(self, found: FetchedPartition[Any]) -> bool:
        """Whether the client must hear of ``found``."""
        return (
            found.records is not None
            or found.error_code != 0
            or found.high_watermark != self.high_watermark
            or found.log_start_offset != self.log_start
            or found.preferred_read_replica >= 0
            or found.diverging_epoch.epoch >= 0
        )

    def told(self, found: FetchedPartition[Any]) -> None:
        """Remember what the client hears; once an error is over, it hears of the partition whatever it holds."""
        failed = found.error_code != 0 or found.diverging_epoch.epoch >= 0
        self.high_watermark = -1 if failed else found.high_watermark
        self.log_start = found.log_start_offset


class FetchSession:
    """One client's partitions. It belongs to FetchSessions, which uses it under its lock."""

    def __init__(self, session_id: int, *, by_id: bool, follower: bool, isolation_level: int, now_ms: int) -> None:
        self.id = session_id
        self.epoch = 1
        """What the next request must say."""
        self.by_id = by_id
        self.follower = follower
        self.isolation_level = isolation_level
        self.created_ms = self.used_ms = now_ms
        self.watch = FetchWatch(Level.LOG_END if follower else Level.HIGH_WATERMARK)
        self.partitions: dict[Key, SessionPartition] = {}
        self.watched: dict[TopicPartition, Key] = {}
        self.due: set[Key] = set()
        """What the next read must look at."""
        self._turn = 0

    def next_turn(self) -> int:
        """Greater with each call."""
        self._turn += 1
        return self._turn

    def want(self, topics: Iterable[FetchTopic]) -> None:
        """Add partitions, or take over what the client asks of them now."""
        for name, topic_id, parts in topics:
            for part in parts:
                key = (name, topic_id, part.partition)
                known = self.partitions.get(key)
                if known is None:
                    self.partitions[key] = SessionPartition(key, part, self.next_turn())
                else:
                    known.wanted = part
                self.due.add(key)

    def forget(self, topics: Iterable[ForgottenTopic]) -> list[TopicPartition]:
        """Drop partitions; answers which need not be watched any more."""
        unwatched = []
        for name, topic_id, indexes in topics:
            for index in indexes:
                key = (name, topic_id, index)
                known = self.partitions.pop(key, None)
                self.due.discard(key)
                if known is not None and known.tp is not None and self.watched.get(known.tp) == key:
                    del self.watched[known.tp]
                    unwatched.append(known.tp)
        return unwatched


class IncrementalFetch:
    """One request in its session, from its beginning to its response."""

    def __init__(self, sessions: FetchSessions, session: FetchSession) -> None:
        self._sessions = sessions
        self._session = session
        self._epoch = session.epoch

    @property
    def session_id(self) -> int:
        return self._session.id

    @property
    def watch(self) -> FetchWatch:
        """What a waiting fetch credits what it found to."""
        return self._session.watch

    def look(self, min_bytes: int, wake: Callable[[], None], *, at_all: bool = False) -> list[SessionPartition]:
        """What must be read now, in order; advances from now on are counted and may ``wake`` (see delayed.py).

        ``at_all``: every partition of the session. Raises InvalidFetchSessionEpoch when the client has sent another
        request in this session meanwhile.
        """
        session = self._session
        with self._sessions.lock:
            self._check()
            changed = self._sessions.delayed.arm(session.watch, min_bytes, wake)
            session.due.update(session.watched[tp] for tp in changed if tp in session.watched)
            if at_all:
                session.due.update(session.partitions)
            return sorted((session.partitions[key] for key in session.due), key=_turn)

    def watch_also(self, read: Sequence[tuple[SessionPartition, TopicPartition]]) -> None:
        """Before partitions are read: have their changes noted from now on, under the names that they have now."""
        session = self._session
        with self._sessions.lock:
            self._check()
            for partition, tp in read:
                partition.tp = tp
                session.watched[tp] = partition.key
            self._sessions.delayed.watch(session.watch, [tp for _, tp in read])

    def report(self, read: Sequence[tuple[SessionPartition, FetchedPartition[Any], bool]]) -> list[int]:
        """The numbers of those of ``read`` that the client must hear of; the session counts as answered.

        Each with what was found and whether more could have been read. Raises InvalidFetchSessionEpoch like
        :meth:`look`.
        """
        session, numbers = self._session, []
        with self._sessions.lock:
            self._check()
            self._sessions.delayed.disarm(session.watch)
            for number, (partition, found, more) in enumerate(read):
                if partition.has_news(found):
                    numbers.append(number)
                    partition.told(found)
                if found.records is not None:
                    partition.turn = session.next_turn()
                elif not more and found.error_code == 0:
                    session.due.discard(partition.key)
        return numbers

    def _check(self) -> None:
        if self._session.epoch != self._epoch:
            raise InvalidFetchSessionEpoch(
                f"fetch session {self._session.id}: another request came before this one was answered"
            )


class FetchSessions:
    """The cache of sessions. Any thread may call anything."""

    def __init__(
        self,
        slots: int,
        delayed: DelayedFetches,
        *,
        new_id: Callable[[], int],
        lock: AbstractContextManager[object],
        max_partitions: int = MAX_PARTITIONS,
    ) -> None:
        """``new_id``: a number from 1 to 2**31 - 1, hard to guess; ``lock``, not reentrant, is held briefly."""
        self.lock = lock
        self.delayed = delayed
        self._slots = slots
        self._max_partitions = max_partitions
        self._new_id = new_id
        self._sessions: dict[int, FetchSession] = {}
        """Least recently used first."""
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Over all sessions."""
        return self._partitions

    def begin(self, request: FetchRequest, *, by_id: bool, now_ms: int) -> IncrementalFetch | None:
        """The request's place in its session; None when it is a full fetch, which ends the session that it names.

        ``by_id``: whether the request names topics by id. Raises FetchSessionIdNotFound, InvalidFetchSessionEpoch,
        and FetchSessionTopicIdError when the session's topics are named the other way.
        """
        with self.lock:
            session = self._sessions.get(request.session_id)
            if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
                if session is not None:
                    self._remove(session)
                return None
            if session is None:
                raise FetchSessionIdNotFound(f"there is no fetch session {request.session_id}: send a full fetch")
            where = f"fetch session {session.id}"
            if request.session_epoch != session.epoch:
                raise InvalidFetchSessionEpoch(
                    f"{where}: epoch {request.session_epoch}, expected {session.epoch}: send a full fetch"
                )
            if by_id != session.by_id:
                raise FetchSessionTopicIdError(f"{where} names topics by {'id' if session.by_id else 'name'}")
            return self._advance(session, request, now_ms)

    def _advance(self, session: FetchSession, request: FetchRequest, now_ms: int) -> IncrementalFetch | None:
        before = len(session.partitions)
        session.want(request.topics)
        self.delayed.unwatch(session.watch, session.forget(request.forgotten))
        self._partitions += len(session.partitions) - before
        if self._partitions > self._max_partitions:
            self._remove(session)
            raise FetchSessionIdNotFound(f"fetch session {session.id} outgrew what this broker remembers")
        if not session.partitions:
            self._remove(session)
            return None
        if request.isolation_level != session.isolation_level:
            session.isolation_level = request.isolation_level
            session.due.update(session.partitions)
        self.delayed.rouse(session.watch)  # who waits still was overtaken, and will find that out
        session.epoch = session.epoch + 1 if session.epoch < _MAX_EPOCH else 1
        session.used_ms = now_ms
        self._sessions[session.id] = self._sessions.pop(session.id)
        return IncrementalFetch(self, session)

    def create(self, request: FetchRequest, told: Iterable[FetchedPartition[Any]], *, by_id: bool, now_ms: int) -> int:
        """Remember a full fetch, answered with ``told`` in the request's order; the id, or 0 where none fits in."""
        follower = request.replica_id >= 0
        size = sum(len(topic.partitions) for topic in request.topics)
        with self.lock:
            if size == 0 or self._partitions + size > self._max_partitions:
                return NO_SESSION
            if not self._make_room(follower, size, now_ms):
                return NO_SESSION
            session_id = self._new_id()
            while session_id in self._sessions:
                session_id = self._new_id()
            session = FetchSession(
                session_id, by_id=by_id, follower=follower, isolation_level=request.isolation_level, now_ms=now_ms
            )
            session.want(request.topics)
            keys = ((name, topic_id, part.partition) for name, topic_id, parts in request.topics for part in parts)
            for key, found in zip(keys, told, strict=True):
                session.partitions[key].told(found)
            self._sessions[session_id] = session
            self._partitions += len(session.partitions)
        return session_id

    def _make_room(self, follower: bool, size: int, now_ms: int) -> bool:
        """Evict a session if that is needed for one of ``size`` partitions; False when it may evict none."""
        if len(self._sessions) < self._slots:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.used_ms > EVICTION_MS:
            self._remove(oldest)
            return True
        evictable = (
            session
            for session in self._sessions.values()
            if now_ms - session.created_ms > EVICTION_MS or (follower and not session.follower)
        )
        victim = min(evictable, key=_rank, default=None)
        if victim is None or (follower, size) < _rank(victim):
            return False
        self._remove(victim)
        return True

    def _remove(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self._partitions -= len(session.partitions)
        self.delayed.remove(session.watch)


def _rank(session: FetchSession) -> tuple[bool, int]:
    """What is evicted first: consumers before followers, the fewest partitions first."""
    return session.follower, len(session.partitions)
