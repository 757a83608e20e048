"""What `raylog doctor` finds among the nodes of groups, and how often it asks for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kit.node import registered_store
from kit.stores import Counting, close_node
from kit.topics import put_topic
from raylog.broker.cli.doctor import unreadable_nodes
from raylog.broker.groups.classic.claims import Claim, encode_claim, encode_group
from raylog.broker.groups.classic.stored import StoredGroup
from raylog.broker.groups.examination import GROUPS_AT_ONCE
from raylog.coordination.groups.kinds import GroupKind, settle_kind
from raylog.coordination.groups.offsets import RegistryOffsetStore
from raylog.coordination.metadata import group_paths, paths
from raylog.coordination.metadata.group_model import CommittedOffset, Registered, Shares
from raylog.coordination.metadata.model import BrokerInfo, Endpoint
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    Generation,
    GroupId,
    MemberId,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicName,
    TopicPartition,
)

GROUP, ONE = GroupId("a group"), MemberId("one")
TP = TopicPartition(TopicName("flights"), PartitionIndex(0))
MOST_TRIPS = 33
"""About half of them for so many groups as are read at once, the others for brokers and topics, which have no states
here.
"""


@pytest.fixture
def store() -> Iterator[Counting]:
    """With a broker that is registered at epoch 3."""
    broker = BrokerInfo(BrokerId(1), BrokerEpoch(3), (Endpoint("PLAINTEXT", "h", 1),))
    store = registered_store(broker.id, broker.epoch)
    store.set(paths.broker(broker.id), paths.encode_broker(broker, TimestampMs(1)))
    yield store
    store.close()


def put_whole(store: Counting, group: GroupId) -> None:
    """With a node of each kind."""
    settle_kind(store, group, GroupKind.CLIENTS)
    store.create(group_paths.state(group), encode_group(StoredGroup()))
    store.create(group_paths.claim(group), encode_claim(Claim(BrokerId(1), BrokerEpoch(3))))
    store.create(group_paths.empty(group), group_paths.encode_empty(Generation(0), 0, TimestampMs(1)), parents=True)
    member = group_paths.encode_member(Registered(frozenset(), None), TimestampMs(1))
    store.create(group_paths.member(group, ONE), member, parents=True)
    store.create(group_paths.assignment(group), group_paths.encode_assignment(Shares(Generation(1), {})))
    store.create(group_paths.share(group, ONE), group_paths.encode_share(Generation(1), (TP,)))
    store.create(group_paths.owner(group, TP), group_paths.encode_owner(ONE), parents=True)
    assert not RegistryOffsetStore(store).write(group, {TP: CommittedOffset(Offset(5))}, [])


NODES: dict[str, Callable[[GroupId], str]] = {
    "kind": group_paths.group,
    "state": group_paths.state,
    "claim": group_paths.claim,
    "empty": group_paths.empty,
    "member": lambda group: group_paths.member(group, ONE),
    "assignment": group_paths.assignment,
    "share": lambda group: group_paths.share(group, ONE),
    "owner": lambda group: group_paths.owner(group, TP),
    "offset": lambda group: group_paths.offset(group, TP),
}


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_unreadable_node_of_a_group_is_told(store: Counting, node: Callable[[GroupId], str]) -> None:
    put_topic(store, TP.topic)
    for group in (GROUP, GroupId("z")):
        put_whole(store, group)
    assert unreadable_nodes(store) == {}
    store.set(node(GROUP), b"\xff")
    assert list(unreadable_nodes(store)) == [node(GROUP)]


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_node_that_is_closed_to_us_is_told(store: Counting, node: Callable[[GroupId], str]) -> None:
    put_topic(store, TP.topic)
    put_whole(store, GROUP)
    close_node(store, node(GROUP))
    [(path, what)] = unreadable_nodes(store).items()
    assert (path, "closed to these credentials" in what) == (node(GROUP), True)


def test_group_below_a_node_of_a_session_is_told(store: Counting) -> None:
    store.ensure(group_paths.GROUPS)
    store.create(group_paths.group(GROUP), group_paths.encode_kind(GroupKind.CLIENTS), ephemeral=True)
    [(path, what)] = unreadable_nodes(store).items()
    assert (path, "kept by a session" in what) == (group_paths.group(GROUP), True)


def test_claim_at_an_epoch_that_its_broker_never_had_is_told(store: Counting) -> None:
    put_whole(store, GROUP)
    store.set(group_paths.claim(GROUP), encode_claim(Claim(BrokerId(1), BrokerEpoch(4))))
    [(path, what)] = unreadable_nodes(store).items()
    assert (path, "epoch 4" in what) == (group_paths.claim(GROUP), True)


@pytest.mark.parametrize("groups", [5, GROUPS_AT_ONCE])
def test_groups_are_looked_at_in_few_round_trips(store: Counting, groups: int) -> None:
    put_topic(store, TP.topic)
    for number in range(groups):
        put_whole(store, GroupId(f"g{number}"))
    before = store.trips
    assert unreadable_nodes(store) == {}
    assert store.trips - before <= MOST_TRIPS
