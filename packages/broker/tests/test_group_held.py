"""A claim of a group against the metadata store: by which broker, in which of its lives, how large."""

from __future__ import annotations

import pytest

from kit.node import registered_store
from raylog.broker.groups import held as held_module
from raylog.broker.groups.classic_claims import ClaimedGroup, encode_claimed
from raylog.broker.groups.classic_stored import GroupRules, StoredGroup, StoredMember
from raylog.broker.groups.held import Claimant, HeldGroup, check_coordinates, claim_group, read_claimed
from raylog.coordination import group_paths
from raylog.coordination.group_kinds import GroupKind, settle_kind
from raylog.coordination.memory_store import MemoryStore
from raylog.coordination.model import BrokerInfo, ClusterState
from raylog.protocol.errors import NotCoordinator, RaylogError
from raylog.protocol.ids import BrokerEpoch, BrokerId, Generation, GroupId, MemberId, MonotonicMs

GROUP = GroupId("billing")
ME, OTHER = BrokerId(1), BrokerId(2)


def me(epoch: int) -> Claimant:
    return Claimant(ME, BrokerEpoch(epoch))


def cluster(epoch: int) -> ClusterState:
    """As this broker knows it: it is alone."""
    return ClusterState(brokers={ME: BrokerInfo(ME, BrokerEpoch(epoch), ())})


def claimed_by(broker: BrokerId, epoch: int) -> ClaimedGroup:
    return ClaimedGroup(StoredGroup(Generation(3)), broker, BrokerEpoch(epoch))


def claim(store: MemoryStore, epoch: int) -> HeldGroup:
    held = claim_group(store, GROUP, me(epoch), cluster(epoch), GroupRules(), MonotonicMs(0), make=True)
    assert held is not None
    return held


def test_claim_of_a_later_life_is_not_taken_back() -> None:
    with pytest.raises(NotCoordinator, match="later life"):
        check_coordinates(GROUP, claimed_by(ME, 3), me(2), cluster(2))


@pytest.mark.parametrize("claimed", [claimed_by(ME, 2), claimed_by(ME, 1), claimed_by(OTHER, 9), ClaimedGroup()])
def test_own_earlier_and_dead_claims_are_taken_over(claimed: ClaimedGroup) -> None:
    check_coordinates(GROUP, claimed, me(2), cluster(2))


def test_claim_that_is_held_already_writes_nothing() -> None:
    store = registered_store(ME, BrokerEpoch(1))
    claim(store, 1)
    before = read_claimed(store, GROUP)
    assert (before.claimed.coordinator, before.claimed.epoch, before.version) == (ME, 1, 0)
    claim(store, 1)
    assert read_claimed(store, GROUP) == before


def test_claim_of_an_earlier_life_is_written_anew() -> None:
    store = registered_store(ME, BrokerEpoch(2))
    settle_kind(store, GROUP, GroupKind.CLIENTS)
    store.create(group_paths.state(GROUP), encode_claimed(claimed_by(ME, 1)))
    held = claim(store, 2)
    now = read_claimed(store, GROUP)
    assert (now.claimed.epoch, now.claimed.group.generation, now.version) == (2, 3, 1)
    held.write(StoredGroup(Generation(4)))
    assert read_claimed(store, GROUP).version == 2


def test_state_of_the_largest_size_is_stored_and_no_larger_one() -> None:
    store = registered_store(ME, BrokerEpoch(1))
    held = claim(store, 1)

    def group(size: int) -> StoredGroup:
        member = StoredMember(MemberId("m" * size), None, "", "", 1, 1, b"", b"")
        return StoredGroup(Generation(1), members=(member,))

    most = held_module.MAX_STATE_BYTES - len(encode_claimed(ClaimedGroup(group(0), *me(1))))
    held.write(group(most))
    version = read_claimed(store, GROUP).version
    with pytest.raises(RaylogError, match="use fewer members or topics"):
        held.write(group(most + 1))
    assert read_claimed(store, GROUP).version == version
