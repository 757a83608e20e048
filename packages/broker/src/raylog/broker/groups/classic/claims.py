"""◆ Which broker coordinates a group of Kafka clients, and what it keeps of the group in the metadata store.

/raylog/groups/G/claim names the coordinator and its incarnation, /raylog/groups/G/state holds the group as that stored
it last. The versions of both nodes are the fence: a coordinator names both in every write, so that of two brokers which
take themselves for it only the one that claimed last goes on. A claim is good while that very incarnation is
registered and the controller reaches it. After that, or before the first, the coordinator is the able broker that
rendezvous hashing picks: when one goes, only its own groups move, and when one comes, it gets its share of all.

A broker that the controller does not reach may not know it, and goes on answering for groups that others have claimed:
it can write nothing for them, so it hands out no assignment and commits nothing. Its heartbeats are heard until its
next write or look (see keeper).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

from raylog.broker.groups.classic.stored import StoredGroup, StoredMember
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.model import NO_BROKER_EPOCH, BrokerInfo, ClusterState
from raylog.coordination.store.node_json import Reading, array, dump, integer, load, text
from raylog.coordination.store.port import Versioned
from raylog.protocol.ids import NO_LEADER, BrokerEpoch, BrokerId, Generation, GroupId, InstanceId, MemberId

__all__ = [
    "UNCLAIMED",
    "Claim",
    "able_brokers",
    "choose_coordinator",
    "claim_of",
    "coordinator_of",
    "decode_claim",
    "decode_group",
    "encode_claim",
    "encode_group",
    "is_in_force",
]


class Claim(NamedTuple):
    """Which broker coordinates a group, in which incarnation."""

    broker: BrokerId
    epoch: BrokerEpoch


UNCLAIMED = Claim(NO_LEADER, NO_BROKER_EPOCH)


def able_brokers(cluster: ClusterState) -> Iterable[BrokerInfo]:
    """The brokers that may be given groups to coordinate: those that the controller reaches."""
    return cluster.unfenced.values()


def coordinator_of(group: GroupId, claim: Claim, cluster: ClusterState) -> BrokerInfo | None:
    """The broker that coordinates the group, or the able one that is to claim it; None when none is known."""
    if is_in_force(claim, cluster):
        return cluster.brokers[claim.broker]
    return choose_coordinator(group, able_brokers(cluster))


def is_in_force(claim: Claim, cluster: ClusterState) -> bool:
    """Whether what this incarnation has claimed is its own.

    A claim by a newer incarnation than ``cluster`` knows of is good: what we know is older than it. So is one by a
    fenced broker where fenced ones are the half or more: then nobody can tell who is cut off.
    """
    holder = cluster.brokers.get(claim.broker)
    if holder is None or holder.epoch > claim.epoch:
        return False
    is_able = holder.id not in cluster.fenced or holder.epoch < claim.epoch
    return is_able or len(cluster.unfenced) * 2 <= len(cluster.brokers)


def choose_coordinator(group: GroupId, brokers: Iterable[BrokerInfo]) -> BrokerInfo | None:
    """By rendezvous hashing (Thaler and Ravishankar, 1998): the broker whose hash with the group is highest."""
    return max(brokers, key=lambda broker: (_weight(group, broker.id), broker.id), default=None)


def _weight(group: GroupId, broker: BrokerId) -> bytes:
    return blake2b(f"{broker}/{group}".encode(), digest_size=8).digest()


def encode_claim(claim: Claim) -> bytes:
    if claim == UNCLAIMED:
        return b""
    return dump({"version": 1, "coordinator": claim.broker, "broker_epoch": claim.epoch})


def decode_claim(path: str, data: bytes) -> Claim:
    """The value of the node at ``path``; an empty one is a claim that was given up. Raises CorruptMetadata."""
    if not data:
        return UNCLAIMED
    value = load(path, data)
    with Reading(path):
        return Claim(BrokerId(integer(value["coordinator"])), BrokerEpoch(integer(value["broker_epoch"])))


def claim_of(group: GroupId, found: Versioned | None) -> Claim:
    """The claim as it was read of the group's node. Raises CorruptMetadata."""
    return UNCLAIMED if found is None else decode_claim(group_paths.claim(group), found.data)


def encode_group(group: StoredGroup) -> bytes:
    """JSON; what only members read is in Base64."""
    return dump(
        {
            "version": 1,
            "generation": group.generation,
            "protocol_type": group.protocol_type,
            "protocol": group.protocol,
            "leader": group.leader,
            "members": [
                {
                    **member._asdict(),
                    "metadata": b64encode(member.metadata).decode(),
                    "assignment": b64encode(member.assignment).decode(),
                }
                for member in group.members
            ],
        }
    )


def decode_group(path: str, data: bytes) -> StoredGroup:
    """The value of the node at ``path``; an empty one is a group that nobody has joined. Raises CorruptMetadata."""
    if not data:
        return StoredGroup()
    value = load(path, data)
    with Reading(path):
        return StoredGroup(
            Generation(integer(value["generation"])),
            text(value["protocol_type"]),
            text(value["protocol"]),
            MemberId(text(value["leader"])),
            tuple(map(_decode_member, array(value["members"]))),
        )


def _decode_member(value: Any) -> StoredMember:
    instance_id = value["instance_id"]
    return StoredMember(
        MemberId(text(value["id"])),
        None if instance_id is None else InstanceId(text(instance_id)),
        text(value["client_id"]),
        text(value["client_host"]),
        integer(value["session_timeout_ms"]),
        integer(value["rebalance_timeout_ms"]),
        b64decode(text(value["metadata"])),
        b64decode(text(value["assignment"])),
    )
