"""The bytes of control messages: msgpack maps by field name, so that releases of different age read each other.

A reader ignores fields it does not know and gives missing ones their defaults. A change that an older
reader would misunderstand raises VERSION, which makes the older one refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgpack

from raylog.coordination.model import BrokerInfo, Endpoint, PartitionState, TopicState
from raylog.protocol.errors import InvalidRequest
from raylog.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicId, TopicName

VERSION = 1


def pack(kind: str, fields: Mapping[str, Any]) -> bytes:
    """A message of this kind."""
    packed: bytes = msgpack.packb({"v": VERSION, "kind": kind, **fields})
    return packed


def unpack(kind: str, payload: bytes) -> dict[str, Any]:
    """The fields of a message; InvalidRequest when it is of another kind, of a newer version, or no message."""
    try:
        fields = msgpack.unpackb(payload, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise InvalidRequest(f"a control message of {len(payload)} bytes is no msgpack: {error}") from error
    if not isinstance(fields, dict) or fields.get("kind") != kind:
        raise InvalidRequest(f"expected a control message {kind!r}")
    if not isinstance(fields.get("v"), int) or fields["v"] > VERSION:
        raise InvalidRequest(
            f"control message version {fields.get('v')!r} is newer than {VERSION}: upgrade this broker"
        )
    return fields


def pack_broker(broker: BrokerInfo) -> dict[str, Any]:
    return {
        "id": broker.id,
        "epoch": broker.epoch,
        "endpoints": [[e.listener, e.host, e.port, e.security_protocol] for e in broker.endpoints],
        "rack": broker.rack,
        "node": broker.node,
        "actor": broker.actor,
        "dirs": [directory.bytes for directory in broker.directory_ids],
        "clean_stop": broker.clean_stop,
    }


def unpack_broker(fields: Mapping[str, Any]) -> BrokerInfo:
    return BrokerInfo(
        id=BrokerId(fields["id"]),
        epoch=BrokerEpoch(fields["epoch"]),
        endpoints=tuple(Endpoint(*endpoint[:4]) for endpoint in fields["endpoints"]),
        rack=fields.get("rack"),
        node=fields.get("node", ""),
        actor=fields.get("actor", ""),
        directory_ids=tuple(UUID(bytes=directory) for directory in fields.get("dirs", ())),
        clean_stop=fields.get("clean_stop", False),
    )


def pack_topic(topic: TopicState) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": topic.id.bytes,
        "configs": dict(topic.configs),
        "partitions": [
            [p.replicas, p.leader, p.leader_epoch, p.isr, p.controller_epoch, p.version] for p in topic.partitions
        ],
    }


def unpack_topic(fields: Mapping[str, Any]) -> TopicState:
    return TopicState(
        name=TopicName(fields["name"]),
        id=TopicId(UUID(bytes=fields["id"])),
        partitions=tuple(_unpack_partition(*partition) for partition in fields["partitions"]),
        configs=fields.get("configs", {}),
    )


def _unpack_partition(
    replicas: list[int],
    leader: int,
    leader_epoch: int,
    isr: list[int],
    controller_epoch: int,
    version: int,
    *_: Any,
) -> PartitionState:
    return PartitionState(
        replicas=tuple(map(BrokerId, replicas)),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(leader_epoch),
        isr=tuple(map(BrokerId, isr)),
        controller_epoch=ControllerEpoch(controller_epoch),
        version=version,
    )
