"""Fetch (API 1): read record batches, waiting for them if asked to.

v4      isolation level, record format 2
v5      the log's start offset
v7      fetch sessions (KIP-227): requests and responses name what changed, see handlers/fetch_sessions.py
v9      the leader epoch that the client knows, for fencing (KIP-320)
v11     rack and preferred read replica (KIP-392): always the leader
v12     flexible; last fetched epoch and diverging epoch, for followers
v13     topics by id (KIP-516)
v15-18  replica state, node endpoints (KIP-951), directory ids, high watermarks: endpoints are for clients, the rest
        for followers

The response holds what lies at the asked offsets up to the high watermark: at most max_bytes in all and per
partition, but always the whole first batch, however large (KIP-74). It is sent at once when there are
min_bytes, when there is an error to tell or when the client does not want to wait; else when enough has
arrived, or after max_wait with what is there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, cast
from uuid import UUID

from raylog.broker.config import FETCH_MAX_BYTES
from raylog.broker.handlers.context import Operation, Ports, Reply, RequestContext, Resource
from raylog.broker.handlers.entities import failure
from raylog.broker.handlers.fetch_sessions import INITIAL_EPOCH, NO_SESSION, IncrementalFetch, SessionPartition
from raylog.broker.handlers.leaders import leader_hint, node_endpoints
from raylog.broker.partition import Isolation
from raylog.broker.replication.delayed import FetchWatch
from raylog.broker.storage.files import FileSlice
from raylog.protocol.errors import (
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
    NotLeaderOrFollower,
    RaylogError,
    TopicAuthorizationFailed,
    UnknownTopicId,
    code_of,
)
from raylog.protocol.fetch import (
    AbortedTransaction,
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    encode_fetch_response,
    parse_fetch_request,
)
from raylog.protocol.ids import LeaderEpoch, Offset, PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.protocol.wire import FIRST_TOPIC_ID

PEER_CHECK_S = 1.0
"""How often a waiting fetch looks whether its client is still there."""

Wake = Callable[[], None]


class Wanted(NamedTuple):
    """One partition to read, or why it cannot be read."""

    tp: TopicPartition
    part: FetchPartition
    refusal: RaylogError | None


class Found(NamedTuple):
    """What one pass over the wanted partitions found."""

    partitions: list[FetchedPartition[FileSlice]]
    more: list[bool]
    """For each, whether there is more than it got."""
    size: int
    failed: bool

    def release(self) -> None:
        """Give the slices back: they are not sent."""
        for partition in self.partitions:
            if partition.records is not None:
                partition.records.release()


def handle(ctx: RequestContext, body: memoryview, ports: Ports) -> Reply:
    """Read, wait if there is too little and read again. Every partition's failure is its own error code."""
    request = parse_fetch_request(ctx.version, body)
    by_id = ctx.version >= FIRST_TOPIC_ID
    try:
        incremental = ports.fetch_sessions.begin(request, by_id=by_id, now_ms=_uptime_ms())
        if incremental is not None:
            return _fetch_changes(ctx, ports, request, incremental)
    except (FetchSessionIdNotFound, FetchSessionTopicIdError, InvalidFetchSessionEpoch) as error:
        response = FetchResponse[FileSlice]((), ctx.throttle_ms, code_of(error).value)
        return encode_fetch_response(ctx.version, ctx.correlation_id, response)
    return _fetch_all(ctx, ports, request, by_id)


def _fetch_all(ctx: RequestContext, ports: Ports, request: FetchRequest, by_id: bool) -> Reply:
    """A full fetch: everything is in the request and in the response. It may begin a session."""
    wanted = [
        _resolve(ctx, ports, request, topic.name, topic.topic_id, part)
        for topic in request.topics
        for part in topic.partitions
    ]
    found = _read(ctx, ports, request, wanted)
    if wanted and request.max_wait_ms > 0 and not _enough(request, found):
        found.release()
        watch = FetchWatch()

        def look(wake: Wake) -> list[Wanted]:
            ports.delayed.arm(watch, request.min_bytes, wake)
            ports.delayed.watch(watch, [each.tp for each in wanted])
            return wanted

        try:
            _, found = _read_in_time(ctx, ports, request, watch, look)
        finally:
            ports.delayed.remove(watch)
    session_id = NO_SESSION
    if request.session_epoch == INITIAL_EPOCH:
        session_id = ports.fetch_sessions.create(request, found.partitions, by_id=by_id, now_ms=_uptime_ms())
    topics, at = [], 0
    for name, topic_id, parts in request.topics:
        topics.append(FetchedTopic(name, topic_id, found.partitions[at : at + len(parts)]))
        at += len(parts)
    _count(ctx, zip(wanted, found.partitions, strict=True))
    return _encode(ctx, ports, session_id, topics, found.failed)


def _fetch_changes(ctx: RequestContext, ports: Ports, request: FetchRequest, incremental: IncrementalFetch) -> Reply:
    """A fetch in a session: what has no news is neither read nor answered. Raises InvalidFetchSessionEpoch."""
    looked_at: Sequence[SessionPartition] = ()

    def look(wake: Wake) -> list[Wanted]:
        nonlocal looked_at
        looked_at = incremental.look(request.min_bytes, wake, at_all=not _lease_held(ports))
        wanted = [
            _resolve(ctx, ports, request, name, topic_id, known.wanted)
            for known in looked_at
            for name, topic_id, _ in (known.key,)
        ]
        incremental.watch_also([(known, each.tp) for known, each in zip(looked_at, wanted, strict=True)])
        return wanted

    wanted, found = _read_in_time(ctx, ports, request, incremental.watch, look)
    try:
        told = incremental.report(list(zip(looked_at, found.partitions, found.more, strict=True)))
    except InvalidFetchSessionEpoch:
        found.release()
        raise
    topics: dict[tuple[str, UUID], FetchedTopic[FileSlice]] = {}
    for number in told:
        name, topic_id, _ = looked_at[number].key
        topic = topics.setdefault((name, topic_id), FetchedTopic(name, topic_id, []))
        cast("list[FetchedPartition[FileSlice]]", topic.partitions).append(found.partitions[number])
    _count(ctx, ((wanted[number], found.partitions[number]) for number in told))
    return _encode(ctx, ports, incremental.session_id, list(topics.values()), found.failed)


def _resolve(
    ctx: RequestContext, ports: Ports, request: FetchRequest, name: str, topic_id: UUID, part: FetchPartition
) -> Wanted:
    """The partition by its topic's name, and what forbids to read it."""
    topic = TopicName(name)
    refusal: RaylogError | None = None
    if ctx.version >= FIRST_TOPIC_ID:
        known = ports.cluster.state().topic_by_id(TopicId(topic_id))
        if known is None:
            refusal = UnknownTopicId(f"no topic has the id {topic_id}")
        else:
            topic = known.name
    if request.replica_id >= 0:
        refusal = NotLeaderOrFollower(f"broker {request.replica_id} has no replica of {topic}")
    elif refusal is None and not ports.authorizer.allows(ctx, Operation.READ, Resource.TOPIC, topic):
        refusal = TopicAuthorizationFailed(f"{ctx.principal} may not read topic {topic}")
    return Wanted(TopicPartition(topic, PartitionIndex(part.partition)), part, refusal)


def _read(ctx: RequestContext, ports: Ports, request: FetchRequest, wanted: list[Wanted]) -> Found:
    """One pass: what each partition has now, until max_bytes are together."""
    isolation = _isolation(request)
    budget = min(request.max_bytes, ports.configs.broker()[FETCH_MAX_BYTES])
    partitions: list[FetchedPartition[FileSlice]] = []
    more: list[bool] = []
    size, failed = 0, False
    for tp, part, refusal in wanted:
        try:
            if refusal is not None:
                raise refusal
            ports.lease.check()
            read = ports.partitions.get(tp).read(
                Offset(part.fetch_offset),
                min(part.max_bytes, max(budget - size, 0)),
                isolation=isolation,
                current_leader_epoch=LeaderEpoch(part.current_leader_epoch),
                min_one_batch=size == 0,
            )
        except Exception as error:  # noqa: BLE001 (whatever it is, the other partitions go on)
            failed = True
            partitions.append(_failed(ctx, ports, tp, failure(error, ctx, f"reading {tp}")))
            more.append(True)
            continue
        more.append(part.fetch_offset < read.bound)
        if read.data is not None:
            size += read.data.length
        partitions.append(
            FetchedPartition(
                part.partition,
                0,
                read.high_watermark,
                read.last_stable_offset,
                read.log_start_offset,
                read.data,
                [AbortedTransaction(*one) for one in read.aborted] if request.isolation_level else None,
            )
        )
    return Found(partitions, more, size, failed)


def _enough(request: FetchRequest, found: Found) -> bool:
    return found.size >= request.min_bytes or found.failed


def _read_in_time(
    ctx: RequestContext, ports: Ports, request: FetchRequest, watch: FetchWatch, look: Callable[[Wake], list[Wanted]]
) -> tuple[list[Wanted], Found]:
    """Read what ``look`` names, again and again, until it is enough, the time is over or the client has gone."""
    deadline = time.monotonic() + request.max_wait_ms / 1000
    in_time = request.max_wait_ms > 0
    while True:
        gate = threading.Lock()
        gate.acquire()
        wanted = look(gate.release)
        found = _read(ctx, ports, request, wanted)
        if not in_time or _enough(request, found):
            return wanted, found
        found.release()
        ports.delayed.credit(watch, found.size)
        in_time = _sleep(ctx, gate, deadline)


def _sleep(ctx: RequestContext, gate: threading.Lock, deadline: float) -> bool:
    """Sleep until min_bytes may be there (True), or until the time is over or the client has gone (False)."""
    while (left := deadline - time.monotonic()) > 0:
        if gate.acquire(timeout=min(left, PEER_CHECK_S)):
            return not ctx.connection.peer.gone()
        if ctx.connection.peer.gone():
            return False
    return False


def _lease_held(ports: Ports) -> bool:
    """Without it every partition of a session must tell so, whether it changed or not."""
    try:
        ports.lease.check()
    except RaylogError:
        return False
    return True


def _uptime_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _isolation(request: FetchRequest) -> Isolation:
    return Isolation.COMMITTED if request.isolation_level else Isolation.HIGH_WATERMARK


def _failed(ctx: RequestContext, ports: Ports, tp: TopicPartition, error: RaylogError) -> FetchedPartition[FileSlice]:
    code = code_of(error)
    leader, epoch = leader_hint(ports, tp, code)
    return FetchedPartition(tp.partition, code.value, leader_id=leader, leader_epoch=epoch)


def _count(ctx: RequestContext, sent: Iterable[tuple[Wanted, FetchedPartition[FileSlice]]]) -> None:
    counters = ctx.connection.counters.bytes_out
    for (tp, _, _), partition in sent:
        if partition.records is not None:
            counters[tp.topic] = counters.get(tp.topic, 0) + partition.records.length


def _encode(
    ctx: RequestContext, ports: Ports, session_id: int, topics: Sequence[FetchedTopic[FileSlice]], failed: bool
) -> Reply:
    leaders: list[int] = []
    if failed:
        leaders = [part.leader_id for topic in topics for part in topic.partitions if part.leader_id >= 0]
    endpoints = node_endpoints(ctx, ports, leaders) if leaders else ()
    response = FetchResponse(topics, ctx.throttle_ms, session_id=session_id, node_endpoints=endpoints)
    return encode_fetch_response(ctx.version, ctx.correlation_id, response)
