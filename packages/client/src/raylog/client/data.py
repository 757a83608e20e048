"""Topics as Ray Data's datasets: :func:`read` and :func:`write`; and :func:`stream`, tables without an end.

Reading and writing run as Ray tasks, near the brokers; a stream is read by the process that asks for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.data import Dataset, read_datasource
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raylog.client.admin import Admin
from raylog.client.arguments import arguments as given
from raylog.client.batches.decode import schema_of
from raylog.client.cluster import connect
from raylog.client.fetch.consumer_config import isolation_level_of
from raylog.client.producer import Producer
from raylog.client.ranges.host_addresses import HostAddresses
from raylog.client.ranges.offset_ranges import (
    EARLIEST,
    LATEST,
    AtTime,
    DataLoss,
    LogBounds,
    OffsetRange,
    Selection,
    resolve,
    split,
)
from raylog.client.ranges.range_planner import leader_hosts, log_bounds, offsets_at, select
from raylog.client.ranges.range_reader import LOSS_HINT, RangeReading
from raylog.client.ray_data.plan import OffsetPlace, Places, by_node, places, tasks_at_once
from raylog.client.ray_data.sink import TopicDatasink
from raylog.client.ray_data.source import TopicDatasource
from raylog.client.ray_data.stream import TableStream, stream
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.protocol.errors import InvalidRequest
from raylog.protocol.ids import Offset, TopicPartition
from raylog.protocol.logs import Logger

__all__ = ["TableStream", "read", "stream", "write"]

OFFSETS_PER_TASK = 1_000_000
"""What one read task takes at most, unless the caller says how many blocks he wants: so much is read again where a node
dies, and a large partition occupies more than one CPU."""

log = Logger(__name__)


def read(
    topic: str | Sequence[str],
    *,
    bootstrap_servers: str | None = None,
    start_offset: OffsetPlace | Mapping[str, Mapping[int, OffsetPlace]] = "earliest",
    end_offset: OffsetPlace | Mapping[str, Mapping[int, OffsetPlace]] = "latest",
    columns: Sequence[str] | None = None,
    fail_on_data_loss: bool = True,
    override_num_blocks: int | None = None,
    concurrency: int | None = None,
    num_cpus: float | None = None,
    memory: float | None = None,
    label_selector: Mapping[str, str] | None = None,
    **config: Any,
) -> Dataset:
    """The records of ``topic``, or of several, as a dataset of Arrow blocks.

    Its columns are those of ``raylog.client.batches.decode.SCHEMA``: key, value, topic, partition, offset, timestamp,
    timestamp_type and headers, a list of (key, value) that keeps its order and may repeat a key. ``columns`` names
    those to read, and so does ``select_columns`` right behind; fewer cost less.

    ``start_offset`` and ``end_offset`` (exclusive): see :mod:`~raylog.client.ray_data.plan`. They are resolved now, so
    that the dataset has the same records whenever it is executed. Without ``bootstrap_servers``,
    :func:`raylog.client.connect` finds the cluster, and the dataset is on its Ray. Each task reads on the node of its
    partition's leader, elsewhere only when that is gone; a ``label_selector``, also an empty one, replaces this.
    ``override_num_blocks``, ``concurrency``, ``num_cpus`` and ``memory`` are Ray Data's; ``config`` takes consumer
    settings with underscores.

    Raises ValueError, InvalidRequest and InvalidConfig for unfit arguments, UnknownTopicOrPartition,
    BrokerNotAvailable, and DataLoss for offsets that the log does not have unless ``fail_on_data_loss`` is false; tasks
    raise DataLoss for what goes while they read.
    """
    schema_of(columns)
    isolation = isolation_level_of(config)
    topics = tuple(given.texts("topic", (topic,) if isinstance(topic, str) else topic))
    if not topics:
        raise ValueError("read: name at least one topic")
    for topic in topics:
        check_topic_name(topic)
    given.flag("fail_on_data_loss", fail_on_data_loss)
    if override_num_blocks is not None and given.number("override_num_blocks", override_num_blocks) < 1:
        raise ValueError(f"override_num_blocks={override_num_blocks} must be at least 1")
    if concurrency is not None:
        given.number("concurrency", concurrency, 1)
    for name, amount in (("num_cpus", num_cpus), ("memory", memory)):
        given.wait_or_none(name, amount)
    if label_selector is not None:
        given.mapping("label_selector", label_selector)
    servers = _servers(bootstrap_servers)
    with Admin(servers) as admin:
        selected = select(admin, Selection(topics=topics))
        bounds = log_bounds(admin, selected.leaders, isolation_level=isolation)
        starts = _offsets(admin, "start_offset", places("start_offset", start_offset, EARLIEST, bounds))
        ends = _offsets(admin, "end_offset", places("end_offset", end_offset, LATEST, bounds))
        pieces = _ranges(starts, ends, bounds, fail_on_data_loss=fail_on_data_loss)
        hosts = leader_hosts(admin, selected.leaders, HostAddresses())
    if override_num_blocks is None:
        pieces = split(pieces, max_records=OFFSETS_PER_TASK)
    else:
        pieces = split(pieces, min_partitions=override_num_blocks)
    reading = RangeReading(servers, columns, fail_on_data_loss, config, selected.topic_ids)
    asked = _given(num_cpus=num_cpus, memory=memory, label_selector=label_selector or None)
    nodes = _Nodes()
    placed = by_node(pieces, hosts, nodes.at) if label_selector is None else {None: pieces}
    parts = [
        read_at(
            node,
            TopicDatasource(reading, of_node),
            concurrency=tasks_at_once(len(of_node), len(pieces), concurrency, nodes.cpus.get(node), num_cpus),
            override_num_blocks=max(1, len(of_node)),
            **asked,
        )
        for node, of_node in (placed or {None: []}).items()
    ]
    whole: Dataset = parts[0].union(*parts[1:]) if len(parts) > 1 else parts[0]
    return whole


def write(
    dataset: Dataset, topic: str, *, bootstrap_servers: str | None = None, concurrency: int | None = None, **config: Any
) -> int:
    """Send the dataset's rows to ``topic``, and return how many there were when all of them are delivered.

    Its columns are ``value`` and optionally ``key``, ``headers``, ``partition`` and ``timestamp``. Values and keys are
    bytes, or text, which is sent as UTF-8. Without ``partition`` records go where the producer's partitioner sends
    them. ``config`` takes producer settings with underscores; producers are idempotent: their retries never duplicate.

    At least once: when a worker dies Ray runs its task again, and what that had sent is sent again. Rows keep their
    order within a block. Raises ValueError for other columns, the delivery's error when a row could not be delivered,
    and what a producer raises for a topic that is not there; some rows may then have been sent.
    """
    check_topic_name(topic)
    if concurrency is not None:
        given.number("concurrency", concurrency, 1)
    servers = _servers(bootstrap_servers)
    with Producer(servers, **config) as producer:
        producer.partitions_for(topic)  # what is wrong with either is found before any task runs
    if not isinstance(dataset, Dataset):
        raise InvalidRequest(
            f"dataset: a {type(dataset).__name__} is no dataset of Ray Data: make one by ray.data.from_…"
        )
    sink = TopicDatasink(servers, topic, config)
    dataset.write_datasink(sink, concurrency=concurrency)
    return sink.written


def _servers(bootstrap_servers: str | None) -> str:
    if bootstrap_servers is not None:
        return bootstrap_servers
    cluster = connect()
    cluster.join_ray()
    return cluster.bootstrap_servers


def _offsets(admin: Admin, option: str, found: Places) -> dict[TopicPartition, Offset]:
    """Offsets alone; a time after the last record is the log's end."""
    at_times = offsets_at(admin, option, AtTime(found.times), found.times, or_latest=True) if found.times else {}
    assert isinstance(at_times, Mapping)
    return {**found.offsets, **at_times}


def _ranges(
    starts: Mapping[TopicPartition, Offset],
    ends: Mapping[TopicPartition, Offset],
    bounds: Mapping[TopicPartition, LogBounds],
    *,
    fail_on_data_loss: bool,
) -> list[OffsetRange]:
    for tp in bounds:
        if 0 <= ends[tp] < starts[tp]:
            raise ValueError(f"{tp}: end_offset {ends[tp]} is before start_offset {starts[tp]}")
    ranges, losses = resolve(starts, ends, bounds)
    if losses and fail_on_data_loss:
        raise DataLoss(f"{'; '.join(losses)}: {LOSS_HINT}")
    for loss in losses:
        log.warning("%s; fail_on_data_loss is false, so what is there is read", loss)
    return ranges


def _given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


class _Nodes:
    """Ray's living nodes that have CPUs; none where there is one alone, since all is near to it."""

    def __init__(self) -> None:
        able = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
        self.at: dict[str, list[str]] = {}
        """Their ids by address."""
        self.cpus: dict[str | None, float] = {node["NodeID"]: node["Resources"]["CPU"] for node in able}
        for node in able if len(able) > 1 else ():
            self.at.setdefault(node["NodeManagerAddress"], []).append(node["NodeID"])


def read_at(node: str | None, source: TopicDatasource, **options: Any) -> Dataset:
    """``read_datasource(source, …)`` whose tasks run on the node of this id while it lives; None: anywhere.

    Ray Data's own arguments for this, a label selector with a fallback, were tried: an eighth to a fifth of the tasks
    ran elsewhere, since Ray takes the fallback whenever it believes a node to be busy, and no operator is fused with
    such a read. So this is ``ray_remote_args``, which warns that Ray 2.64 is without it.
    """
    if node is None:
        anywhere: Dataset = read_datasource(source, **options)
        return anywhere
    near = {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`?ray_remote_args", category=Warning)
        dataset: Dataset = read_datasource(source, ray_remote_args=near, **options)
    return dataset
