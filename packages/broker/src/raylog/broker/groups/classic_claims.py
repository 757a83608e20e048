"""◆ Who coordinates a group of Kafka clients: the claim that is stored with it, and whom all turn to without one.

/raylog/groups/G/state holds the group as its coordinator stored it last, and who that is, in which incarnation. Its
node's version is the fence: a coordinator names it in every write, so that of two who think they are it only the one
who claimed last goes on. A claim is good while that very incarnation is registered. After that, or before the first,
the coordinator is the live broker that rendezvous hashing picks: when one goes, only its own groups move.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from raylog.broker.groups.classic_stored import StoredGroup, StoredMember
from raylog.coordination.model import NO_BROKER_EPOCH, BrokerInfo, ClusterState
from raylog.coordination.node_json import Reading, dump, load
from raylog.protocol.ids import NO_LEADER, BrokerEpoch, BrokerId, Generation, GroupId, InstanceId, MemberId

__all__ = ["ClaimedGroup", "choose_coordinator", "coordinator_of", "decode_claimed", "encode_claimed"]


@dataclass(frozen=True, slots=True)
class ClaimedGroup:
    """What the node holds."""

    group: StoredGroup = field(default_factory=StoredGroup)
    coordinator: BrokerId = NO_LEADER
    epoch: BrokerEpoch = NO_BROKER_EPOCH
    """The coordinator's incarnation when it claimed the group."""


def coordinator_of(group: GroupId, claimed: ClaimedGroup, cluster: ClusterState) -> BrokerInfo | None:
    """The live broker that coordinates the group or is to claim it; None when no live broker is known.

    A claim by a newer incarnation than ``cluster`` knows of is good: what we know is older than it.
    """
    holder = cluster.brokers.get(claimed.coordinator)
    if holder is not None and holder.epoch <= claimed.epoch:
        return holder
    return choose_coordinator(group, cluster.brokers.values())


def choose_coordinator(group: GroupId, brokers: Iterable[BrokerInfo]) -> BrokerInfo | None:
    """By rendezvous hashing (Thaler and Ravishankar, 1998): the broker whose hash with the group is highest."""
    return max(brokers, key=lambda broker: (_weight(group, broker.id), broker.id), default=None)


def _weight(group: GroupId, broker: BrokerId) -> bytes:
    return blake2b(f"{broker}/{group}".encode(), digest_size=8).digest()


def encode_claimed(claimed: ClaimedGroup) -> bytes:
    """JSON; what only members read is in Base64."""
    group = claimed.group
    return dump(
        {
            "version": 1,
            "coordinator": claimed.coordinator,
            "broker_epoch": claimed.epoch,
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


def decode_claimed(path: str, data: bytes) -> ClaimedGroup:
    """The value of the node at ``path``; an empty one is a group that nobody claimed. Raises CorruptMetadata."""
    if not data:
        return ClaimedGroup()
    value = load(path, data)
    with Reading(path):
        members = tuple(
            StoredMember(
                MemberId(str(member["id"])),
                None if (name := member["instance_id"]) is None else InstanceId(str(name)),
                str(member["client_id"]),
                str(member["client_host"]),
                int(member["session_timeout_ms"]),
                int(member["rebalance_timeout_ms"]),
                b64decode(member["metadata"]),
                b64decode(member["assignment"]),
            )
            for member in value["members"]
        )
        group = StoredGroup(
            Generation(int(value["generation"])),
            str(value["protocol_type"]),
            str(value["protocol"]),
            MemberId(str(value["leader"])),
            members,
        )
        return ClaimedGroup(group, BrokerId(int(value["coordinator"])), BrokerEpoch(int(value["broker_epoch"])))
