"""Every node in the metadata store and the codec of its value; those of consumer groups are in ``group_paths``.

Paths and values are those of Kafka's ZooKeeper era (D6), so that tools of that time read them: JSON with
Kafka's field names. What is raylog's alone lives below /raylog. Unknown fields are ignored, so that newer
releases may add some. A value that cannot be read raises CorruptMetadata, which names the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from raylog.coordination.metadata.group_paths import CONSUMERS, GROUPS
from raylog.coordination.metadata.model import (
    NO_BROKER_EPOCH,
    NO_CONTROLLER_EPOCH,
    BrokerInfo,
    Endpoint,
    PartitionState,
    TopicState,
)
from raylog.coordination.store.node_json import (
    INT32,
    Reading,
    array,
    broker_ids,
    decimal,
    dump,
    fields,
    flag,
    host,
    integer,
    load,
    number,
    port,
    text,
    texts,
)
from raylog.coordination.store.node_json import CorruptMetadata as CorruptMetadata
from raylog.coordination.store.node_json import decode_topic_id as decode_topic_id
from raylog.coordination.store.node_json import encode_topic_id as encode_topic_id
from raylog.protocol.ids import (
    NO_LEADER,
    NO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
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
DEFAULT_BROKER = "<default>"
"""In place of a broker's id: the overrides that hold for all brokers."""
DELETE_TOPICS = "/admin/delete_topics"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
BROKER_EPOCHS = "/raylog/broker_epochs"
RAYLOG_BROKERS = "/raylog/brokers"
TOPIC_IDS = "/raylog/topic_ids"
FEATURE_LEVEL = "/raylog/feature_level"
ACL_OWNER = "/raylog/acl_owner"
"""Whose alone all znodes are (zk_auth)."""

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
    TOPIC_IDS,
    GROUPS,
)
"""Persistent nodes without a value of their own, made when a cluster is."""
BASE_VALUES = (CLUSTER_ID, CONTROLLER, CONTROLLER_EPOCH, PRODUCER_ID_BLOCK, FEATURE_LEVEL)


def broker(broker_id: BrokerId) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def raylog_broker(broker_id: BrokerId) -> str:
    return f"{RAYLOG_BROKERS}/{broker_id}"


def broker_epoch(broker_id: BrokerId) -> str:
    return f"{BROKER_EPOCHS}/{broker_id}"


def topic(name: TopicName) -> str:
    return f"{BROKER_TOPICS}/{name}"


def topic_id(id_: TopicId) -> str:
    """There while the topic with this id is: a write about that topic checks it. The topic's own node proves nothing,
    for one made anew begins with version 0 again.
    """
    return f"{TOPIC_IDS}/{encode_topic_id(id_)}"


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


# --- values


class TopicAssignment(NamedTuple):
    """The value of /brokers/topics/T: replicas by partition (the place in the tuple)."""

    topic_id: TopicId
    """NO_TOPIC_ID when an old tool made the topic."""
    replicas: tuple[tuple[BrokerId, ...], ...]
    adding: Mapping[int, tuple[BrokerId, ...]] = MappingProxyType({})
    """Of partitions that are being reassigned (KIP-455): which of the replicas are new."""
    removing: Mapping[int, tuple[BrokerId, ...]] = MappingProxyType({})
    """Which of the replicas are to go."""

    @classmethod
    def of(cls, topic: TopicState) -> TopicAssignment:
        return cls(
            topic.id,
            tuple(partition.replicas for partition in topic.partitions),
            {index: p.adding for index, p in enumerate(topic.partitions) if p.adding},
            {index: p.removing for index, p in enumerate(topic.partitions) if p.removing},
        )


class FormerLife(NamedTuple):
    """What a broker's last registration says of its data."""

    directory_ids: tuple[UUID, ...]
    intact_since: BrokerEpoch
    disks_since: BrokerEpoch
    boot_id: str  # of the machine that it ran on; "" where an older release did not say


def encode_number(value: int) -> bytes:
    """A bare decimal number: controller epoch, feature level."""
    return str(value).encode()


def decode_controller_epoch(data: bytes) -> ControllerEpoch:
    with Reading(CONTROLLER_EPOCH):
        return ControllerEpoch(integer(number(CONTROLLER_EPOCH, data)))


def decode_latest_leader_epoch(tp: TopicPartition, data: bytes) -> LeaderEpoch | None:
    """The value of /brokers/topics/T/partitions/P: the newest leader epoch that was written below it. None where that
    was another program's node.
    """
    if not data:
        return None
    path = partition(tp)
    with Reading(path):
        return LeaderEpoch(integer(number(path, data), 0, INT32))


def decode_feature_level(data: bytes) -> int:
    return number(FEATURE_LEVEL, data)


def encode_cluster_id(cluster_id: str) -> bytes:
    return dump({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    value = load(CLUSTER_ID, data)
    with Reading(CLUSTER_ID):
        return text(value["id"])


def encode_controller(broker_id: BrokerId, now_ms: TimestampMs) -> bytes:
    return dump({"version": 1, "brokerid": broker_id, "timestamp": str(now_ms)})


def decode_controller(data: bytes) -> BrokerId:
    value = load(CONTROLLER, data)
    with Reading(CONTROLLER):
        return BrokerId(integer(value["brokerid"]))


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
    return dump(value)


def encode_raylog_broker(info: BrokerInfo, boot_id: str = "") -> bytes:
    """The value of /raylog/brokers/B: what Kafka has no field for. ``boot_id``: of the machine, since it started."""
    return dump(
        {
            "version": 1,
            "node": info.node,
            "actor": info.actor,
            "directory_ids": [str(directory) for directory in info.directory_ids],
            "clean_stop": info.clean_stop,
            "intact_since": info.intact_since,
            "disks_since": info.disks_since,
            "boot_id": boot_id,
        }
    )


def decode_broker(broker_id: BrokerId, data: bytes, raylog_data: bytes | None, epoch: BrokerEpoch) -> BrokerInfo:
    """A registration, put together from its nodes."""
    path = broker(broker_id)
    value = load(path, data)
    extra = load(raylog_broker(broker_id), raylog_data) if raylog_data else {}
    with Reading(path):
        protocols = texts(value.get("listener_security_protocol_map", {}))
        endpoints = tuple(_endpoint(text(each), protocols) for each in array(value["endpoints"]))
        if not endpoints:
            raise ValueError("it has no endpoints")
        rack = value.get("rack")
    with Reading(raylog_broker(broker_id)):
        return BrokerInfo(
            id=broker_id,
            epoch=epoch,
            endpoints=endpoints,
            rack=None if rack is None else text(rack),
            node=text(extra.get("node", "")),
            actor=text(extra.get("actor", "")),
            directory_ids=_directory_ids(extra),
            clean_stop=flag(extra.get("clean_stop", False)),
            **_since(extra),
        )


def decode_former_life(broker_id: BrokerId, raylog_data: bytes) -> FormerLife:
    """Of a value of /raylog/brokers/B, also of a broker that is not registered now."""
    value = load(path := raylog_broker(broker_id), raylog_data)
    with Reading(path):
        return FormerLife(_directory_ids(value), **_since(value), boot_id=text(value.get("boot_id", "")))


def _since(value: Mapping[str, Any]) -> dict[str, BrokerEpoch]:
    names = ("intact_since", "disks_since")
    return {name: BrokerEpoch(integer(value.get(name, NO_BROKER_EPOCH), NO_BROKER_EPOCH)) for name in names}


def _directory_ids(value: Mapping[str, Any]) -> tuple[UUID, ...]:
    return tuple(UUID(text(each)) for each in array(value.get("directory_ids", [])))


def _endpoint(endpoint: str, protocols: Mapping[str, str]) -> Endpoint:
    listener, _, address = endpoint.partition("://")
    name, _, number_of_port = address.rpartition(":")
    return Endpoint(listener, host(name.strip("[]")), port(decimal(number_of_port)), protocols.get(listener, listener))


def encode_topic(assignment: TopicAssignment) -> bytes:
    return dump(
        {
            "version": 3,
            "topic_id": encode_topic_id(assignment.topic_id),
            "partitions": _encode_replicas(dict(enumerate(assignment.replicas))),
            "adding_replicas": _encode_replicas(assignment.adding),
            "removing_replicas": _encode_replicas(assignment.removing),
        }
    )


def _encode_replicas(replicas: Mapping[int, tuple[BrokerId, ...]]) -> dict[str, list[BrokerId]]:
    return {str(index): list(brokers) for index, brokers in replicas.items()}


def decode_topic(name: TopicName, data: bytes) -> TopicAssignment:
    path = topic(name)
    value = load(path, data)
    with Reading(path):
        by_index = _decode_replicas(value["partitions"])
        if sorted(by_index) != list(range(len(by_index))):
            raise ValueError(f"partitions are not numbered from 0 without gaps: {sorted(by_index)}")
        adding, removing = (_decode_replicas(value.get(f"{what}_replicas", {})) for what in ("adding", "removing"))
        if not all(by_index.values()):
            raise ValueError("a partition has no replicas")
        for index in (*adding, *removing):
            if not {*adding.get(index, ()), *removing.get(index, ())} <= {*by_index[index]}:
                raise ValueError(f"partition {index} adds or removes brokers that are not among its replicas")
        topic_id = TopicId(decode_topic_id(text(value["topic_id"]))) if "topic_id" in value else NO_TOPIC_ID
        moving = ({index: of_it for index, of_it in each.items() if of_it} for each in (adding, removing))
        return TopicAssignment(topic_id, tuple(by_index[n] for n in range(len(by_index))), *moving)


def _decode_replicas(value: Any) -> dict[int, tuple[BrokerId, ...]]:
    return {decimal(index): broker_ids(replicas) for index, replicas in fields(value).items()}


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
    return dump(value)


def decode_partition_state(
    tp: TopicPartition, data: bytes, version: int, replicas: tuple[BrokerId, ...]
) -> PartitionState:
    """``replicas`` come from the topic's node, ``version`` is the state node's."""
    path = partition_state(tp)
    value = load(path, data)
    with Reading(path):
        state = PartitionState(
            replicas=replicas,
            leader=BrokerId(integer(value["leader"], NO_LEADER)),
            leader_epoch=LeaderEpoch(integer(value["leader_epoch"], 0, INT32 - 1)),
            isr=broker_ids(value["isr"]),
            elr=broker_ids(value.get("elr", [])),
            incarnations={
                BrokerId(decimal(broker)): BrokerEpoch(integer(epoch))
                for broker, epoch in fields(value.get("incarnations", {})).items()
            },
            controller_epoch=ControllerEpoch(integer(value["controller_epoch"], NO_CONTROLLER_EPOCH)),
            version=version,
        )
        if not state.isr and not state.elr:
            raise ValueError("no replica holds what was acknowledged, so nobody can ever lead")
        return state


def encode_config(configs: Mapping[str, str]) -> bytes:
    return dump({"version": 1, "config": dict(configs)})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    value = load(path, data)
    with Reading(path):
        return texts(value["config"])


def encode_config_change(entity_path: str) -> bytes:
    """A notice below /config/changes: ``entity_path`` is "topics/T" or "brokers/B"."""
    return dump({"version": 2, "entity_path": entity_path})


def decode_config_change(path: str, data: bytes) -> str:
    value = load(path, data)
    with Reading(path):
        return text(value["entity_path"])
