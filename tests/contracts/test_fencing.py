"""Incarnations fence, ephemerals do not (D9b); a crashed broker's session need not be waited for (D9c).

Over both stores, because the naive ways look right until a real ZooKeeper shows that they are not.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kit.stores import OpenStore
from kit.topics import put_topic
from kit.waiting import wait_until
from raylog.coordination.groups.kinds import GroupKind, settle_kind
from raylog.coordination.groups.offsets import CommittedOffset, RegistryOffsetStore
from raylog.coordination.membership.registration import BrokerRegistration, DuplicateBroker, SessionFile, ensure_cluster
from raylog.coordination.metadata import group_paths, paths
from raylog.coordination.metadata.model import BrokerInfo, Endpoint
from raylog.coordination.store.port import BadVersion, Check, MetadataStore, NodeExists, Set, StoreUnavailable
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    GroupId,
    MemberId,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
)

pytestmark = pytest.mark.system

BROKER = BrokerInfo(BrokerId(1), BrokerEpoch(-1), (Endpoint("PLAINTEXT", "localhost", 9092),), rack="here")
GROUP = GroupId("readers")
TP = TopicPartition(TopicName("flights"), PartitionIndex(0))
A, B = MemberId("a"), MemberId("b")


def at(offset: int) -> CommittedOffset:
    return CommittedOffset(Offset(offset))


def test_a_registration_makes_its_nodes_and_raises_the_incarnation(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    ensure_cluster(store)
    registration = BrokerRegistration(store, SessionFile(tmp_path / "session"))
    first = registration.register(BROKER)
    assert registration.is_current
    registration.deregister()
    assert store.exists(paths.broker(BROKER.id)) is None
    second = registration.register(BROKER)
    assert second.epoch == first.epoch + 1
    epoch, node = store.exists(paths.broker_epoch(BROKER.id)), store.exists(paths.broker(BROKER.id))
    assert epoch is not None
    assert node is not None
    assert epoch.version == second.epoch
    assert node.ephemeral_owner == store.session.id
    assert second == replace(BROKER, epoch=second.epoch, intact_since=first.epoch, disks_since=first.epoch)


def test_a_new_incarnation_fences_what_was_decided_on_the_old_one(open_store: OpenStore, tmp_path: Path) -> None:
    """The naive way checks the version of the ephemeral: but the node made anew has version 0 again."""
    broker, controller = open_store(), open_store()
    ensure_cluster(broker)
    broker.create("/state", b"")
    registration = BrokerRegistration(broker, SessionFile(tmp_path / "session"))
    known = registration.register(BROKER)
    ephemeral = controller.exists(paths.broker(BROKER.id))
    assert ephemeral is not None
    registration.deregister()
    registration.register(BROKER)
    naive = Check(paths.broker(BROKER.id), ephemeral.version)
    controller.multi([naive, Set("/state", b"decided on what was no longer so")])
    with pytest.raises(BadVersion):
        controller.multi([Check(paths.broker_epoch(BROKER.id), known.epoch), Set("/state", b"wrong")])
    assert broker.get("/state") == (b"decided on what was no longer so", 1)


def test_an_owner_that_lost_its_claim_cannot_commit(open_store: OpenStore) -> None:
    """The naive way checks that the owner's node is as it was: another owner's looks just the same."""
    stale_store, store = open_store(), open_store()
    ensure_cluster(store)
    put_topic(store, TP.topic)
    settle_kind(store, GROUP, GroupKind.ACTORS)
    stale, fresh = RegistryOffsetStore(stale_store), RegistryOffsetStore(store)
    old = stale.claim(GROUP, TP, A)
    [old] = stale.commit(stale.stage([(old, at(10))]))
    node = group_paths.owner(GROUP, TP)
    before = store.exists(node)
    with pytest.raises(NodeExists):
        fresh.claim(GROUP, TP, B)
    stale_store.delete(node)  # as when its session ends
    new = fresh.claim(GROUP, TP, B)
    assert new.committed == at(10)
    after = store.exists(node)
    assert before is not None
    assert after is not None
    assert before.version == after.version  # so the naive check passes:
    stale_store.multi([Check(node, before.version), Set(group_paths.offset(GROUP, TP), b"10", -1)])
    new = new._replace(version=new.version + 1)
    with pytest.raises(BadVersion):
        stale.commit(stale.stage([(old, at(11))]))
    with pytest.raises(BadVersion):
        stale.release(old)
    fresh.commit(fresh.stage([(new, at(12))]))
    assert fresh.fetch(GROUP, [TP]) == {TP: at(12)}


def test_offsets_become_visible_all_at_once_or_not_at_all(open_store: OpenStore) -> None:
    store = open_store()
    put_topic(store, TP.topic, 2)
    settle_kind(store, GROUP, GroupKind.ACTORS)
    offsets = RegistryOffsetStore(store)
    other = TP._replace(partition=PartitionIndex(1))
    first, second = offsets.claim(GROUP, TP, A), offsets.claim(GROUP, other, A)
    assert first.committed is None
    assert offsets.fetch(GROUP, [TP, other]) == {}
    offsets.abort(offsets.stage([(first, at(1)), (second, at(2))]))
    assert offsets.fetch(GROUP, [TP, other]) == {}
    [later, _] = offsets.commit(offsets.stage([(first, at(1)), (second, at(2))]))
    with pytest.raises(BadVersion):
        offsets.commit(offsets.stage([(later, at(5)), (second, at(6))]))
    assert offsets.fetch(GROUP, [TP, other]) == {TP: at(1), other: at(2)}
    offsets.release(later)
    assert offsets.claim(GROUP, TP, B).committed == at(1)


def test_a_broker_id_that_a_live_process_has_is_refused(open_store: OpenStore, tmp_path: Path) -> None:
    ensure_cluster(open_store())
    BrokerRegistration(open_store(), SessionFile(tmp_path / "one")).register(BROKER)
    with pytest.raises(DuplicateBroker, match=r"broker id 1 is registered by .*localhost:9092"):
        BrokerRegistration(open_store(), SessionFile(tmp_path / "two")).register(BROKER)


def test_after_a_lost_session_the_broker_registers_with_a_new_epoch(open_store: OpenStore, tmp_path: Path) -> None:
    ensure_cluster(open_store())
    store = open_store()
    registration = BrokerRegistration(store, SessionFile(tmp_path / "session"))
    first = registration.register(BROKER)
    open_store().end_session(store.session)
    wait_until(lambda: not registration.is_current and is_connected(store), 10, "a new session")
    assert registration.register(BROKER).epoch == first.epoch + 1
    assert registration.is_current


def is_connected(store: MetadataStore) -> bool:
    try:
        store.heartbeat()
    except StoreUnavailable:
        return False
    return True
