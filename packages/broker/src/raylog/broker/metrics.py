"""What a broker tells of itself, under the names that dashboards for Kafka know.

This module knows no exporter: it turns counters and state into samples, and ``actor`` hands them to Ray, which puts
``ray_`` before each name. Request times are a histogram that is spelt out (``_bucket`` with ``le``, ``_sum``,
``_count``), because Ray's own takes one observation at a time and passes each on alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import NamedTuple

from raylog.broker.config import MIN_INSYNC_REPLICAS
from raylog.broker.counters import Counters, RequestTimes
from raylog.broker.groups.offsets.lag import Lags
from raylog.broker.handlers import TABLE
from raylog.broker.partition.partition import Partition
from raylog.coordination.metadata.model import ClusterState
from raylog.protocol.ids import Offset, TopicPartition

__all__ = ["Facts", "Kind", "Metric", "Sample", "samples"]


class Kind(Enum):
    """How a value moves."""

    COUNTER = "counter"
    """Only up, from zero at the broker's start."""
    GAUGE = "gauge"
    """Up and down."""


class Metric(NamedTuple):
    """A metric's row: its name without any exporter's prefix, and the labels beside ``broker``."""

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One value, with a value for each of its metric's labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class Facts:
    """A broker at one moment."""

    counters: Counters
    connections: Mapping[str, int]
    """Open ones, by listener."""
    state: ClusterState
    led: Mapping[TopicPartition, Partition]
    logs: int
    """Partitions on this broker's disks."""
    followed: Mapping[TopicPartition, Partition]
    group_lags: Lags
    """Of consumer groups, in the led partitions."""
    coordinated_groups: int
    """Groups of Kafka clients that this broker holds in memory."""
    leader_ends: Mapping[TopicPartition, Offset]
    """Of followed partitions: how far their leaders had committed when asked last."""
    replication_bytes_in: Mapping[str, int]
    """Fetched from leaders, by topic."""
    isr_shrinks: int
    isr_expands: int
    isr_failures: int
    """Proposals that were not taken."""
    offline_log_dirs: int
    unread_bytes: int
    """Of logs, from before the start, that were not checked yet."""
    damaged: int
    """Replicas here that were found damaged and are not mended."""
    failed_partitions: int
    """Partitions here that are not as the controller wants them: a step failed, and is tried again."""
    waiting_fetches: int
    waiting_produces: int
    fetch_sessions: int
    fetch_session_partitions: int
    is_controller: bool
    thread_failures: Mapping[str, int]
    """Rounds that failed and were tried again, by thread."""
    unreadable_nodes: int
    """Of the metadata store, that were skipped since the start."""
    failing_threads: int
    """Threads that fail at the moment or are gone."""


_C, _G = Kind.COUNTER, Kind.GAUGE
_TOPIC, _PARTITION = ("topic",), ("topic", "partition")

_MESSAGES_IN = Metric("kafka_server_brokertopicmetrics_messagesin_total", _C, "Records appended.", _TOPIC)
_BYTES_IN = Metric("kafka_server_brokertopicmetrics_bytesin_total", _C, "Bytes of batches appended.", _TOPIC)
_BYTES_OUT = Metric("kafka_server_brokertopicmetrics_bytesout_total", _C, "Bytes of batches sent.", _TOPIC)
_PARTITIONS = Metric("kafka_server_replicamanager_partitioncount", _G, "Partitions on this broker's disks.")
_LEADERS = Metric("kafka_server_replicamanager_leadercount", _G, "Partitions that this broker leads.")
_UNDER_REPLICATED = Metric(
    "kafka_server_replicamanager_underreplicatedpartitions", _G, "Led partitions with a replica out of the ISR."
)
_UNDER_MIN_ISR = Metric(
    "kafka_server_replicamanager_underminisrpartitioncount", _G, "Led partitions with too few in sync for acks=all."
)
_AT_MIN_ISR = Metric(
    "kafka_server_replicamanager_atminisrpartitioncount", _G, "Led partitions that can lose no replica more."
)
_SHRINKS = Metric("kafka_server_replicamanager_isrshrinks_total", _C, "Replicas taken out of an ISR.")
_EXPANDS = Metric("kafka_server_replicamanager_isrexpands_total", _C, "Replicas taken into an ISR.")
_ISR_FAILURES = Metric("kafka_server_replicamanager_failedisrupdates_total", _C, "ISR changes not taken.")
_MAX_LAG = Metric(
    "kafka_server_replicafetchermanager_maxlag", _G, "Committed records that the furthest follower here lacks."
)
_REPLICATION_IN = Metric(
    "kafka_server_brokertopicmetrics_replicationbytesin_total", _C, "Bytes of batches fetched from leaders.", _TOPIC
)
_REPLICATION_OUT = Metric(
    "kafka_server_brokertopicmetrics_replicationbytesout_total", _C, "Bytes of batches sent to followers.", _TOPIC
)
_OFFLINE_DIRS = Metric("kafka_log_logmanager_offlinelogdirectorycount", _G, "Log directories that failed.")
_UNREAD = Metric("raylog_log_unread_bytes", _G, "Bytes from before the start that were not read and checked yet.")
_DAMAGED = Metric("raylog_log_damaged_partitions", _G, "Replicas on this broker's disks found damaged, not mended.")
_FAILED = Metric(
    "raylog_partition_failed_count", _G, "Partitions for which this broker could not do what the controller decided."
)
_ACTIVE = Metric("kafka_controller_kafkacontroller_activecontrollercount", _G, "1 at the controller, 0 elsewhere.")
_OFFLINE_PARTITIONS = Metric(
    "kafka_controller_kafkacontroller_offlinepartitionscount", _G, "Partitions without a leader; 0 off the controller."
)
_CONNECTIONS = Metric("kafka_server_socket_server_metrics_connection_count", _G, "Open connections.", ("listener",))
_WAITING = Metric(
    "kafka_server_delayedoperationpurgatory_purgatorysize", _G, "Requests that wait for data.", ("delayedOperation",)
)
_SESSIONS = Metric("kafka_server_fetchsessioncache_numincrementalfetchsessions", _G, "Fetch sessions.")
_SESSION_PARTITIONS = Metric(
    "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", _G, "Partitions in all fetch sessions."
)
_TIMES = "kafka_network_requestmetrics_totaltimems"
_TIME_DOC = "Milliseconds from a whole request to its reply, waiting included."
_TIME_BUCKET = Metric(f"{_TIMES}_bucket", _G, _TIME_DOC, ("request", "le"))
_TIME_SUM = Metric(f"{_TIMES}_sum", _G, _TIME_DOC, ("request",))
_TIME_COUNT = Metric(f"{_TIMES}_count", _G, _TIME_DOC, ("request",))
_ERRORS = Metric(
    "kafka_network_requestmetrics_errors_total", _C, "Requests that met a defect of the broker.", ("request", "error")
)
_CURRENT = Metric("kafka_topic_partition_current_offset", _G, "The high watermark.", _PARTITION)
_OLDEST = Metric("kafka_topic_partition_oldest_offset", _G, "The first offset that is kept.", _PARTITION)
_IN_SYNC = Metric("kafka_topic_partition_in_sync_replica", _G, "Replicas in the ISR.", _PARTITION)
_UNDER = Metric("kafka_topic_partition_under_replicated_partition", _G, "1 if a replica is not in the ISR.", _PARTITION)
_LAG = Metric(
    "kafka_consumergroup_lag", _G, "Records that a group has not committed yet.", ("consumergroup", *_PARTITION)
)

_GROUPS = Metric(
    "kafka_coordinator_group_groupmetadatamanager_numgroups",
    _G,
    "Groups of Kafka clients that this broker coordinates.",
)

_THREAD_FAILURES = Metric(
    "raylog_thread_failures_total", _C, "Rounds of a long-lived thread that failed and were tried again.", ("thread",)
)
_UNREADABLE = Metric(
    "raylog_metadata_unreadable_total", _C, "Nodes of the metadata store that were skipped: they cannot be understood."
)
_FAILING_THREADS = Metric("raylog_failing_threads", _G, "Long-lived threads that fail at the moment or have ended.")

_API_NAMES = {row.key: row.name for row in TABLE}

_EDGES = (*range(7, 16), 17, 19, 21, 23)
"""The histogram's edges as powers of two, in microseconds: 0.128 ms to 8.4 s. Few, as Ray's agent shows at most
2,000 series of a metric for a whole node.
"""


def samples(facts: Facts) -> Iterator[Sample]:
    """Every value that the broker has to tell now."""
    yield from _traffic(facts.counters)
    for api_key, times in facts.counters.requests.items():
        yield from _histogram(_API_NAMES[api_key], times)
    for listener, count in facts.connections.items():
        yield Sample(_CONNECTIONS, (listener,), count)
    yield Sample(_WAITING, ("Fetch",), facts.waiting_fetches)
    yield Sample(_WAITING, ("Produce",), facts.waiting_produces)
    yield Sample(_SESSIONS, (), facts.fetch_sessions)
    yield Sample(_SESSION_PARTITIONS, (), facts.fetch_session_partitions)
    yield Sample(_PARTITIONS, (), facts.logs)
    yield Sample(_OFFLINE_DIRS, (), facts.offline_log_dirs)
    yield Sample(_UNREAD, (), facts.unread_bytes)
    yield Sample(_DAMAGED, (), facts.damaged)
    yield Sample(_FAILED, (), facts.failed_partitions)
    yield Sample(_ACTIVE, (), int(facts.is_controller))
    yield Sample(_OFFLINE_PARTITIONS, (), _offline(facts.state) if facts.is_controller else 0)
    yield Sample(_SHRINKS, (), facts.isr_shrinks)
    yield Sample(_EXPANDS, (), facts.isr_expands)
    yield Sample(_ISR_FAILURES, (), facts.isr_failures)
    yield Sample(_MAX_LAG, (), _max_lag(facts))
    for topic, count in facts.replication_bytes_in.items():
        yield Sample(_REPLICATION_IN, (topic,), count)
    yield Sample(_UNREADABLE, (), facts.unreadable_nodes)
    yield Sample(_FAILING_THREADS, (), facts.failing_threads)
    for thread, count in facts.thread_failures.items():
        yield Sample(_THREAD_FAILURES, (thread,), count)
    yield Sample(_GROUPS, (), facts.coordinated_groups)
    for (group, tp), lag in facts.group_lags.items():
        yield Sample(_LAG, (group, tp.topic, str(tp.partition)), lag)
    yield from _partitions(facts.led, facts.state)


def _traffic(counters: Counters) -> Iterator[Sample]:
    for metric, by_topic in (
        (_MESSAGES_IN, counters.messages_in),
        (_BYTES_IN, counters.bytes_in),
        (_BYTES_OUT, counters.bytes_out),
        (_REPLICATION_OUT, counters.replication_bytes_out),
    ):
        for topic, count in by_topic.items():
            yield Sample(metric, (topic,), count)
    for api_key, count in counters.defects.items():
        yield Sample(_ERRORS, (_API_NAMES[api_key], "UNKNOWN_SERVER_ERROR"), count)


def _histogram(request: str, times: RequestTimes) -> Iterator[Sample]:
    below = list(accumulate(times.buckets))
    for edge in _EDGES:
        yield Sample(_TIME_BUCKET, (request, str(2**edge / 1000)), below[edge])
    yield Sample(_TIME_BUCKET, (request, "+Inf"), below[-1])
    yield Sample(_TIME_COUNT, (request,), below[-1])
    yield Sample(_TIME_SUM, (request,), times.total_ns / 1e6)


def _partitions(led: Mapping[TopicPartition, Partition], state: ClusterState) -> Iterable[Sample]:
    lagging = under_min = at_min = 0
    for tp, partition in led.items():
        labels = (tp.topic, str(tp.partition))
        offsets = partition.offsets
        yield Sample(_CURRENT, labels, offsets.high_watermark.offset)
        yield Sample(_OLDEST, labels, offsets.start)
        known = state.partition(tp)
        if known is None:
            continue  # it is being deleted
        under = len(known.isr) < len(known.replicas)
        lagging += under
        wanted = min(partition.settings[MIN_INSYNC_REPLICAS], len(known.replicas))
        under_min += len(known.isr) < wanted
        at_min += len(known.isr) == wanted
        yield Sample(_IN_SYNC, labels, len(known.isr))
        yield Sample(_UNDER, labels, int(under))
    yield Sample(_LEADERS, (), len(led))
    yield Sample(_UNDER_REPLICATED, (), lagging)
    yield Sample(_UNDER_MIN_ISR, (), under_min)
    yield Sample(_AT_MIN_ISR, (), at_min)


def _max_lag(facts: Facts) -> int:
    lags = (
        facts.leader_ends[tp] - partition.log_end_offset
        for tp, partition in facts.followed.items()
        if tp in facts.leader_ends
    )
    return max((0, *lags))


def _offline(state: ClusterState) -> int:
    return sum(not partition.is_online for topic in state.topics.values() for partition in topic.partitions)
