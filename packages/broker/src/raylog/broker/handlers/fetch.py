"""Fetch (API 1): read record batches, waiting for them if asked to.

v4      isolation level, record format 2
v5      the log's start offset
v7      fetch sessions (KIP-227): not built yet; each fetch is a full one, answered with session id 0, and a request
        that goes on with a session gets FETCH_SESSION_ID_NOT_FOUND, at which clients send a full one
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
from typing import NamedTuple

from raylog.broker.config import FETCH_MAX_BYTES
from raylog.broker.handlers.context import Operation, Ports, Reply, RequestContext, Resource
from raylog.broker.handlers.entities import failure
from raylog.broker.handlers.leaders import leader_hint, node_endpoints
from raylog.broker.partition import Isolation
from raylog.broker.replication.delayed import DelayedFetch
from raylog.broker.storage.files import FileSlice
from raylog.protocol.errors import (
    ErrorCode,
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


class Wanted(NamedTuple):
    """One partition of the request, or why it cannot be read."""

    tp: TopicPartition
    part: FetchPartition
    refusal: RaylogError | None


class Found(NamedTuple):
    """What one pass over all partitions found."""

    partitions: list[FetchedPartition[FileSlice]]
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
    if request.session_epoch > 0:
        response = FetchResponse[FileSlice]((), error_code=ErrorCode.fetch_session_id_not_found.value)
        return encode_fetch_response(ctx.version, ctx.correlation_id, response)
    wanted = _wanted(ctx, ports, request)
    found = _read(ctx, ports, request, wanted)
    if request.max_wait_ms > 0 and wanted:
        deadline = time.monotonic() + request.max_wait_ms / 1000
        in_time = True
        while in_time and found.size < request.min_bytes and not found.failed:
            found.release()
            in_time = _wait(ctx, ports, request, wanted, deadline)
            found = _read(ctx, ports, request, wanted)
            if found.size < request.min_bytes and ctx.connection.peer.gone():
                break
    return _encode(ctx, ports, request, wanted, found)


def _wanted(ctx: RequestContext, ports: Ports, request: FetchRequest) -> list[Wanted]:
    """Every partition of the request by name, in the request's order."""
    wanted = []
    state = ports.cluster.state()
    for topic in request.topics:
        name = TopicName(topic.name)
        refusal: RaylogError | None = None
        if ctx.version >= FIRST_TOPIC_ID:
            known = state.topic_by_id(TopicId(topic.topic_id))
            if known is None:
                refusal = UnknownTopicId(f"no topic has the id {topic.topic_id}")
            else:
                name = known.name
        if request.replica_id >= 0:
            refusal = NotLeaderOrFollower(f"broker {request.replica_id} has no replica of {name}")
        elif refusal is None and not ports.authorizer.allows(ctx, Operation.READ, Resource.TOPIC, name):
            refusal = TopicAuthorizationFailed(f"{ctx.principal} may not read topic {name}")
        for part in topic.partitions:
            wanted.append(Wanted(TopicPartition(name, PartitionIndex(part.partition)), part, refusal))
    return wanted


def _read(ctx: RequestContext, ports: Ports, request: FetchRequest, wanted: list[Wanted]) -> Found:
    """One pass: what each partition has now, until max_bytes are together."""
    isolation = _isolation(request)
    budget = min(request.max_bytes, ports.configs.broker()[FETCH_MAX_BYTES])
    partitions: list[FetchedPartition[FileSlice]] = []
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
            continue
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
    return Found(partitions, size, failed)


def _wait(ctx: RequestContext, ports: Ports, request: FetchRequest, wanted: list[Wanted], deadline: float) -> bool:
    """Sleep until min_bytes may be there (True), or until the time is over or the client has gone (False)."""
    gate = threading.Lock()
    gate.acquire()
    fetch = DelayedFetch([each.tp for each in wanted], request.min_bytes, gate.release)
    ports.delayed.watch(fetch)
    try:
        ports.delayed.credit(fetch, _readable(ports, request, wanted))
        while (left := deadline - time.monotonic()) > 0:
            if gate.acquire(timeout=min(left, PEER_CHECK_S)):
                return True
            if ctx.connection.peer.gone():
                return False
        return False
    finally:
        ports.delayed.remove(fetch)


def _readable(ports: Ports, request: FetchRequest, wanted: list[Wanted]) -> int:
    """About how many bytes a pass would find; min_bytes when a partition has failed meanwhile."""
    isolation = _isolation(request)
    readable = 0
    for tp, part, _ in wanted:
        try:
            partition = ports.partitions.get(tp)
        except RaylogError:
            return request.min_bytes
        readable += min(partition.bytes_available(Offset(part.fetch_offset), isolation), part.max_bytes)
    return readable


def _isolation(request: FetchRequest) -> Isolation:
    return Isolation.COMMITTED if request.isolation_level else Isolation.HIGH_WATERMARK


def _failed(ctx: RequestContext, ports: Ports, tp: TopicPartition, error: RaylogError) -> FetchedPartition[FileSlice]:
    code = code_of(error)
    leader, epoch = leader_hint(ports, tp, code)
    return FetchedPartition(tp.partition, code.value, leader_id=leader, leader_epoch=epoch)


def _encode(ctx: RequestContext, ports: Ports, request: FetchRequest, wanted: list[Wanted], found: Found) -> Reply:
    counters = ctx.connection.counters.bytes_out
    topics, at = [], 0
    for topic in request.topics:
        partitions = found.partitions[at : at + len(topic.partitions)]
        topics.append(FetchedTopic(topic.name, topic.topic_id, partitions))
        for (tp, _, _), partition in zip(wanted[at:], partitions, strict=False):
            if partition.records is not None:
                counters[tp.topic] = counters.get(tp.topic, 0) + partition.records.length
        at += len(topic.partitions)
    leaders = [each.leader_id for each in found.partitions if each.leader_id >= 0] if found.failed else ()
    endpoints = node_endpoints(ctx, ports, leaders) if leaders else ()
    response = FetchResponse(topics, ctx.throttle_ms, node_endpoints=endpoints)
    return encode_fetch_response(ctx.version, ctx.correlation_id, response)
