"""Reading for Fetch: what each partition has at the asked offset, for consumers and for followers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from raylog.broker.config import (
    FETCH_MAX_BYTES,
    LEADER_REPLICATION_THROTTLED_RATE,
    LEADER_REPLICATION_THROTTLED_REPLICAS,
    RACK_AWARE_SELECTOR,
    REPLICA_SELECTOR_CLASS,
)
from raylog.broker.handlers.context import (
    CLUSTER_NAME,
    ClusterView,
    Operation,
    Ports,
    RequestContext,
    Resource,
)
from raylog.broker.handlers.entities import failure
from raylog.broker.handlers.leaders import leader_hint
from raylog.broker.partition.partition import Isolation, Partition, ReadInfo
from raylog.broker.replication.quota import is_throttled
from raylog.broker.storage.disk.files import WouldWait
from raylog.broker.storage.disk.slices import FileSlice
from raylog.protocol.batches.transactions import AbortedTransaction
from raylog.protocol.errors import (
    ClusterAuthorizationFailed,
    OffsetOutOfRange,
    RaylogError,
    StaleBrokerEpoch,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
    code_of,
)
from raylog.protocol.ids import (
    NO_EPOCH,
    NO_OFFSET,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)
from raylog.protocol.wire.fetch import (
    NO_EPOCH_END,
    EpochEndOffset,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
)
from raylog.protocol.wire.primitives import FIRST_TOPIC_ID

NO_REPLICA = -1
DEBUGGING_CONSUMER = -2
"""The replica id of a tool that compares replicas: whoever it asks answers, leader or follower."""


class Wanted(NamedTuple):
    """One partition to read, or why it cannot be read."""

    tp: TopicPartition
    topic_id: TopicId | None
    """By which it was asked for; None: by its name."""
    part: FetchPartition
    refusal: RaylogError | None


class Found(NamedTuple):
    """What one pass over the wanted partitions found."""

    partitions: list[FetchedPartition[FileSlice]]
    more: list[bool]
    """For each, whether there is more than it got."""
    size: int
    at_once: bool
    """Whether there is something that must be told at once: an error, a divergence, another replica to read from."""
    throttled: int
    """Of the bytes, those that count against leader.replication.throttled.rate once they are sent."""

    def release(self) -> None:
        """Give the slices back: they are not sent."""
        for partition in self.partitions:
            if partition.records is not None:
                partition.records.release()


def resolve(
    ctx: RequestContext, ports: Ports, request: FetchRequest, name: str, topic_id: UUID, part: FetchPartition
) -> Wanted:
    """The partition by its topic's name, and what forbids to read it."""
    topic, asked_id = TopicName(name), None
    refusal: RaylogError | None = None
    if ctx.version >= FIRST_TOPIC_ID:
        known = ports.cluster.state().topic_by_id(TopicId(topic_id))
        if known is None:
            refusal = UnknownTopicId(f"no topic has the id {topic_id}")
        else:
            topic, asked_id = known.name, known.id
    if request.replica_id >= 0:
        refusal = refusal or _replica_refusal(ctx, ports, request)
    elif refusal is None and not ports.authorizer.allows(ctx, Operation.READ, Resource.TOPIC, topic):
        refusal = TopicAuthorizationFailed(f"{ctx.principal} may not read topic {topic}")
    return Wanted(TopicPartition(topic, PartitionIndex(part.partition)), asked_id, part, refusal)


def _replica_refusal(ctx: RequestContext, ports: Ports, request: FetchRequest) -> RaylogError | None:
    """What forbids a broker to fetch: it may not act for the cluster, or a later incarnation of it has registered."""
    if not ports.authorizer.allows(ctx, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME):
        return ClusterAuthorizationFailed(f"{ctx.principal} may not fetch as broker {request.replica_id}")
    broker = ports.cluster.state().brokers.get(BrokerId(request.replica_id))
    if broker is not None and request.replica_epoch < broker.epoch:
        return StaleBrokerEpoch(
            f"broker {request.replica_id} fetched in incarnation {request.replica_epoch}, but {broker.epoch} is known"
        )
    return None


def read(
    ctx: RequestContext, ports: Ports, request: FetchRequest, wanted: list[Wanted], *, first: bool, may_wait: bool
) -> Found:
    """One pass: what each partition has now, until max_bytes are together.

    ``first``: it is the request's first pass, in which followers' progress is noted. Raises WouldWait where it takes
    the disk to know, without ``may_wait``; then nothing is held, and the pass can be made again.
    """
    read_one = (
        _replica_reader(ports, request, first, may_wait)
        if request.replica_id >= 0
        else _consumer_reader(ctx, ports, request, may_wait)
    )
    budget = min(request.max_bytes, ports.configs.broker()[FETCH_MAX_BYTES])
    partitions: list[FetchedPartition[FileSlice]] = []
    more: list[bool] = []
    size, at_once, throttled = 0, False, 0
    for one in wanted:
        part = one.part
        try:
            if one.refusal is not None:
                raise one.refusal
            if part.max_bytes < 0 or budget < 0:
                raise RaylogError(f"{one.tp}: max_bytes {min(part.max_bytes, budget)} is negative")
            ports.lease.check()
            found, bound, is_throttled = read_one(one, min(part.max_bytes, max(budget - size, 0)), size == 0)
        except WouldWait:
            Found(partitions, more, size, at_once, throttled).release()
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, the other partitions go on)
            at_once = True
            partitions.append(_failed(ports, request, one, failure(error, ctx, f"reading {one.tp}")))
            more.append(True)
            continue
        more.append(part.fetch_offset < bound)
        if found.records is not None:
            size += found.records.length
            throttled += found.records.length if is_throttled else 0
        elif found.preferred_read_replica >= 0 or found.diverging_epoch.epoch >= 0:
            at_once = True
        partitions.append(found)
    return Found(partitions, more, size, at_once, throttled)


class _Read(NamedTuple):
    """One partition, as it was read."""

    partition: FetchedPartition[FileSlice]
    bound: Offset
    """How far it could be read."""
    is_throttled: bool
    """Whether what was read counts against the leader's quota."""


ReadOne = Callable[[Wanted, int, bool], _Read]
"""Reads one partition, up to so many bytes, or one whole batch where that is asked."""


def _replica_reader(ports: Ports, request: FetchRequest, note_progress: bool, may_wait: bool) -> ReadOne:
    replica, epoch = BrokerId(request.replica_id), BrokerEpoch(request.replica_epoch)
    now_ms = ports.monotonic_ms()
    rate = ports.configs.broker()[LEADER_REPLICATION_THROTTLED_RATE]
    taken = 0

    def read_one(wanted: Wanted, max_bytes: int, min_one_batch: bool) -> _Read:
        nonlocal taken
        part, partition = wanted.part, ports.partitions.get(wanted.tp, wanted.topic_id)
        throttled = _is_throttled(ports, partition, replica)
        held_back = throttled and not ports.leader_quota.allows(rate, now_ms, taken)
        read = partition.read(
            Offset(part.fetch_offset),
            0 if held_back else max_bytes,
            isolation=Isolation.LOG_END,
            current_leader_epoch=_epoch(part.current_leader_epoch),
            last_fetched_epoch=_epoch(part.last_fetched_epoch),
            min_one_batch=min_one_batch and not held_back,
            may_wait=may_wait,
        )
        diverging = _diverging(read)
        if note_progress and read.diverging is None:
            try:
                partition.role.replica_fetched(
                    replica,
                    epoch,
                    Offset(part.fetch_offset),
                    Offset(part.log_start_offset),
                    now_ms,
                    leader_epoch=_epoch(part.current_leader_epoch),
                )
            except BaseException:
                if read.data is not None:
                    read.data.release()
                raise
        if throttled and read.data is not None:
            taken += read.data.length
        high_watermark = partition.high_watermark  # its own fetch may have moved it
        return _Read(
            FetchedPartition(
                part.partition, 0, high_watermark, high_watermark, read.log_start_offset, read.data,
                diverging_epoch=diverging,
            ),
            read.bound,
            throttled,
        )  # fmt: skip

    return read_one


def _epoch(asked: int) -> LeaderEpoch:
    """No negative number is an epoch."""
    return LeaderEpoch(max(asked, NO_EPOCH))


def _diverging(read: ReadInfo) -> EpochEndOffset:
    return NO_EPOCH_END if read.diverging is None else EpochEndOffset(*read.diverging)


def _is_throttled(ports: Ports, partition: Partition, replica: BrokerId) -> bool:
    """Whether a follower that catches up is to be fed slowly (KIP-73); one that is in sync never is."""
    replicas = partition.settings[LEADER_REPLICATION_THROTTLED_REPLICAS]
    return (
        bool(replicas)
        and replica not in partition.role.isr
        and is_throttled(replicas, partition.tp.partition, ports.cluster.broker_id)
    )


def _consumer_reader(ctx: RequestContext, ports: Ports, request: FetchRequest, may_wait: bool) -> ReadOne:
    committed = request.isolation_level != 0
    isolation = Isolation.COMMITTED if committed else Isolation.HIGH_WATERMARK
    rack = request.rack_id if ports.configs.broker()[REPLICA_SELECTOR_CLASS] == RACK_AWARE_SELECTOR else ""
    any_replica = bool(rack) or request.replica_id == DEBUGGING_CONSUMER
    look_up = ports.partitions.replica if any_replica else ports.partitions.get

    def read_one(wanted: Wanted, max_bytes: int, min_one_batch: bool) -> _Read:
        part, partition = wanted.part, look_up(wanted.tp, wanted.topic_id)
        preferred = NO_REPLICA
        if rack and partition.role.is_leader:
            preferred = _nearest_replica(ports.cluster, partition, rack, Offset(part.fetch_offset))
        read = partition.read(
            Offset(part.fetch_offset),
            max_bytes if preferred == NO_REPLICA else 0,
            isolation=isolation,
            current_leader_epoch=_epoch(part.current_leader_epoch),
            last_fetched_epoch=_epoch(part.last_fetched_epoch),
            min_one_batch=min_one_batch and preferred == NO_REPLICA,
            may_wait=may_wait,
        )
        return _Read(
            FetchedPartition(
                part.partition,
                0,
                read.high_watermark,
                read.last_stable_offset,
                read.log_start_offset,
                read.data,
                [AbortedTransaction(*one) for one in read.aborted] if committed else None,
                preferred,
                _diverging(read),
            ),
            read.bound,
            is_throttled=False,
        )

    return read_one


def _nearest_replica(cluster: ClusterView, partition: Partition, rack: str, offset: Offset) -> int:
    """Who should serve a consumer in ``rack`` instead of us, the leader; NO_REPLICA when it has come to the right one.

    Of the in-sync replicas there that have ``offset`` it is the one that has most (Kafka's RackAwareReplicaSelector).
    """
    brokers = cluster.state().unfenced
    if (us := brokers.get(cluster.broker_id)) is not None and us.rack == rack:
        return NO_REPLICA
    near = [
        (end, -replica)
        for replica, end in partition.role.readable_replicas(offset)
        if (broker := brokers.get(replica)) is not None and broker.rack == rack
    ]
    return -max(near)[1] if near else NO_REPLICA


def _failed(ports: Ports, request: FetchRequest, wanted: Wanted, error: RaylogError) -> FetchedPartition[FileSlice]:
    tp, topic_id = wanted.tp, wanted.topic_id
    code = code_of(error)
    leader, epoch = leader_hint(ports, tp, code, topic_id)
    start = NO_OFFSET
    if request.replica_id >= 0 and isinstance(error, OffsetOutOfRange):
        with suppress(RaylogError):  # it may be led elsewhere by now
            # From where a follower that fell behind it starts anew.
            start = ports.partitions.get(tp, topic_id).log_start_offset
    not_there = wanted.refusal is not None or isinstance(error, UnknownTopicOrPartition)
    aborted = () if not_there else None  # as Kafka has it, where no log was looked at
    return FetchedPartition(
        tp.partition, code.value, log_start_offset=start, aborted=aborted, leader_id=leader, leader_epoch=epoch
    )
