"""Who coordinates a group: what is stored of it, and whom all brokers pick without asking each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.broker.groups.classic.claims import (
    UNCLAIMED,
    Claim,
    choose_coordinator,
    coordinator_of,
    decode_claim,
    decode_group,
    encode_claim,
    encode_group,
)
from raylog.broker.groups.classic.stored import StoredGroup, StoredMember
from raylog.coordination.metadata.model import BrokerInfo, ClusterState
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.protocol.ids import BrokerEpoch, BrokerId, Generation, GroupId, InstanceId, MemberId

GROUP = GroupId("billing")

members = st.builds(
    StoredMember,
    st.text().map(MemberId),
    st.none() | st.text().map(InstanceId),
    st.text(),
    st.text(),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.binary(),
    st.binary(),
)
groups = st.builds(
    StoredGroup,
    st.integers(0, 2**31 - 1).map(Generation),
    st.text(),
    st.text(),
    st.text().map(MemberId),
    st.lists(members).map(tuple),
)


def broker(broker_id: int, epoch: int = 1) -> BrokerInfo:
    return BrokerInfo(BrokerId(broker_id), BrokerEpoch(epoch), ())


def cluster(*brokers: BrokerInfo) -> ClusterState:
    return ClusterState(brokers={each.id: each for each in brokers})


def claimed(by: int, epoch: int) -> Claim:
    return Claim(BrokerId(by), BrokerEpoch(epoch))


@given(groups)
def test_what_is_stored_is_read_again(group: StoredGroup) -> None:
    assert decode_group("/node", encode_group(group)) == group


def test_a_claim_is_read_as_it_was_stored() -> None:
    for claim in (claimed(3, 7), UNCLAIMED):
        assert decode_claim("/node", encode_claim(claim)) == claim


def test_an_empty_node_is_a_group_that_nobody_joined() -> None:
    assert decode_group("/node", b"") == StoredGroup()


@pytest.mark.parametrize("data", [b"x", b"[]", b"{}", encode_group(StoredGroup()).replace(b"[]", b"[{}]")])
def test_a_node_that_cannot_be_read_is_named(data: bytes) -> None:
    for decode in (decode_group, decode_claim):
        with pytest.raises(CorruptMetadata, match="/raylog/groups/g/node"):
            decode("/raylog/groups/g/node", data.replace(b"version", b"coordinator"))


def test_a_claim_is_good_while_that_very_incarnation_is_registered() -> None:
    brokers = [broker(number, epoch=5) for number in range(4)]
    hashed = choose_coordinator(GROUP, brokers)
    assert hashed is not None
    other = next(each for each in brokers if each.id != hashed.id)
    state = cluster(*brokers)
    assert coordinator_of(GROUP, claimed(other.id, 5), state) == other
    assert coordinator_of(GROUP, claimed(other.id, 4), state) == hashed
    assert coordinator_of(GROUP, claimed(9, 5), state) == hashed
    assert coordinator_of(GROUP, UNCLAIMED, state) == hashed


def test_a_claim_of_a_later_incarnation_than_is_known_is_good() -> None:
    brokers = [broker(number, epoch=5) for number in range(4)]
    assert coordinator_of(GROUP, claimed(2, 6), cluster(*brokers)) == brokers[2]


def test_without_live_brokers_nobody_coordinates() -> None:
    assert coordinator_of(GROUP, claimed(1, 1), cluster()) is None


def test_only_the_groups_of_a_broker_that_goes_move_and_all_get_their_share() -> None:
    names = [GroupId(f"group-{number}") for number in range(400)]
    brokers = [broker(number) for number in range(5)]
    before = {name: choose_coordinator(name, brokers) for name in names}
    after = {name: choose_coordinator(name, reversed(brokers[1:])) for name in names}
    assert all(after[name] == before[name] for name in names if before[name] != brokers[0])
    assert min(Counter(before.values()).values()) > 400 / 5 / 2


def test_fenced_broker_is_not_chosen_and_keeps_no_claim() -> None:
    brokers = [broker(number, epoch=5) for number in range(4)]
    hashed = choose_coordinator(GROUP, brokers)
    assert hashed is not None
    state = replace(cluster(*brokers), fenced=frozenset({hashed.id}))
    others = [each for each in brokers if each != hashed]
    assert coordinator_of(GROUP, UNCLAIMED, state) == choose_coordinator(GROUP, others)
    for epoch in (4, 5):
        assert coordinator_of(GROUP, claimed(hashed.id, epoch), state) == choose_coordinator(GROUP, others)
    assert coordinator_of(GROUP, claimed(hashed.id, 6), state) == hashed, "it has registered anew since"


def test_claim_of_fenced_broker_holds_where_half_are_fenced() -> None:
    """Perhaps it is the controller that is cut off."""
    brokers = [broker(number, epoch=5) for number in range(4)]
    for fenced in ({1, 2}, {1, 2, 3}, {0, 1, 2, 3}):
        state = replace(cluster(*brokers), fenced=frozenset(map(BrokerId, fenced)))
        assert coordinator_of(GROUP, claimed(2, 5), state) == brokers[2]
