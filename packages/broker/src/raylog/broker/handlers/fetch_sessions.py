"""Fetch sessions (KIP-227): what a client fetches is remembered, so that requests and responses name only changes.

A full fetch (session epoch 0) makes a session. Each later request names its id and the next epoch, adds or changes
partitions, and forgets others. The response leaves out a partition that has no records, no error, and the high
watermark and log start that were told last. A request with another epoch than the next one is refused, for it was
sent twice or out of order; the client then begins anew with a full fetch. Epoch -1 fetches without a session.

What makes a request over a thousand idle partitions cheap: the session watches its partitions (see delayed.py) and
keeps the set of those that must be looked at, those that are due. A partition leaves it when a response told all that
there was, and comes back when it advances or changes its leader, or when the client asks anew. One that fails stays
due, so a session with more than MAX_FAILING such partitions ends: its client names them in full fetches, and pays with
bytes for what they cost.

The cache has so many slots. A new session takes the place of one that was not used for two minutes, or of one that
has been there for two minutes and has fewer partitions; a follower's may also replace any consumer's. If there is
neither, the client gets session id 0, which means that it has none, and goes on with full fetches.

A session has a lock of its own, under which it does what its request costs. The cache's lock, which all share, is held
to find, count, admit and evict sessions. No clock, chance or socket: times, ids and locks are handed in. Lock order:
a session's, then the cache's or that of DelayedFetches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any, cast
from uuid import UUID

from raylog.broker.replication.delayed import DelayedFetches, FetchWatch, Interest, Level
from raylog.protocol.errors import FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch
from raylog.protocol.ids import TopicPartition
from raylog.protocol.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

NO_SESSION = 0
INITIAL_EPOCH, FINAL_EPOCH = 0, -1
_MAX_EPOCH = 2**31 - 1

EVICTION_MS = 120_000
"""A session unused for so long may be evicted by any other; one younger than this by none of its kind (Kafka's)."""

MAX_PARTITIONS = 500_000
"""Over all sessions: each takes some 500 bytes, and a request may name any number, of topics that are not there."""

MAX_FAILING = 1_000
"""In one session: a partition that fails is read anew by every request, of which 53 bytes are enough."""

Key = tuple[str, UUID, int]
"""A partition as the client names it: topic name or id, and index."""

Lock = AbstractContextManager[object]

_turn = attrgetter("turn")


class SessionPartition(Interest):
    """What a session knows of one partition."""

    __slots__ = ("high_watermark", "key", "log_start", "turn", "wanted")

    def __init__(self, watch: FetchWatch, key: Key, wanted: FetchPartition, turn: int) -> None:
        super().__init__(watch)
        self.key = key
        self.wanted = wanted
        """What the client asks of it, as of its last word."""
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
    """One client's partitions. All but what the cache counts is used under :attr:`lock`."""

    def __init__(
        self,
        session_id: int,
        delayed: DelayedFetches,
        lock: Lock,
        *,
        by_id: bool,
        follower: bool,
        isolation_level: int,
        now_ms: int,
    ) -> None:
        self.id = session_id
        self.lock = lock
        self.delayed = delayed
        self.epoch = 1
        """What the next request must say."""
        self.by_id = by_id
        self.follower = follower
        self.isolation_level = isolation_level
        self.watch = FetchWatch(Level.LOG_END if follower else Level.HIGH_WATERMARK)
        self.partitions: dict[Key, SessionPartition] = {}
        self._due: set[SessionPartition] = set()
        """Those of :attr:`partitions` that the next read must look at."""
        self._turn = 0
        self.created_ms = self.used_ms = now_ms
        self.counted = 0
        """Its partitions, as the cache counts them; like the times before under the cache's lock."""

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
                    known = self.partitions[key] = SessionPartition(self.watch, key, part, self.next_turn())
                else:
                    known.wanted = part
                self._due.add(known)

    def forget(self, topics: Iterable[ForgottenTopic]) -> None:
        """Drop partitions: they are neither due nor watched any more."""
        gone = []
        for name, topic_id, indexes in topics:
            for index in indexes:
                known = self.partitions.pop((name, topic_id, index), None)
                if known is not None:
                    self._due.discard(known)
                    gone.append(known)
        self.delayed.unwatch(gone)

    def all_due(self) -> None:
        """Every partition must be looked at."""
        self._due.update(self.partitions.values())

    def take_changes(self, min_bytes: int, wake: Callable[[], None]) -> list[SessionPartition]:
        """What is due now that changes are counted from here on, in order; see :meth:`DelayedFetches.arm`."""
        changed = self.delayed.arm(self.watch, min_bytes, wake)
        self._due |= cast("set[SessionPartition]", changed)  # its watch has no other interests
        return sorted(self._due, key=_turn)

    def settle(self, partition: SessionPartition, found: FetchedPartition[Any], *, more: bool) -> bool:
        """Note what was read; whether the client must hear of it. What is not watched any more stays due."""
        is_news = partition.has_news(found)
        if is_news:
            partition.told(found)
        if found.records is not None:
            partition.turn = self.next_turn()
        elif not more and found.error_code == 0 and partition.at is not None:
            self._due.discard(partition)
        return is_news


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
        with session.lock:
            self._check()
            if at_all:
                session.all_due()
            return session.take_changes(min_bytes, wake)

    def watch_also(self, read: Iterable[tuple[SessionPartition, TopicPartition | None]]) -> None:
        """Before partitions are read: have their changes noted from now on, under the names that they have now.

        None stands for one that does not exist: it is due until it does. Raises InvalidFetchSessionEpoch like
        :meth:`look`.
        """
        with self._session.lock:
            self._check()
            self._session.delayed.watch(read)

    def report(self, read: Sequence[tuple[SessionPartition, FetchedPartition[Any], bool]]) -> list[int]:
        """The numbers of those of ``read`` that the client must hear of; the session counts as answered.

        Each with what was found and whether more could have been read. Raises InvalidFetchSessionEpoch like
        :meth:`look`.
        """
        session = self._session
        with session.lock:
            self._check()
            session.delayed.disarm(session.watch)
            news = [
                number
                for number, (partition, found, more) in enumerate(read)
                if session.settle(partition, found, more=more)
            ]
        if len(read) > MAX_FAILING and sum(found.error_code != 0 for _, found, _ in read) > MAX_FAILING:
            self._sessions.end(session)
        return news

    def leave(self) -> None:
        """Nobody waits for its response any more; another request of the session may."""
        session = self._session
        with session.lock:
            if session.epoch == self._epoch:
                session.delayed.disarm(session.watch)

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
        new_lock: Callable[[], Lock],
        max_partitions: int = MAX_PARTITIONS,
    ) -> None:
        """``new_id``: a number from 1 to 2**31 - 1, hard to guess; ``new_lock``: makes a lock, not reentrant."""
        self.delayed = delayed
        self._lock = new_lock()
        """Held for what costs the same whatever a request names; with all slots in use, for a look at each session."""
        self._new_lock = new_lock
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
        with self._lock:
            session = self._sessions.get(request.session_id)
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                self.end(session)
            return None
        if session is None:
            raise FetchSessionIdNotFound(f"there is no fetch session {request.session_id}: send a full fetch")
        where = f"fetch session {session.id}"
        with session.lock:
            if request.session_epoch != session.epoch:
                raise InvalidFetchSessionEpoch(
                    f"{where}: epoch {request.session_epoch}, expected {session.epoch}: send a full fetch"
                )
            if by_id != session.by_id:
                raise FetchSessionTopicIdError(f"{where} names topics by {'id' if session.by_id else 'name'}")
            return self._advance(session, request, now_ms)

    def _advance(self, session: FetchSession, request: FetchRequest, now_ms: int) -> IncrementalFetch | None:
        session.epoch = session.epoch + 1 if session.epoch < _MAX_EPOCH else 1
        self.delayed.rouse(session.watch)  # what waits still was overtaken, and will find that out
        session.want(request.topics)
        session.forget(request.forgotten)
        if not session.partitions:
            self.end(session)
            return None
        if not self._recount(session, now_ms):
            self.end(session)
            raise FetchSessionIdNotFound(
                f"fetch session {session.id} was evicted just now, or outgrew what this broker remembers"
            )
        if request.isolation_level != session.isolation_level:
            session.isolation_level = request.isolation_level
            session.all_due()
        return IncrementalFetch(self, session)

    def _recount(self, session: FetchSession, now_ms: int) -> bool:
        """Count the session as used and as large as it is now; False when it is not in the cache or too large."""
        size = len(session.partitions)
        with self._lock:
            total = self._partitions + size - session.counted
            if self._sessions.get(session.id) is not session or total > self._max_partitions:
                return False
            self._partitions, session.counted = total, size
            session.used_ms = now_ms
            self._sessions[session.id] = self._sessions.pop(session.id)
        return True

    def create(self, request: FetchRequest, told: Iterable[FetchedPartition[Any]], *, by_id: bool, now_ms: int) -> int:
        """Remember a full fetch, answered with ``told`` in the request's order; the id, or 0 where none fits in.

        It names each partition once, or none at all.
        """
        found = list(told)
        if sum(each.error_code != 0 for each in found) > MAX_FAILING:
            return NO_SESSION
        follower = request.replica_id >= 0
        with self._lock:  # the session is in the cache with its size before it is filled
            evicted, has_room = self._make_room(follower, len(found), now_ms)
            if has_room:
                session_id = self._new_id()
                while session_id in self._sessions:
                    session_id = self._new_id()
                session = FetchSession(
                    session_id, self.delayed, self._new_lock(), by_id=by_id, follower=follower,
                    isolation_level=request.isolation_level, now_ms=now_ms,
                )  # fmt: skip
                session.counted = len(found)
                self._partitions += session.counted
                self._sessions[session_id] = session
        if evicted is not None:
            self.delayed.remove(evicted.watch)
        if not has_room:
            return NO_SESSION
        with session.lock:
            session.want(request.topics)
            keys = ((name, topic_id, part.partition) for name, topic_id, parts in request.topics for part in parts)
            for key, each in zip(keys, found, strict=True):
                session.partitions[key].told(each)
        return session_id

    def _make_room(self, follower: bool, size: int, now_ms: int) -> tuple[FetchSession | None, bool]:
        """Under the lock: what was taken out of the cache for a session of ``size``, and whether that one fits in."""
        if self._partitions + size > self._max_partitions:
            return None, False
        if len(self._sessions) < self._slots:
            return None, True
        victim = next(iter(self._sessions.values()), None)
        if victim is None:
            return None, False
        if now_ms - victim.used_ms <= EVICTION_MS:
            evictable = (
                session
                for session in self._sessions.values()
                if now_ms - session.created_ms > EVICTION_MS or (follower and not session.follower)
            )
            victim = min(evictable, key=_rank, default=None)
            if victim is None or (follower, size) < _rank(victim):
                return None, False
        self._take_out(victim)
        return victim, True

    def end(self, session: FetchSession) -> None:
        """Forget the session; its client is told with its next request. A second time nothing happens."""
        with self._lock:
            self._take_out(session)
        self.delayed.remove(session.watch)

    def _take_out(self, session: FetchSession) -> None:
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]
            self._partitions -= session.counted


def _rank(session: FetchSession) -> tuple[bool, int]:
    """What is evicted first: consumers before followers, the fewest partitions first."""
    return session.follower, session.counted
