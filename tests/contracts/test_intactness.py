"""A registration says since when the broker's data is intact, in one write with the incarnation that it makes.

Else an empty disk may lead: a process that saw the loss dies, and the next one does not see it any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from kit.stores import OpenStore
from kit.waiting import wait_until
from raylog.coordination.membership.registration import BrokerRegistration, SessionFile, ensure_cluster
from raylog.coordination.metadata import paths, snapshot
from raylog.coordination.metadata.model import BrokerInfo, Endpoint
from raylog.coordination.store.port import MetadataStore, Op, Set, StoreUnavailable
from raylog.protocol.ids import BrokerEpoch, BrokerId

pytestmark = pytest.mark.system

DISKS = (UUID(int=1), UUID(int=2))
BROKER = BrokerInfo(BrokerId(1), BrokerEpoch(-1), (Endpoint("PLAINTEXT", "localhost", 9092),), directory_ids=DISKS)


class Life(BrokerRegistration):
    """One process of the broker. ``before_writing`` runs once, when all is read and nothing written."""

    def __init__(
        self,
        store: MetadataStore,
        path: Path,
        boot_id: str = "boot",
        *,
        lost_data: bool = False,
        before_writing: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(store, SessionFile(path), boot_id=boot_id, lost_data=lost_data)
        self._before_writing = before_writing

    def operations(self, broker: BrokerInfo, epoch_version: int) -> list[Op]:
        hook, self._before_writing = self._before_writing, lambda: None
        hook()
        return super().operations(broker, epoch_version)


class Crash(Exception):
    """The process dies here."""


def crash() -> None:
    raise Crash


@pytest.mark.parametrize(
    ("boot_id", "lost_data", "clean_stop", "disks", "is_intact"),
    [
        ("boot", False, False, DISKS, True),
        ("boot", False, True, DISKS, True),
        ("other", False, True, DISKS, True),
        ("other", False, False, DISKS, False),
        ("boot", True, False, DISKS, False),
        ("boot", True, True, DISKS, False),
        ("boot", False, True, DISKS[:1], False),
        ("boot", False, True, (DISKS[0], UUID(int=3)), False),
        ("boot", False, False, (*DISKS, UUID(int=3)), True),
    ],
    ids=[
        "a crash of the process",
        "a clean stop",
        "a clean stop, then the machine started anew",
        "a crash of the machine",
        "recovery lost something",
        "recovery lost something in spite of a clean stop",
        "a disk is missing",
        "a disk was replaced",
        "a disk was added",
    ],
)
def test_what_keeps_data_intact(
    open_store: OpenStore,
    tmp_path: Path,
    boot_id: str,
    lost_data: bool,
    clean_stop: bool,
    disks: tuple[UUID, ...],
    is_intact: bool,
) -> None:
    ensure_cluster(open_store())
    store = open_store()
    first = Life(store, tmp_path / "a").register(BROKER)
    assert first.intact_since == first.epoch, "what was before the first registration is not known"
    open_store().end_session(store.session)
    second_store = open_store()
    second = Life(second_store, tmp_path / "b", boot_id, lost_data=lost_data).register(
        replace(BROKER, clean_stop=clean_stop, directory_ids=disks)
    )
    assert second.epoch == first.epoch + 1
    assert second.intact_since == (first.epoch if is_intact else second.epoch)
    assert second.disks_since == (first.epoch if set(DISKS) <= set(disks) else second.epoch)
    assert snapshot.load_brokers(open_store()) == {BROKER.id: second}
    assert not is_intact or third(open_store, tmp_path, second_store).intact_since == first.epoch


def third(open_store: OpenStore, tmp_path: Path, store: MetadataStore) -> BrokerInfo:
    """A further crash changes nothing."""
    open_store().end_session(store.session)
    disks = (*DISKS, UUID(int=3))
    return Life(open_store(), tmp_path / "c", "boot").register(replace(BROKER, directory_ids=disks, clean_stop=True))


def test_who_crashes_before_it_registered_its_loss_hides_nothing(open_store: OpenStore, tmp_path: Path) -> None:
    """The disk is replaced; the first process to see that dies between reading and writing."""
    ensure_cluster(open_store())
    store = open_store()
    first = Life(store, tmp_path / "a").register(BROKER)
    open_store().end_session(store.session)
    replaced = replace(BROKER, directory_ids=(DISKS[0], UUID(int=3)))
    with pytest.raises(Crash):
        Life(open_store(), tmp_path / "b", before_writing=crash).register(replaced)
    registered = Life(open_store(), tmp_path / "c").register(replaced)
    assert registered.intact_since == registered.epoch > first.epoch


def test_who_crashes_right_after_it_registered_its_loss_hides_nothing(open_store: OpenStore, tmp_path: Path) -> None:
    ensure_cluster(open_store())
    store = open_store()
    Life(store, tmp_path / "a").register(BROKER)
    open_store().end_session(store.session)
    replaced = replace(BROKER, directory_ids=(DISKS[0], UUID(int=3)))
    dies = open_store()
    second = Life(dies, tmp_path / "b").register(replaced)
    open_store().end_session(dies.session)
    third_life = Life(open_store(), tmp_path / "c").register(replaced)
    assert third_life.intact_since == second.epoch == third_life.epoch - 1


def test_two_processes_that_race_each_say_what_is_so_in_their_own_incarnation(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """While one that lost its data is about to register, another comes, registers and dies."""
    ensure_cluster(open_store())
    store = open_store()
    Life(store, tmp_path / "a").register(BROKER)
    open_store().end_session(store.session)

    def another_comes_and_goes() -> None:
        other = open_store()
        Life(other, tmp_path / "b").register(BROKER)
        open_store().end_session(other.session)

    slow = Life(open_store(), tmp_path / "c", lost_data=True, before_writing=another_comes_and_goes)
    registered = slow.register(BROKER)
    assert registered.intact_since == registered.epoch == 3
    assert snapshot.load_brokers(open_store()) == {BROKER.id: registered}


def test_who_is_fenced_while_it_registers_knows_its_epoch(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    ensure_cluster(store)
    fence = Set(paths.broker_epoch(BROKER.id), b"")

    def be_fenced() -> None:
        store.multi([fence])

    registered = Life(open_store(), tmp_path / "a", before_writing=be_fenced).register(BROKER)
    assert registered.intact_since == registered.epoch == 2


def test_a_lost_session_loses_no_data(open_store: OpenStore, tmp_path: Path) -> None:
    """Nor does what recovery lost before the first registration count a second time."""
    ensure_cluster(open_store())
    store = open_store()
    life = Life(store, tmp_path / "a", "", lost_data=True)
    first = life.register(BROKER)
    open_store().end_session(store.session)
    wait_until(lambda: not life.is_current and is_connected(store), 10, "a new session")
    second = life.register(BROKER)
    assert (second.epoch, second.intact_since) == (first.epoch + 1, first.epoch)


def is_connected(store: MetadataStore) -> bool:
    try:
        store.heartbeat()
    except StoreUnavailable:
        return False
    return True


def test_a_registration_whose_answer_was_lost_is_recognised_with_what_it_said(
    open_store: OpenStore, tmp_path: Path
) -> None:
    ensure_cluster(open_store())
    store = open_store()
    first = Life(store, tmp_path / "a", lost_data=True).register(BROKER)
    assert Life(store, tmp_path / "a").register(BROKER) == first
