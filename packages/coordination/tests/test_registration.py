"""What a broker believes of its registration when answers are lost and others fence it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.stores import Contended, Interrupted
from raylog.coordination.membership.registration import BrokerRegistration, DuplicateBroker, SessionFile, ensure_cluster
from raylog.coordination.metadata import paths
from raylog.coordination.metadata.model import BrokerInfo, Endpoint
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import Delete, Op, Set, StoreUnavailable
from raylog.protocol.ids import BrokerEpoch, BrokerId

BROKER = BrokerInfo(BrokerId(1), BrokerEpoch(-1), (Endpoint("PLAINTEXT", "localhost", 9092),))


class Unheard(BrokerRegistration):
    """The answer to the next registration is lost, when asked to."""

    loses = False

    def operations(self, broker: BrokerInfo, epoch_version: int) -> list[Op]:
        if self.loses:
            assert isinstance(self._store, MemoryStore)
            self._store.lose_next_answer()
            self.loses = False
        return super().operations(broker, epoch_version)


def fence(tree: MemoryTree) -> None:
    """What a controller does to a broker that seems dead."""
    other = MemoryStore(tree)
    other.start()
    other.multi([Delete(paths.broker(BROKER.id)), Set(paths.broker_epoch(BROKER.id), b"")])
    other.close()


def started(store: MemoryStore) -> MemoryStore:
    store.start()
    ensure_cluster(store)
    return store


def test_a_new_registration_that_was_not_heard_of_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    """In the same session: the node is ours, but of another incarnation than the one that we know."""
    tree = MemoryTree()
    store = started(MemoryStore(tree))
    registration = Unheard(store, SessionFile(tmp_path / "session"))
    first = registration.register(BROKER)
    fence(tree)
    registration.loses = True
    with pytest.raises(StoreUnavailable):
        registration.register(first)
    assert not registration.is_current, "else its lease would be renewed, and nobody would register again"
    second = registration.register(first)
    assert registration.is_current
    epoch = store.exists(paths.broker_epoch(BROKER.id))
    assert epoch is not None
    assert (second.epoch, first.epoch) == (epoch.version, 1)


@pytest.mark.parametrize("after", range(1, 7))
def test_who_is_fenced_while_it_finds_itself_registered_does_not_take_the_fence_for_its_epoch(
    tmp_path: Path, after: int
) -> None:
    tree = MemoryTree()
    store = Interrupted(tree)
    started(store)
    registration = BrokerRegistration(store, SessionFile(tmp_path / "session"))
    first = registration.register(BROKER)
    store.after, store.happens = after, lambda: fence(tree)
    try:
        again = registration.register(BROKER)
    except DuplicateBroker:
        again = registration.register(BROKER)
    epoch = store.exists(paths.broker_epoch(BROKER.id))
    assert epoch is not None
    if registration.stands():
        assert again.epoch == epoch.version
    else:
        assert again.epoch == first.epoch < epoch.version, "its watch tells that it was fenced"


def contended(tree: MemoryTree, tmp_path: Path) -> tuple[Contended, BrokerRegistration, BrokerRegistration]:
    """A store that is interfered with, its registration, and that of another process with the same broker id."""
    store, other = Contended(tree), MemoryStore(tree)
    started(store)
    other.start()
    return (
        store,
        BrokerRegistration(store, SessionFile(tmp_path / "session")),
        BrokerRegistration(other, SessionFile(tmp_path / "other")),
    )


def test_foreign_registration_is_removed_without_its_successor(tmp_path: Path) -> None:
    """Before the process that saw it removes it, another one has done that and registered."""
    store, ours, theirs = contended(MemoryTree(), tmp_path)
    store.create(paths.broker(BROKER.id), b"")

    def register(number: int) -> None:
        store.happens = lambda number: None
        theirs.register(BROKER)

    store.happens = register
    with pytest.raises(DuplicateBroker):
        ours.register(BROKER)
    assert theirs.stands()


def test_deregistration_does_not_end_another_process(tmp_path: Path) -> None:
    tree = MemoryTree()
    _, ours, theirs = contended(tree, tmp_path)
    ours.register(BROKER)
    fence(tree)
    theirs.register(BROKER)
    ours.deregister()
    assert theirs.stands()
