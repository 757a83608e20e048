"""◆ What an admin client asks, as kio's types, and what their answers mean.

A ``read_…`` function takes the decoded response. It raises what hit the request as a whole; errors of single topics or
partitions are part of what it returns. A request that a broker refused because it is not the controller raises
NotController, whatever else it carried: the controller is asked anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from kio.schema.create_partitions.v3.request import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from kio.schema.create_partitions.v3.response import CreatePartitionsResponse
from kio.schema.create_topics.v7.request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from kio.schema.create_topics.v7.response import CreateTopicsResponse
from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.delete_records.v2.response import DeleteRecordsResponse
from kio.schema.delete_topics.v5.request import DeleteTopicsRequest
from kio.schema.delete_topics.v5.response import DeleteTopicsResponse
from kio.schema.describe_cluster.v1.response import DescribeClusterResponse
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import DescribeConfigsResourceResult, DescribeConfigsResponse
from kio.schema.describe_log_dirs.v4.response import DescribeLogDirsResponse, DescribeLogDirsResult
from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
from kio.schema.describe_producers.v0.response import DescribeProducersResponse
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse
from kio.schema.types import BrokerId as KioBrokerId
from kio.schema.types import TopicName as KioTopicName
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

from raylog.client.requests.offset_queries import by_topic
from raylog.client.results import (
    BrokerDescription,
    ClusterDescription,
    ConfigEntry,
    LogDirDescription,
    ProducerDescription,
    ReplicaSize,
)
from raylog.protocol.errors import NotController, RaylogError, exception_for
from raylog.protocol.ids import BrokerId, Offset, PartitionIndex, TopicName, TopicPartition

TOPIC, BROKER = 2, 4
"""Kinds of resources that have settings."""

_SOURCES = {1: "topic", 2: "broker (dynamic)", 3: "cluster (dynamic)", 4: "broker (static)", 5: "default"}
_DEFAULT = 5
_TYPES = ("unknown", "boolean", "string", "int", "short", "long", "double", "list", "class", "password")
_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3
_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class NewTopic(NamedTuple):
    """A topic to create; -1 takes the broker's default. ``assignments``: partition → broker ids, instead of counts."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = _NOTHING
    assignments: Mapping[int, Sequence[int]] = _NOTHING


def error_of(code: int, message: str | None, what: str) -> RaylogError | None:
    """The exception for a code on the wire; None for none. ``what`` is told when the broker has no message."""
    return exception_for(code, message or what) if code else None


def _results(errors: Mapping[str, RaylogError | None]) -> dict[str, RaylogError | None]:
    for error in errors.values():
        if isinstance(error, NotController):
            raise error
    return dict(errors)


# --- topics ---------------------------------------------------------------------------------------------------------


def create_topics(topics: Iterable[NewTopic], timeout: i32Timedelta, *, validate_only: bool) -> CreateTopicsRequest:
    """Create topics."""
    return CreateTopicsRequest(
        topics=tuple(_creatable(topic) for topic in topics), timeout=timeout, validate_only=validate_only
    )


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=KioTopicName(topic.name),
        num_partitions=i32(topic.partitions),
        replication_factor=i16(topic.replication_factor),
        assignments=tuple(
            CreatableReplicaAssignment(
                partition_index=i32(partition), broker_ids=tuple(KioBrokerId(broker) for broker in brokers)
            )
            for partition, brokers in topic.assignments.items()
        ),
        configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()),
    )


def read_create_topics(response: CreateTopicsResponse) -> tuple[dict[str, RaylogError | None], dict[str, int]]:
    """Per name, None or why it was refused; and the partitions of those that were not."""
    errors = {
        str(result.name): error_of(result.error_code.value, result.error_message, f"topic {result.name!r}")
        for result in response.topics
    }
    created = {
        str(result.name): max(result.num_partitions, 1) for result in response.topics if not result.error_code.value
    }
    return _results(errors), created


def delete_topics(names: Iterable[str], timeout: i32Timedelta) -> DeleteTopicsRequest:
    """Delete topics by name."""
    return DeleteTopicsRequest(topic_names=tuple(KioTopicName(name) for name in names), timeout=timeout)


def read_delete_topics(response: DeleteTopicsResponse) -> dict[str, RaylogError | None]:
    """Per name, None or why it was refused."""
    return _results(
        {
            str(result.name): error_of(result.error_code.value, result.error_message, f"topic {result.name!r}")
            for result in response.responses
        }
    )


def create_partitions(
    name: str,
    count: int,
    assignments: Sequence[Sequence[int]] | None,
    timeout: i32Timedelta,
    *,
    validate_only: bool,
) -> CreatePartitionsRequest:
    """Raise a topic's partitions to ``count``; ``assignments`` has the broker ids of each new one."""
    chosen = None
    if assignments is not None:
        chosen = tuple(
            CreatePartitionsAssignment(broker_ids=tuple(KioBrokerId(broker) for broker in brokers))
            for brokers in assignments
        )
    topic = CreatePartitionsTopic(name=KioTopicName(name), count=i32(count), assignments=chosen)
    return CreatePartitionsRequest(topics=(topic,), timeout=timeout, validate_only=validate_only)


def read_create_partitions(response: CreatePartitionsResponse) -> dict[str, RaylogError | None]:
    """Per name, None or why it was refused."""
    return _results(
        {
            str(result.name): error_of(result.error_code.value, result.error_message, f"topic {result.name!r}")
            for result in response.results
        }
    )


# --- settings -------------------------------------------------------------------------------------------------------


def describe_configs(kind: int, name: str) -> DescribeConfigsRequest:
    """All settings of one resource."""
    resource = DescribeConfigsResource(resource_type=i8(kind), resource_name=name, configuration_keys=None)
    return DescribeConfigsRequest(resources=(resource,), include_synonyms=True, include_documentation=True)


def read_describe_configs(response: DescribeConfigsResponse) -> list[ConfigEntry]:
    """The settings of the one resource that was asked for, by name."""
    (result,) = response.results
    error = error_of(result.error_code.value, result.error_message, f"settings of {result.resource_name!r}")
    if error is not None:
        raise error
    return sorted((_entry(config) for config in result.configs), key=lambda entry: entry.name)


def _entry(config: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        name=config.name,
        value=None if config.is_sensitive else config.value,
        is_default=config.config_source == _DEFAULT,
        is_read_only=config.read_only,
        source=_SOURCES.get(config.config_source, "unknown"),
        synonyms={synonym.name: synonym.value for synonym in config.synonyms},
        is_sensitive=config.is_sensitive,
        type=_TYPES[config.config_type] if 0 <= config.config_type < len(_TYPES) else "unknown",
        documentation=config.documentation,
    )


def alter_configs(
    kind: int,
    name: str,
    configs: Mapping[str, str | None],
    append: Mapping[str, str],
    subtract: Mapping[str, str],
    *,
    validate_only: bool,
) -> IncrementalAlterConfigsRequest:
    """Set (None: delete), append to and subtract from settings of one resource (KIP-339)."""
    changes = [(key, _DELETE if value is None else _SET, value) for key, value in configs.items()]
    changes += [(key, _APPEND, value) for key, value in append.items()]
    changes += [(key, _SUBTRACT, value) for key, value in subtract.items()]
    resource = AlterConfigsResource(
        resource_type=i8(kind),
        resource_name=name,
        configs=tuple(
            AlterableConfig(name=key, config_operation=i8(operation), value=value) for key, operation, value in changes
        ),
    )
    return IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)


def read_alter_configs(response: IncrementalAlterConfigsResponse) -> None:
    """Raises why the change was refused."""
    for result in response.responses:
        error = error_of(result.error_code.value, result.error_message, f"settings of {result.resource_name!r}")
        if error is not None:
            raise error


# --- brokers --------------------------------------------------------------------------------------------------------


def read_describe_cluster(response: DescribeClusterResponse) -> ClusterDescription:
    """Cluster id, controller and live brokers, by id."""
    error = error_of(response.error_code.value, response.error_message, "describing the cluster")
    if error is not None:
        raise error
    brokers = sorted(
        BrokerDescription(BrokerId(broker.broker_id), broker.host, broker.port, broker.rack)
        for broker in response.brokers
    )
    return ClusterDescription(response.cluster_id, BrokerId(response.controller_id), tuple(brokers))


def read_log_dirs(response: DescribeLogDirsResponse) -> list[LogDirDescription]:
    """A broker's log directories and what each replica in them takes."""
    error = error_of(response.error_code.value, None, "describing log directories")
    if error is not None:
        raise error
    return [_log_dir(result) for result in response.results]


def _log_dir(result: DescribeLogDirsResult) -> LogDirDescription:
    return LogDirDescription(
        path=result.log_dir,
        error=error_of(result.error_code.value, None, f"log directory {result.log_dir}"),
        total_bytes=result.total_bytes,
        usable_bytes=result.usable_bytes,
        replicas={
            _tp(topic.name, replica.partition_index): ReplicaSize(
                replica.partition_size, replica.offset_lag, replica.is_future_key
            )
            for topic in result.topics
            for replica in topic.partitions
        },
    )


# --- partitions, asked of their leaders -----------------------------------------------------------------------------


def delete_records(before: Mapping[TopicPartition, int], timeout: i32Timedelta) -> DeleteRecordsRequest:
    """Delete the records of partitions of one leader that are before the offset (-1: the high watermark)."""
    topics = by_topic(
        before, lambda tp, offset: DeleteRecordsPartition(partition_index=i32(tp.partition), offset=i64(offset))
    )
    return DeleteRecordsRequest(
        topics=tuple(
            DeleteRecordsTopic(name=KioTopicName(name), partitions=tuple(parts)) for name, parts in topics.items()
        ),
        timeout=timeout,
    )


def read_delete_records(response: DeleteRecordsResponse) -> dict[TopicPartition, Offset | RaylogError]:
    """The new log start of each, or its error."""
    found: dict[TopicPartition, Offset | RaylogError] = {}
    for topic in response.topics:
        for result in topic.partitions:
            tp = _tp(topic.name, result.partition_index)
            error = error_of(result.error_code.value, None, f"{tp}: deleting records")
            found[tp] = error or Offset(result.low_watermark)
    return found


def describe_producers(partitions: Mapping[TopicPartition, None]) -> DescribeProducersRequest:
    """The idempotent and transactional producers that partitions of one leader know."""
    topics = by_topic(partitions, lambda tp, _: i32(tp.partition))
    return DescribeProducersRequest(
        topics=tuple(
            TopicRequest(name=KioTopicName(name), partition_indexes=tuple(parts)) for name, parts in topics.items()
        )
    )


def read_describe_producers(
    response: DescribeProducersResponse,
) -> dict[TopicPartition, list[ProducerDescription] | RaylogError]:
    """The producers of each partition, by id, or its error."""
    found: dict[TopicPartition, list[ProducerDescription] | RaylogError] = {}
    for topic in response.topics:
        for result in topic.partitions:
            tp = _tp(topic.name, result.partition_index)
            error = error_of(result.error_code.value, result.error_message, f"{tp}: describing producers")
            found[tp] = error or sorted(
                ProducerDescription(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.last_timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                    transaction_start=producer.current_txn_start_offset,
                )
                for producer in result.active_producers
            )
    return found


def _tp(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))
