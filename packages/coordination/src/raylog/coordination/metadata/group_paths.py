"""◆ Every node of consumer groups and the codec of its value.

/consumers is Kafka's of its ZooKeeper era (D6), read and written by tools of that time:

    /consumers/G/ids/C                     a registered member (ephemeral)
    /consumers/G/owners/T/P                who reads the partition (ephemeral)
    /consumers/G/offsets/T/P               the committed offset, a bare number; -1: none

What Kafka kept elsewhere or not at all is raylog's:

    /raylog/groups/G                       what kind of group it is
    /raylog/groups/G/assignment            who should read what (groups of actors)
    /raylog/groups/G/assignment/C          the same of one member, written together with the whole
    /raylog/groups/G/instances/I           the member that has this group.instance.id (ephemeral, groups of actors)
    /raylog/groups/G/state                 the group as its coordinator stored it (groups of clients)
    /raylog/groups/G/claim                 which broker that is, in which incarnation
    /raylog/empty_groups/G                 since when the group has no members
    /raylog/groups/G/offsets/T/P           what was committed beside the offset, and the topic's id

Group and member ids may hold any character, and clients may ask for topics by any name; names of nodes may not: what
ZooKeeper or a path cannot bear is written as in URLs, "a/b" as "a%2Fb". A value that cannot be read raises
CorruptMetadata, which names the node.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote

from raylog.coordination.metadata.group_model import CommittedOffset, GroupKind, Registered, Shares
from raylog.coordination.store.node_json import (
    INT32,
    INT64,
    CorruptMetadata,
    Reading,
    array,
    decimal,
    decode_topic_id,
    dump,
    encode_topic_id,
    fields,
    host,
    integer,
    load,
    number,
    port,
    text,
)
from raylog.protocol.ids import (
    NO_OFFSET,
    NO_TOPIC_ID,
    Generation,
    GroupId,
    InstanceId,
    LeaderEpoch,
    MemberId,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)

CONSUMERS = "/consumers"
GROUPS = "/raylog/groups"
EMPTY_GROUPS = "/raylog/empty_groups"

_PLAIN = " !\"#$&'()*+,:;<=>?@[\\]^`{|}"
"""What stays as it is besides letters, digits and _.-~: all that is printable ASCII but "/" and "%"."""
MAX_NODE_NAME = 1_024
"""Of a group's node: each operation of a multi names it, and all must fit into one request to the store."""
_AS_IT_IS = re.compile(rf"(?!\.{{1,2}}\Z)[A-Za-z0-9_.~{re.escape(_PLAIN)}-]+")
"""Ids that are the names of their nodes, as most are."""
_EMPTY = "%"
"""Nothing else is written so."""


def node_name(text: str) -> str:
    """An id, or whatever a client takes for a topic's name, as the name of a node."""
    if _AS_IT_IS.fullmatch(text):
        return text
    if text in (".", ".."):
        return text.replace(".", "%2E")
    return quote(text, safe=_PLAIN) or _EMPTY


def _of(name: str) -> str:
    return "" if name == _EMPTY else unquote(name)


def group_of(name: str) -> GroupId:
    """The group whose node has this name."""
    return GroupId(_of(name))


def member_of(name: str) -> MemberId:
    """The member whose node has this name."""
    return MemberId(_of(name))


def group_named(name: str, below: str = CONSUMERS) -> GroupId:
    """The group whose node this is; CorruptMetadata for a name that no group's node has."""
    group_id = group_of(name)
    if not group_id or node_name(group_id) != name or len(name) > MAX_NODE_NAME:
        raise CorruptMetadata(f"{below}/{name}", "is named as no group can be")
    return group_id


def member_named(name: str, below: str) -> MemberId:
    """The member whose node this is; CorruptMetadata for a name that no member's node has."""
    member_id = member_of(name)
    if not member_id or node_name(member_id) != name:
        raise CorruptMetadata(f"{below}/{name}", "is named as no member can be")
    return member_id


def partition_named(topic: str, index: str, below: str) -> TopicPartition:
    """The partition whose node this is; CorruptMetadata for names that no partition's node has."""
    path = f"{below}/{topic}/{index}"
    if node_name(topic_of(topic)) != topic:
        raise CorruptMetadata(path, "is below what is named as no topic's node can be")
    with Reading(path):
        return TopicPartition(topic_of(topic), PartitionIndex(decimal(index, 0, INT32)))


def topic_of(name: str) -> TopicName:
    """The topic whose node has this name."""
    return TopicName(_of(name))


def consumer(group: GroupId) -> str:
    return f"{CONSUMERS}/{node_name(group)}"


def members(group: GroupId) -> str:
    return f"{consumer(group)}/ids"


def member(group: GroupId, member_id: MemberId) -> str:
    return f"{members(group)}/{node_name(member_id)}"


def owners(group: GroupId) -> str:
    return f"{consumer(group)}/owners"


def owners_of_topic(group: GroupId, topic: TopicName) -> str:
    return f"{owners(group)}/{node_name(topic)}"


def owner(group: GroupId, tp: TopicPartition) -> str:
    return f"{owners_of_topic(group, tp.topic)}/{tp.partition}"


def offsets(group: GroupId) -> str:
    return f"{consumer(group)}/offsets"


def offsets_of_topic(group: GroupId, topic: TopicName) -> str:
    return f"{offsets(group)}/{node_name(topic)}"


def offset(group: GroupId, tp: TopicPartition) -> str:
    return f"{offsets_of_topic(group, tp.topic)}/{tp.partition}"


def group(group_id: GroupId) -> str:
    return f"{GROUPS}/{node_name(group_id)}"


def assignment(group_id: GroupId) -> str:
    return f"{group(group_id)}/assignment"


def share(group_id: GroupId, member_id: MemberId) -> str:
    return f"{assignment(group_id)}/{node_name(member_id)}"


def instances(group_id: GroupId) -> str:
    return f"{group(group_id)}/instances"


def instance(group_id: GroupId, instance_id: InstanceId) -> str:
    return f"{instances(group_id)}/{node_name(instance_id)}"


def state(group_id: GroupId) -> str:
    return f"{group(group_id)}/state"


def claim(group_id: GroupId) -> str:
    return f"{group(group_id)}/claim"


def empty(group_id: GroupId) -> str:
    """Beside the group: one that only an old tool committed for has no other node of raylog's."""
    return f"{EMPTY_GROUPS}/{node_name(group_id)}"


def details(group_id: GroupId) -> str:
    return f"{group(group_id)}/offsets"


def details_of_topic(group_id: GroupId, topic: TopicName) -> str:
    return f"{details(group_id)}/{node_name(topic)}"


def detail(group_id: GroupId, tp: TopicPartition) -> str:
    return f"{details_of_topic(group_id, tp.topic)}/{tp.partition}"


# --- values


def encode_kind(kind: GroupKind) -> bytes:
    return dump({"version": 1, "kind": kind.value})


def decode_kind(group_id: GroupId, data: bytes) -> GroupKind:
    value = load(path := group(group_id), data)
    with Reading(path):
        return GroupKind(value["kind"])


def encode_offset(committed: Offset) -> bytes:
    return str(committed).encode()


def decode_offset(path: str, data: bytes) -> Offset:
    """NO_OFFSET when nothing was committed."""
    return Offset(max(NO_OFFSET, number(path, data))) if data else NO_OFFSET


def encode_detail(committed: CommittedOffset, topic_id: TopicId) -> bytes:
    """It names the offset, too: beside another one, which an old tool wrote, it says nothing."""
    value = {
        "version": 1,
        "offset": committed.offset,
        "leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "timestamp": committed.committed_ms,
    }
    return dump(value if topic_id == NO_TOPIC_ID else value | {"topic_id": encode_topic_id(topic_id)})


def decode_committed(path: str, data: bytes, detail_data: bytes) -> tuple[CommittedOffset, TopicId] | None:
    """What was committed, and for which topic, from the node at ``path`` and the one with the details.

    None: nothing was. NO_TOPIC_ID: of the topic no more is known than its name, for an old tool wrote the offset, or
    the topic has no id.
    """
    committed = decode_offset(path, data)
    if committed == NO_OFFSET:
        return None
    value = load(path, detail_data) if detail_data else {}
    with Reading(path):
        if value.get("offset") != committed:
            return CommittedOffset(committed), NO_TOPIC_ID
        found = CommittedOffset(
            committed,
            LeaderEpoch(integer(value["leader_epoch"], -1)),
            text(value["metadata"]),
            TimestampMs(integer(value["timestamp"], -1, INT64)),
        )
        return found, TopicId(decode_topic_id(value["topic_id"])) if "topic_id" in value else NO_TOPIC_ID


def encode_member(registered: Registered, now_ms: TimestampMs) -> bytes:
    """Kafka's fields, and where the member listens."""
    if registered.pattern is None:
        subscription: dict[str, int] = dict.fromkeys(sorted(registered.topics), 1)
    else:
        subscription = {registered.pattern: 1}
    value: dict[str, Any] = {
        "version": 1,
        "subscription": subscription,
        "pattern": "static" if registered.pattern is None else "white_list",
        "timestamp": str(now_ms),
    }
    if registered.host:
        value |= {"host": registered.host, "port": registered.port, "machine": registered.machine}
    if registered.instance is not None:
        value["instance"] = registered.instance
    return dump(value)


def decode_member(path: str, data: bytes) -> Registered:
    value = load(path, data)
    with Reading(path):
        names = tuple(text(name) for name in fields(value["subscription"]))
        listens = ("", -1, "")
        if "host" in value:
            listens = host(value["host"]), port(value["port"]), text(value["machine"])
        instance_id = InstanceId(text(value["instance"])) if "instance" in value else None
        match value.get("pattern", "static"):
            case "static":
                return Registered(frozenset(TopicName(name) for name in names), None, *listens, instance_id)
            case "white_list" if len(names) == 1:
                return Registered(frozenset(), names[0], *listens, instance_id)
            case other:
                raise ValueError(f"a subscription {other!r} with {len(names)} entries")


def encode_owner(member_id: MemberId) -> bytes:
    """Also the value of an instance's node."""
    return member_id.encode()


def decode_owner(path: str, data: bytes) -> MemberId:
    with Reading(path):
        return MemberId(data.decode())


def encode_empty(generation: Generation, written: int, since_ms: TimestampMs) -> bytes:
    """``generation``: in which the group was found without members; in another one it has had some since. ``written``:
    the number of the newest write of an offset that carries no time, for it is in use still when another one comes.
    """
    return dump({"version": 1, "generation": generation, "written": written, "since": since_ms})


def decode_empty(path: str, data: bytes) -> tuple[Generation, int, TimestampMs]:
    """What :func:`encode_empty` was given."""
    value = load(path, data)
    with Reading(path):
        return (
            Generation(integer(value["generation"])),
            integer(value.get("written", 0), 0, INT64),
            TimestampMs(integer(value["since"], 0, INT64)),
        )


def encode_assignment(shares: Shares) -> bytes:
    return dump(
        {
            "version": 1,
            "generation": shares.generation,
            "members": {name: _by_topic(partitions) for name, partitions in sorted(shares.members.items())},
        }
    )


def decode_assignment(group_id: GroupId, data: bytes) -> Shares:
    value = load(path := assignment(group_id), data)
    with Reading(path):
        return Shares(
            Generation(integer(value["generation"])),
            {MemberId(text(name)): _partitions(topics) for name, topics in fields(value["members"]).items()},
        )


def encode_share(generation: Generation, partitions: tuple[TopicPartition, ...]) -> bytes:
    """``generation``: of the assignment that gave the member this share."""
    return dump({"version": 1, "generation": generation, "partitions": _by_topic(partitions)})


def decode_share(path: str, member_id: MemberId, data: bytes) -> Shares:
    """As the assignment, of this member alone."""
    value = load(path, data)
    with Reading(path):
        return Shares(Generation(integer(value["generation"])), {member_id: _partitions(value["partitions"])})


def _by_topic(partitions: tuple[TopicPartition, ...]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return topics


def _partitions(by_topic: Any) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(TopicName(text(topic)), PartitionIndex(integer(index)))
        for topic, indexes in fields(by_topic).items()
        for index in array(indexes)
    )
