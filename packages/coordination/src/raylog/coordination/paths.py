"""Every node in the metadata store and the codec of its value.

Paths and values are those of Kafka's ZooKeeper era (D6), so that tools of that time read them: JSON with
Kafka's field names. What is raylog's alone lives below /raylog. Unknown fields are ignored, so that newer
releases may add some. A value that cannot be read raises CorruptMetadata, which names the node.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from raylog.coordination.model import NO_BROKER_EPOCH, BrokerInfo, Endpoint, PartitionState
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import (
    NO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    GroupId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerId,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)

CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
CONFIG_TOPICS = "/config/topics"
CONFIG_BROKERS = "/config/brokers"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = "/config/changes/config_change_"
DELETE_TOPICS = "/admin/delete_topics"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
CONSUMERS = "/consumers"
BROKER_EPOCHS = "/raylog/broker_epochs"
RAYLOG_BROKERS = "/raylog/brokers"
FEATURE_LEVEL = "/raylog/feature_level"

BASE_PATHS = (
    "/cluster",
    BROKER_IDS,
    BROKER_TOPICS,
    CONFIG_TOPICS,
    CONFIG_BROKERS,
    "/config/clients",
    "/config/users",
    CONFIG_CHANGES,
    DELETE_TOPICS,
    CONSUMERS,
    BROKER_EPOCHS,
    RAYLOG_BROKERS,
    "/raylog/groups",
)
"""Persistent nodes without a value of their own, made when a cluster is."""


def broker(broker_id: BrokerId) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def raylog_broker(broker_id: BrokerId) -> str:
    return f"{RAYLOG_BROKERS}/{broker_id}"


def broker_epoch(broker_id: BrokerId) -> str:
    return f"{BROKER_EPOCHS}/{broker_id}"


def topic(name: TopicName) -> str:
    return f"{BROKER_TOPICS}/{name}"


def topic_partitions(name: TopicName) -> str:
    return f"{BROKER_TOPICS}/{name}/partitions"


def partition(tp: TopicPartition) -> str:
    return f"{BROKER_TOPICS}/{tp.topic}/partitions/{tp.partition}"


def partition_state(tp: TopicPartition) -> str:
    return f"{partition(tp)}/state"


def topic_config(name: TopicName) -> str:
    return f"{CONFIG_TOPICS}/{name}"


def broker_config(broker_name: str) -> str:
    return f"{CONFIG_BROKERS}/{broker_name}"


def delete_topic(name: TopicName) -> str:
    return f"{DELETE_TOPICS}/{name}"


def offset(group: GroupId, tp: TopicPartition) -> str:
    return f"{CONSUMERS}/{group}/offsets/{tp.topic}/{tp.partition}"


def owner(group: GroupId, tp: TopicPartition) -> str:
    return f"{CONSUMERS}/{group}/owners/{tp.topic}/{tp.partition}"


# --- values


class CorruptMetadata(RaylogError):
    """A node holds what cannot be read; another program wrote it, or a much newer raylog."""


class TopicAssignment(NamedTuple):
    """The value of /brokers/topics/T: replicas by partition (the place in the tuple)."""

    topic_id: TopicId
    """NO_TOPIC_ID when an old tool made the topic."""
    replicas: tuple[tuple[BrokerId, ...], ...]


class ProducerIdBlock(NamedTuple):
    """The ids from ``start`` to ``end``, both included, were given to ``broker_id``."""

    broker_id: BrokerId
    start: ProducerId
    end: ProducerId


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _load(path: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise CorruptMetadata(f"{path} holds no JSON: {data[:80]!r}") from error
    if not isinstance(value, dict):
        raise CorruptMetadata(f"{path} should hold a JSON object, but holds {data[:80]!r}")
    return value


class _Reading:
    """Turns a missing or misshapen field into CorruptMetadata that names the node."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, (KeyError, ValueError, TypeError, AttributeError)):
            raise CorruptMetadata(f"{self._path} lacks a field or has a wrong one: {error!r}") from error


def _number(path: str, data: bytes) -> int:
    with _Reading(path):
        return int(data)


def encode_number(value: int) -> bytes:
    """A bare decimal number: controller epoch, feature level, committed offset."""
    return str(value).encode()


def decode_controller_epoch(data: bytes) -> ControllerEpoch:
    return ControllerEpoch(_number(CONTROLLER_EPOCH, data))


def decode_feature_level(data: bytes) -> int:
    return _number(FEATURE_LEVEL, data)


def decode_offset(path: str, data: bytes) -> Offset:
    return Offset(_number(path, data))


def encode_cluster_id(cluster_id: str) -> bytes:
    return _dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    value = _load(CLUSTER_ID, data)
    with _Reading(CLUSTER_ID):
        return str(value["id"])


def encode_controller(broker_id: BrokerId, now_ms: TimestampMs) -> bytes:
    return _dump({"version": 1, "brokerid": broker_id, "timestamp": str(now_ms)})


def decode_controller(data: bytes) -> BrokerId:
    value = _load(CONTROLLER, data)
    with _Reading(CONTROLLER):
        return BrokerId(int(value["brokerid"]))


def encode_topic_id(topic_id: UUID) -> str:
    """Kafka's way to write a UUID: base64 for URLs, 22 characters."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def decode_topic_id(text: str) -> UUID:
    """Raises ValueError when it is none."""
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


def encode_broker(info: BrokerInfo, now_ms: TimestampMs) -> bytes:
    """The value of /brokers/ids/B, version 5 of Kafka's format."""
    first = info.endpoints[0]
    value = {
        "version": 5,
        "host": first.host,
        "port": first.port,
        "jmx_port": -1,
        "timestamp": str(now_ms),
        "endpoints": [str(endpoint) for endpoint in info.endpoints],
        "listener_security_protocol_map": {e.listener: e.security_protocol for e in info.endpoints},
        "features": {},
    }
    if info.rack is not None:
        value["rack"] = info.rack
    return _dump(value)


def encode_raylog_broker(info: BrokerInfo) -> bytes:
    """The value of /raylog/brokers/B: what Kafka has no field for."""
    return _dump(
        {
            "version": 1,
            "node": info.node,
            "actor": info.actor,
            "directory_ids": [str(directory) for directory in info.directory_ids],
            "clean_stop": info.clean_stop,
            "intact_since": info.intact_since,
        }
    )


def decode_broker(broker_id: BrokerId, data: bytes, raylog_data: bytes | None, epoch: BrokerEpoch) -> BrokerInfo:
    """A registration, put together from its nodes."""
    path = broker(broker_id)
    value = _load(path, data)
    extra = _load(raylog_broker(broker_id), raylog_data) if raylog_data else {}
    with _Reading(path):
        protocols = value.get("listener_security_protocol_map", {})
        return BrokerInfo(
            id=broker_id,
            epoch=epoch,
            endpoints=tuple(_endpoint(text, protocols) for text in value["endpoints"]),
            rack=value.get("rack"),
            node=extra.get("node", ""),
            actor=extra.get("actor", ""),
            directory_ids=_directory_ids(extra),
            clean_stop=bool(extra.get("clean_stop", False)),
            intact_since=BrokerEpoch(int(extra.get("intact_since", NO_BROKER_EPOCH))),
        )


def decode_directory_ids(broker_id: BrokerId, raylog_data: bytes) -> tuple[UUID, ...]:
    """Of a value of /raylog/brokers/B, also of a broker that is not registered now."""
    path = raylog_broker(broker_id)
    value = _load(path, raylog_data)
    with _Reading(path):
        return _directory_ids(value)


def _directory_ids(value: Mapping[str, Any]) -> tuple[UUID, ...]:
    return tuple(UUID(text) for text in value.get("directory_ids", ()))


def _endpoint(text: str, protocols: Mapping[str, str]) -> Endpoint:
    listener, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    return Endpoint(listener, host.strip("[]"), int(port), protocols.get(listener, listener))


def encode_topic(assignment: TopicAssignment) -> bytes:
    return _dump(
        {
            "version": 3,
            "topic_id": encode_topic_id(assignment.topic_id),
            "partitions": {str(index): list(replicas) for index, replicas in enumerate(assignment.replicas)},
            "adding_replicas": {},
            "removing_replicas": {},
        }
    )


def decode_topic(name: TopicName, data: bytes) -> TopicAssignment:
    path = topic(name)
    value = _load(path, data)
    with _Reading(path):
        by_index = {int(index): _broker_ids(replicas) for index, replicas in value["partitions"].items()}
        if sorted(by_index) != list(range(len(by_index))):
            raise ValueError(f"partitions are not numbered from 0 without gaps: {sorted(by_index)}")
        topic_id = TopicId(decode_topic_id(value["topic_id"])) if "topic_id" in value else NO_TOPIC_ID
        return TopicAssignment(topic_id, tuple(by_index[index] for index in range(len(by_index))))


def _broker_ids(values: Iterable[Any]) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(int(value)) for value in values)


def encode_partition_state(state: PartitionState) -> bytes:
    """Kafka's fields, and in the same node, lest one change without the other, ours where they tell something."""
    value: dict[str, Any] = {
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "version": 1,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
    }
    if state.elr:
        value["elr"] = list(state.elr)
    if state.incarnations:
        value["incarnations"] = {str(broker): epoch for broker, epoch in sorted(state.incarnations.items())}
    return _dump(value)


def decode_partition_state(
    tp: TopicPartition, data: bytes, version: int, replicas: tuple[BrokerId, ...]
) -> PartitionState:
    """``replicas`` come from the topic's node, ``version`` is the state node's."""
    path = partition_state(tp)
    value = _load(path, data)
    with _Reading(path):
        return PartitionState(
            replicas=replicas,
            leader=BrokerId(int(value["leader"])),
            leader_epoch=LeaderEpoch(int(value["leader_epoch"])),
            isr=_broker_ids(value["isr"]),
            elr=_broker_ids(value.get("elr", ())),
            incarnations={
                BrokerId(int(broker)): BrokerEpoch(int(epoch))
                for broker, epoch in value.get("incarnations", {}).items()
            },
            controller_epoch=ControllerEpoch(int(value["controller_epoch"])),
            version=version,
        )


def encode_config(configs: Mapping[str, str]) -> bytes:
    return _dump({"version": 1, "config": dict(configs)})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    value = _load(path, data)
    with _Reading(path):
        return {str(name): str(text) for name, text in value["config"].items()}


def encode_config_change(entity_path: str) -> bytes:
    """A notice below /config/changes: ``entity_path`` is "topics/T" or "brokers/B"."""
    return _dump({"version": 2, "entity_path": entity_path})


def decode_config_change(path: str, data: bytes) -> str:
    value = _load(path, data)
    with _Reading(path):
        return str(value["entity_path"])


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    return _dump(
        {
            "version": 1,
            "broker": block.broker_id,
            "block_start": str(block.start),
            "block_end": str(block.end),
        }
    )


def decode_producer_id_block(data: bytes) -> ProducerIdBlock:
    value = _load(PRODUCER_ID_BLOCK, data)
    with _Reading(PRODUCER_ID_BLOCK):
        return ProducerIdBlock(
            BrokerId(int(value["broker"])),
            ProducerId(int(value["block_start"])),
            ProducerId(int(value["block_end"])),
        )


def partition_index(text: str) -> PartitionIndex:
    return PartitionIndex(int(text))
