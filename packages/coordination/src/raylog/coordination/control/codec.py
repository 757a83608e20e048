"""The bytes of control messages: msgpack maps by field name, so that releases of different age read each other.

A reader ignores fields it does not know and gives missing ones their defaults. A change that an older
reader would misunderstand raises VERSION, which makes the older one refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from uuid import UUID

import msgpack

from raylog.coordination.metadata.model import NO_BROKER_EPOCH, BrokerInfo, Endpoint, PartitionState, TopicState
from raylog.protocol.errors import InvalidRequest
from raylog.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, TopicId, TopicName

T = TypeVar("T")

VERSION = 1


def pack(kind: str, fields: Mapping[str, Any]) -> bytes:
    """A message of this kind."""
    packed: bytes = msgpack.packb({"v": VERSION, "kind": kind, **fields})
    return packed


def unpack(kind: str, payload: bytes) -> dict[str, Any]:
    """The fields of a message; InvalidRequest when it is of another kind, of a newer version, or no message."""
    fields = _fields(payload)
    if fields.get("kind") != kind:
        raise InvalidRequest(f"expected a control message {kind!r}")
    if type(fields.get("v")) is not int or fields["v"] > VERSION:
        raise InvalidRequest(
            f"control message version {fields.get('v')!r} is newer than {VERSION}: upgrade this broker"
        )
    return fields


def kind_of(payload: bytes) -> object:
    """What :func:`unpack` would have to be told; InvalidRequest when it is no message."""
    return _fields(payload).get("kind")


def _fields(payload: bytes) -> dict[str, Any]:
    try:
        fields = msgpack.unpackb(payload, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # TypeError: a list or map as a key
        raise InvalidRequest(f"a control message of {len(payload)} bytes is no msgpack: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidRequest("a control message is no map of fields")
    return fields


def read(build: Callable[[], T]) -> T:
    """What ``build`` makes of a message's fields; InvalidRequest where one is missing or wrong."""
    try:
        return build()
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"a control message lacks a field or has a wrong one: {error!r}") from error


def of(kind: type[T], value: Any) -> T:
    """``value`` if it is of exactly this kind (True is no number); TypeError."""
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, not {str(value)[:80]!r}")
    return value


def number(value: Any) -> int:
    return of(int, value)


def text(value: Any) -> str:
    return of(str, value)


def texts(value: Any) -> dict[str, str]:
    """A map from text to text."""
    return {text(key): text(each) for key, each in of(dict, value).items()}


def uuid(value: Any) -> UUID:
    return UUID(bytes=of(bytes, value))


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
        "intact_since": broker.intact_since,
        "disks_since": broker.disks_since,
    }


def unpack_broker(fields: Any) -> BrokerInfo:
    """Raises KeyError, TypeError or ValueError when it is none."""
    of(dict, fields)
    rack = fields.get("rack")
    return BrokerInfo(
        id=BrokerId(number(fields["id"])),
        epoch=BrokerEpoch(number(fields["epoch"])),
        endpoints=tuple(_unpack_endpoint(*of(list, endpoint)) for endpoint in of(list, fields["endpoints"])),
        rack=None if rack is None else text(rack),
        node=text(fields.get("node", "")),
        actor=text(fields.get("actor", "")),
        directory_ids=tuple(map(uuid, of(list, fields.get("dirs", [])))),
        clean_stop=of(bool, fields.get("clean_stop", False)),
        intact_since=BrokerEpoch(number(fields.get("intact_since", NO_BROKER_EPOCH))),
        disks_since=BrokerEpoch(number(fields.get("disks_since", NO_BROKER_EPOCH))),
    )


def _unpack_endpoint(listener: Any, host: Any, port: Any, security_protocol: Any, *_: Any) -> Endpoint:
    return Endpoint(text(listener), text(host), number(port), text(security_protocol))


def pack_topic(topic: TopicState) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": topic.id.bytes,
        "configs": dict(topic.configs),
        "partitions": [pack_partition(partition) for partition in topic.partitions],
    }


def pack_partition(p: PartitionState) -> list[Any]:
    """A list, for there are many; fields that come later are appended."""
    return [
        p.replicas, p.leader, p.leader_epoch, p.isr, p.controller_epoch, p.version,
        p.elr, dict(p.incarnations), p.adding, p.removing,
    ]  # fmt: skip


def unpack_topic(fields: Any) -> TopicState:
    """Raises KeyError, TypeError or ValueError when it is none."""
    of(dict, fields)
    return TopicState(
        name=TopicName(text(fields["name"])),
        id=TopicId(uuid(fields["id"])),
        partitions=tuple(unpack_partition(*of(list, partition)) for partition in of(list, fields["partitions"])),
        configs=texts(fields.get("configs", {})),
    )


def _broker_ids(values: Any) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number(each)) for each in of(list, values or []))


def unpack_partition(
    replicas: Any,
    leader: Any,
    leader_epoch: Any,
    isr: Any,
    controller_epoch: Any,
    version: Any,
    elr: Any = None,
    incarnations: Any = None,
    adding: Any = None,
    removing: Any = None,
    *_: Any,
) -> PartitionState:
    """Raises TypeError or ValueError when it is none."""
    return PartitionState(
        replicas=_broker_ids(replicas),
        leader=BrokerId(number(leader)),
        leader_epoch=LeaderEpoch(number(leader_epoch)),
        isr=_broker_ids(isr),
        elr=_broker_ids(elr),
        incarnations={
            BrokerId(number(broker)): BrokerEpoch(number(epoch))
            for broker, epoch in of(dict, incarnations or {}).items()
        },
        adding=_broker_ids(adding),
        removing=_broker_ids(removing),
        controller_epoch=ControllerEpoch(number(controller_epoch)),
        version=number(version),
    )
