"""Fetch (API 1): read record batches, waiting for them if asked to.

v4      isolation level, record format 2
v5      the log's start offset
v7      fetch sessions (KIP-227): requests and responses name what changed, see handlers/fetch_sessions.py
v9      the leader epoch that the client knows, for fencing (KIP-320)
v11     rack and preferred read replica (KIP-392): with replica.selector.class, a leader sends a consumer that names its
        rack to an in-sync replica there, and followers serve such consumers
v12     flexible; last fetched epoch and diverging epoch, for followers
v13     topics by id (KIP-516)
v15-18  replica state, node endpoints (KIP-951), directory ids, high watermarks: endpoints are for clients, the rest
        for followers

A follower (replica id and incarnation) reads up to the log's end, and what it asks for tells the leader how far it has
come: its fetch may move the high watermark. Where its log differs from the leader's, it is told where (KIP-595) and
gets no records. A consumer that calls itself replica -2 is a tool that compares replicas: followers serve it, too.

The response holds what lies at the asked offsets up to the high watermark: at most max_bytes in all and per
partition, but always the whole first batch, however large (KIP-74). It is sent at once when there are
min_bytes, when there is an error to tell or when the client does not want to wait; else when enough has
arrived, or after max_wait with what is there.

As in Kafka, a partition that is named twice is fetched once, as it is asked for last, and a topic without partitions is
left out; another isolation level than 0 and 1 fails with UNKNOWN_SERVER_ERROR, and so does a negative max_bytes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby
from math import inf
from typing import Protocol, cast
from uuid import UUID

from raylog.broker.handlers.awaited import News, Wake
from raylog.broker.handlers.context import (
    DelayedReply,
    Ports,
    Reply,
    RequestContext,
)
from raylog.broker.handlers.fetch_sessions import INITIAL_EPOCH, NO_SESSION, IncrementalFetch, SessionPartition
from raylog.broker.handlers.leaders import lease_held, node_endpoints
from raylog.broker.handlers.records.fetch_read import Found, Wanted, read, resolve
from raylog.broker.replication.delayed import FetchWatch, Interest, Level
from raylog.broker.storage.disk.files import WouldWait
from raylog.broker.storage.disk.slices import FileSlice
from raylog.protocol.errors import (
    ErrorCode,
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
    RaylogError,
    code_of,
)
from raylog.protocol.wire.fetch import (
    FetchedPartition,
    FetchedTopic,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    encode_fetch_response,
    parse_fetch_request,
)
from raylog.protocol.wire.primitives import FIRST_TOPIC_ID


def handle(ctx: RequestContext, body: memoryview, ports: Ports) -> Reply:
    """Read, wait if there is too little and read again. Every partition's failure is its own error code."""
    request = parse_fetch_request(ctx.version, body)
    by_id = ctx.version >= FIRST_TOPIC_ID
    if request.isolation_level not in (0, 1):
        return _refused(ctx, request, ErrorCode.unknown_server_error)
    try:
        incremental = ports.fetch_sessions.begin(request, by_id=by_id, now_ms=ports.monotonic_ms())
    except (FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch) as error:
        return _session_refused(ctx, error)
    if incremental is not None:
        fetch = _SessionFetch(ctx, ports, request, incremental)
        return _LongPoll(ctx, ports, request, fetch, is_first=True).reply()
    return _fetch_all(ctx, ports, request._replace(topics=_once(request.topics)), by_id)


def _session_refused(ctx: RequestContext, error: RaylogError) -> Sequence[bytes | FileSlice]:
    response = FetchResponse[FileSlice]((), ctx.throttle_ms, code_of(error).value)
    return encode_fetch_response(ctx.version, ctx.correlation_id, response)


def _refused(ctx: RequestContext, request: FetchRequest, code: ErrorCode) -> Reply:
    """One error for all: of the request, and up to version 12 of each partition, too."""
    topics = [
        FetchedTopic[FileSlice](
            name, topic_id, [FetchedPartition(part.partition, code.value, aborted=()) for part in parts]
        )
        for name, topic_id, parts in (() if ctx.version >= FIRST_TOPIC_ID else request.topics)
    ]
    return encode_fetch_response(ctx.version, ctx.correlation_id, FetchResponse(topics, ctx.throttle_ms, code.value))


def _once(topics: Sequence[FetchTopic]) -> Sequence[FetchTopic]:
    """Each partition once, as it is asked for last, and no topic without any."""
    distinct = len(topics) == 1 or len({name or topic_id.int for name, topic_id, _ in topics}) == len(topics)
    if distinct and all(
        len(parts) == 1 or (parts and len({part.partition for part in parts}) == len(parts)) for _, _, parts in topics
    ):
        return topics  # as nearly always, and in a fraction of the time
    asked = {(name, topic_id, part.partition): part for name, topic_id, parts in topics for part in parts}
    by_topic = groupby(asked.items(), key=lambda item: item[0][:2])
    return [FetchTopic(name, topic_id, [part for _, part in parts]) for (name, topic_id), parts in by_topic]


def _fetch_all(ctx: RequestContext, ports: Ports, request: FetchRequest, by_id: bool) -> Reply:
    """A full fetch: everything is in the request and in the response. It may begin a session."""
    fetch = _FullFetch(ctx, ports, request, by_id)
    try:
        found = read(ctx, ports, request, fetch.wanted, first=True, may_wait=ctx.may_wait)
    except WouldWait:
        return _LongPoll(ctx, ports, request, fetch, is_first=True, waits_for_disk=True)
    if fetch.wanted and request.max_wait_ms > 0 and not _enough(request, found):
        found.release()
        return _LongPoll(ctx, ports, request, fetch, is_first=False).reply()
    return fetch.respond(fetch.wanted, found)


class _Fetch(Protocol):
    """What a long poll reads, and how it is answered."""

    @property
    def watch(self) -> FetchWatch: ...

    def look(self, wake: Wake) -> list[Wanted]:
        """What to read now; ``wake`` is called when there may be enough. Raises InvalidFetchSessionEpoch."""

    def respond(self, wanted: Sequence[Wanted], found: Found) -> Sequence[bytes | FileSlice]:
        """Raises InvalidFetchSessionEpoch; what was found is given back then."""

    def leave(self) -> None:
        """It does not wait any more."""


class _FullFetch:
    def __init__(self, ctx: RequestContext, ports: Ports, request: FetchRequest, by_id: bool) -> None:
        self._ctx, self._ports, self._request, self._by_id = ctx, ports, request, by_id
        self.wanted = [
            resolve(ctx, ports, request, topic.name, topic.topic_id, part)
            for topic in request.topics
            for part in topic.partitions
        ]

    @cached_property
    def watch(self) -> FetchWatch:
        """Made once it is needed: most fetches find enough at once."""
        return FetchWatch(Level.LOG_END if self._request.replica_id >= 0 else Level.HIGH_WATERMARK)

    def look(self, wake: Wake) -> list[Wanted]:
        delayed = self._ports.delayed
        delayed.arm(self.watch, self._request.min_bytes, wake)
        delayed.watch((Interest(self.watch), tp) for tp in {each.tp for each in self.wanted})
        return self.wanted

    def respond(self, wanted: Sequence[Wanted], found: Found) -> Sequence[bytes | FileSlice]:
        ctx, ports, request = self._ctx, self._ports, self._request
        session_id = NO_SESSION
        if request.session_epoch == INITIAL_EPOCH:
            sessions = ports.fetch_sessions
            session_id = sessions.create(request, found.partitions, by_id=self._by_id, now_ms=ports.monotonic_ms())
        topics, at = [], 0
        for name, topic_id, parts in request.topics:
            topics.append(FetchedTopic(name, topic_id, found.partitions[at : at + len(parts)]))
            at += len(parts)
        _count(ctx, request, zip(wanted, found.partitions, strict=True))
        ports.leader_quota.take(found.throttled)
        return _encode(ctx, ports, session_id, topics, found.at_once)

    def leave(self) -> None:
        self._ports.delayed.remove(self.watch)


class _SessionFetch:
    """A fetch in a session: what has no news is neither read nor answered."""

    def __init__(self, ctx: RequestContext, ports: Ports, request: FetchRequest, incremental: IncrementalFetch) -> None:
        self._ctx, self._ports, self._request, self._incremental = ctx, ports, request, incremental
        self.watch = incremental.watch
        self._looked_at: Sequence[SessionPartition] = ()

    def look(self, wake: Wake) -> list[Wanted]:
        ctx, ports, request = self._ctx, self._ports, self._request
        at_all = not lease_held(ports)  # every partition must tell so, whether it changed or not
        self._looked_at = looked_at = self._incremental.look(request.min_bytes, wake, at_all=at_all)
        wanted = [
            resolve(ctx, ports, request, name, topic_id, known.wanted)
            for known in looked_at
            for name, topic_id, _ in (known.key,)
        ]
        state = ports.cluster.state()
        places = [None if state.partition(each.tp) is None else each.tp for each in wanted]
        self._incremental.watch_also(zip(looked_at, places, strict=True))
        return wanted

    def respond(self, wanted: Sequence[Wanted], found: Found) -> Sequence[bytes | FileSlice]:
        ctx, ports = self._ctx, self._ports
        looked_at = self._looked_at
        try:
            told = self._incremental.report(list(zip(looked_at, found.partitions, found.more, strict=True)))
        except InvalidFetchSessionEpoch:
            found.release()
            raise
        topics: dict[tuple[str, UUID], FetchedTopic[FileSlice]] = {}
        for number in told:
            name, topic_id, _ = looked_at[number].key
            topic = topics.setdefault((name, topic_id), FetchedTopic(name, topic_id, []))
            cast("list[FetchedPartition[FileSlice]]", topic.partitions).append(found.partitions[number])
        _count(ctx, self._request, ((wanted[number], found.partitions[number]) for number in told))
        ports.leader_quota.take(found.throttled)
        return _encode(ctx, ports, self._incremental.session_id, list(topics.values()), found.at_once)

    def leave(self) -> None:
        self._incremental.leave()


class _LongPoll(DelayedReply):
    """A fetch that reads whenever there may be enough, until there is or its time is over."""

    __slots__ = (
        "_ctx",
        "_deadline_s",
        "_error",
        "_fetch",
        "_found",
        "_is_first",
        "_news",
        "_ports",
        "_request",
        "_waits_for_disk",
    )

    def __init__(
        self,
        ctx: RequestContext,
        ports: Ports,
        request: FetchRequest,
        fetch: _Fetch,
        *,
        is_first: bool,
        waits_for_disk: bool = False,
    ) -> None:
        """``is_first``: nothing was read yet. ``waits_for_disk``: to read takes the disk, as was found."""
        self._ctx, self._ports, self._request, self._fetch = ctx, ports, request, fetch
        self._deadline_s = time.monotonic() + request.max_wait_ms / 1000
        self._is_first = is_first
        self._news = News()
        self._found: tuple[list[Wanted], Found] | None = None
        self._error: RaylogError | None = None
        """It was overtaken by another request of its session."""
        self._waits_for_disk = waits_for_disk

    def reply(self) -> Reply:
        """The response, if there is enough now, or this."""
        self._look(may_wait=self._ctx.may_wait, in_time=self._request.max_wait_ms > 0)
        return self.finish() if self._has_ended else self

    @property
    def _has_ended(self) -> bool:
        return self._found is not None or self._error is not None

    @property
    def deadline_s(self) -> float:
        return inf if self._waits_for_disk else self._deadline_s

    @property
    def waits_for_disk(self) -> bool:
        return self._waits_for_disk

    def read_disk(self) -> None:
        self._waits_for_disk = False
        self._look(may_wait=True, in_time=time.monotonic() < self._deadline_s)

    def is_over(self) -> bool:
        if not (self._has_ended or self._waits_for_disk):
            in_time = time.monotonic() < self._deadline_s
            if not in_time or self._news.take():
                self._look(may_wait=False, in_time=in_time)
        return self._has_ended

    def notify(self, wake: Wake) -> None:
        self._news.notify(wake)

    def finish(self) -> Sequence[bytes | FileSlice]:
        try:
            if self._found is not None:
                (wanted, found), self._found = self._found, None
                return self._fetch.respond(wanted, found)
            assert self._error is not None
            return _session_refused(self._ctx, self._error)
        except InvalidFetchSessionEpoch as error:
            return _session_refused(self._ctx, error)
        finally:
            self._fetch.leave()

    def abandon(self) -> None:
        found, self._found = self._found, None
        if found is not None:
            found[1].release()
        self._fetch.leave()

    def _look(self, *, may_wait: bool, in_time: bool) -> None:
        try:
            wanted = self._fetch.look(self._news.come)
            found = read(self._ctx, self._ports, self._request, wanted, first=self._is_first, may_wait=may_wait)
        except InvalidFetchSessionEpoch as error:
            self._error = error
            return
        except WouldWait:
            self._waits_for_disk = True
            return
        self._is_first = False
        if in_time and not _enough(self._request, found):
            found.release()
            self._ports.delayed.credit(self._fetch.watch, found.size)
        else:
            self._found = wanted, found


def _enough(request: FetchRequest, found: Found) -> bool:
    return found.size >= request.min_bytes or found.at_once


def _count(
    ctx: RequestContext, request: FetchRequest, sent: Iterable[tuple[Wanted, FetchedPartition[FileSlice]]]
) -> None:
    all_counters = ctx.connection.counters
    counters = all_counters.replication_bytes_out if request.replica_id >= 0 else all_counters.bytes_out
    for wanted, partition in sent:
        if partition.records is not None:
            topic = wanted.tp.topic
            counters[topic] = counters.get(topic, 0) + partition.records.length


def _encode(
    ctx: RequestContext, ports: Ports, session_id: int, topics: Sequence[FetchedTopic[FileSlice]], at_once: bool
) -> Sequence[bytes | FileSlice]:
    leaders: list[int] = []
    if at_once:
        leaders = [part.leader_id for topic in topics for part in topic.partitions if part.leader_id >= 0]
    endpoints = node_endpoints(ctx, ports, leaders) if leaders else ()
    response = FetchResponse(topics, ctx.throttle_ms, session_id=session_id, node_endpoints=endpoints)
    return encode_fetch_response(ctx.version, ctx.correlation_id, response)
