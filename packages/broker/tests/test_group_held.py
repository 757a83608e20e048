"""A claim of a group against the metadata store: by which broker, in which of its lives, how large."""

from __future__ import annotations

import pytest

from kit.node import registered_store
from raylog.broker.config.groups import GroupRules
from raylog.broker.groups.classic.claims import UNCLAIMED, Claim, encode_claim, encode_group
from raylog.broker.groups.classic.stored import StoredGroup, StoredMember
from raylog.broker.groups.holding import held as held_module
from raylog.broker.groups.holding.held import (
    Claimant,
    HeldGroup,
    check_coordinates,
    claim_group,
    read_claim,
    read_group,
)
from raylog.coordination.groups.kinds import GroupKind, settle_kind
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.model import BrokerInfo, ClusterState
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.port import BadVersion
from raylog.protocol.errors import NotCoordinator, RaylogError
from raylog.protocol.ids import BrokerEpoch, BrokerId, Generation, GroupId, MemberId, MonotonicMs

GROUP = GroupId("billing")
ME, OTHER = BrokerId(1), BrokerId(2)


def me(epoch: int) -> Claimant:
    return Claimant(ME, BrokerEpoch(epoch))


def cluster(epoch: int) -> ClusterState:
    """As this broker knows it: it is alone."""
    return ClusterState(brokers={ME: BrokerInfo(ME, BrokerEpoch(epoch), ())})


def claimed_by(broker: BrokerId, epoch: int) -> Claim:
    return Claim(broker, BrokerEpoch(epoch))


def claim(store: MemoryStore, epoch: int) -> HeldGroup:
    held = claim_group(store, GROUP, me(epoch), cluster(epoch), GroupRules(), MonotonicMs(0), make=True)
    assert held is not None
    return held


def test_claim_of_a_later_life_is_not_taken_back() -> None:
    with pytest.raises(NotCoordinator, match="later life"):
        check_coordinates(GROUP, claimed_by(ME, 3), me(2), cluster(2))


@pytest.mark.parametrize("claimed", [claimed_by(ME, 2), claimed_by(ME, 1), claimed_by(OTHER, 9), UNCLAIMED])
def test_own_earlier_and_dead_claims_are_taken_over(claimed: Claim) -> None:
    check_coordinates(GROUP, claimed, me(2), cluster(2))


def versions(store: MemoryStore) -> tuple[int | None, int]:
    """Of the claim and of the state."""
    state = store.get(group_paths.state(GROUP))
    assert state is not None
    return read_claim(store, GROUP).version, state.version


def test_claim_that_is_held_already_writes_nothing() -> None:
    store = registered_store(ME, BrokerEpoch(1))
    claim(store, 1)
    assert read_claim(store, GROUP) == (claimed_by(ME, 1), 0)
    claim(store, 1)
    assert versions(store) == (0, 0)


def test_claim_of_an_earlier_life_is_written_anew() -> None:
    store = registered_store(ME, BrokerEpoch(2))
    settle_kind(store, GROUP, GroupKind.CLIENTS)
    store.create(group_paths.claim(GROUP), encode_claim(claimed_by(ME, 1)))
    store.create(group_paths.state(GROUP), encode_group(StoredGroup(Generation(3))))
    held = claim(store, 2)
    assert (held.machine.generation, read_claim(store, GROUP)) == (3, (claimed_by(ME, 2), 1))
    held.write(StoredGroup(Generation(4)))
    assert (read_group(store, GROUP).generation, versions(store)) == (4, (1, 1))


def test_write_after_another_claim_is_refused() -> None:
    """The claim alone fences: the state is as its former coordinator left it."""
    store = registered_store(ME, BrokerEpoch(1))
    held = claim(store, 1)
    store.set(group_paths.claim(GROUP), encode_claim(claimed_by(OTHER, 9)))
    for ops in (held.fence(), [*held.fence()[:-1]]):
        with pytest.raises(BadVersion):
            store.multi(ops)
    with pytest.raises(BadVersion):
        held.write(StoredGroup(Generation(4)))
    assert versions(store) == (1, 0)


def test_state_of_the_largest_size_is_stored_and_no_larger_one() -> None:
    store = registered_store(ME, BrokerEpoch(1))
    held = claim(store, 1)

    def group(size: int) -> StoredGroup:
        member = StoredMember(MemberId("m" * size), None, "", "", 1, 1, b"", b"")
        return StoredGroup(Generation(1), members=(member,))

    most = held_module.MAX_STATE_BYTES - len(encode_group(group(0)))
    held.write(group(most))
    before = versions(store)
    with pytest.raises(RaylogError, match="use fewer members or topics"):
        held.write(group(most + 1))
    assert versions(store) == before
