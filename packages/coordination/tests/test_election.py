"""Taking a controller's place: by its session's end, and by a hint."""

from __future__ import annotations

import queue
from collections.abc import Callable

import pytest

from kit.stores import Contended, Interrupted
from raylog.coordination.membership.election import Mandate, campaign, current_controller, resign, take_over
from raylog.coordination.membership.registration import ensure_cluster
from raylog.coordination.metadata import paths
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import StoreEvent, StoreUnavailable
from raylog.protocol.ids import BrokerId, ControllerEpoch, TimestampMs

NOW = TimestampMs(0)
ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)


class Candidates:
    """Three brokers' stores; the first has won."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.stores = {broker: MemoryStore(self.tree) for broker in (ONE, TWO, THREE)}
        self.events: queue.SimpleQueue[StoreEvent] = queue.SimpleQueue()
        for store in self.stores.values():
            store.start()
        ensure_cluster(self.stores[ONE])
        self.first = self.campaign(ONE)

    def campaign(self, broker: BrokerId) -> Mandate | None:
        return campaign(self.stores[broker], broker, NOW, self.events)

    def take_over(self, broker: BrokerId, dead: BrokerId = ONE) -> bool:
        return take_over(self.stores[broker], broker, NOW, dead)

    @property
    def controller(self) -> BrokerId | None:
        return current_controller(self.stores[THREE])


def test_a_hint_ends_the_mandate_of_whom_it_is_about() -> None:
    brokers = Candidates()
    assert brokers.first == Mandate(ControllerEpoch(1), 1)
    assert brokers.take_over(TWO)
    assert brokers.campaign(TWO) == Mandate(ControllerEpoch(2), 2)
    assert brokers.controller == TWO
    assert brokers.campaign(ONE) is None, "the old one finds that another is in office"


@pytest.mark.parametrize("after", [1, 2])
def test_who_is_replaced_while_it_looks_does_not_take_its_successors_mandate_for_its_own(after: int) -> None:
    """Two controllers with one epoch, and one version that all writes check, would be two that nothing fences."""
    brokers = Candidates()
    brokers.stores[ONE].close()
    brokers.stores[ONE] = store = Interrupted(brokers.tree)
    store.start()
    assert brokers.campaign(ONE) == Mandate(ControllerEpoch(2), 2)
    store.after, store.happens = after, lambda: brokers.take_over(TWO)
    mandate = brokers.campaign(ONE)
    assert (brokers.controller, brokers.campaign(TWO)) == (TWO, Mandate(ControllerEpoch(3), 3))
    assert mandate in (None, Mandate(ControllerEpoch(2), 2)), "none, or one that its writes find is over"


def test_two_hints_make_one_controller() -> None:
    brokers = Candidates()
    assert brokers.take_over(TWO)
    assert not brokers.take_over(THREE), "the second is about one who is out of office"
    assert brokers.controller == TWO


def test_a_hint_after_the_sessions_end_changes_nothing() -> None:
    brokers = Candidates()
    brokers.stores[ONE].abandon()
    brokers.tree.expire(brokers.stores[ONE].session.id)
    assert not brokers.take_over(TWO)
    assert brokers.campaign(TWO) == Mandate(ControllerEpoch(2), 2)


def test_a_win_that_was_not_heard_of_is_recognised() -> None:
    brokers = Candidates()
    store, answered = brokers.stores[TWO], iter(range(9))

    def lose_the_answer_to_the_multi() -> None:
        if next(answered) == 1:  # the two reads are answered, the multi comes next
            store.lose_next_answer()

    store.before_answer = lose_the_answer_to_the_multi
    with pytest.raises(StoreUnavailable):
        brokers.take_over(TWO)
    store.before_answer = None
    assert brokers.controller == TWO
    assert not brokers.take_over(TWO)
    assert brokers.campaign(TWO) == Mandate(ControllerEpoch(2), 2)


def test_the_old_controllers_writes_are_fenced() -> None:
    brokers = Candidates()
    assert brokers.first is not None
    brokers.take_over(TWO)
    found = brokers.stores[ONE].get(paths.CONTROLLER_EPOCH)
    assert found is not None
    assert found.version != brokers.first.epoch_version


def contended(brokers: Candidates, broker: BrokerId, happens: Callable[[], object]) -> Contended:
    """The broker's store from now on: ``happens`` comes right before its next multi."""
    brokers.stores[broker].close()
    brokers.stores[broker] = store = Contended(brokers.tree)
    store.start()
    store.happens = lambda number: happens() if number == 1 else None
    return store


def test_epoch_only_grows_whatever_another_program_writes_over_it() -> None:
    """Brokers refuse a controller of an epoch below one that they have seen, for ever."""
    brokers = Candidates()
    assert brokers.first is not None
    last, store = brokers.first.epoch, brokers.stores[THREE]
    for written in (b"not a number", b"1", b"0"):
        store.set(paths.CONTROLLER_EPOCH, written)
        mandate, found = brokers.campaign(ONE), store.get(paths.CONTROLLER_EPOCH)
        assert found is not None
        assert mandate == Mandate(paths.decode_controller_epoch(found.data), found.version), (
            "it is the one in the store"
        )
        assert mandate.epoch > last
        last = mandate.epoch
    store.set(paths.CONTROLLER_EPOCH, b"0")
    assert brokers.take_over(TWO)
    mandate = brokers.campaign(TWO)
    assert mandate is not None
    assert mandate.epoch > last


def test_epoch_whose_node_is_deleted_goes_on_above_what_is_known() -> None:
    """Its version, too: what a controller of before writes is refused for ever."""
    brokers = Candidates()
    for dead, broker in ((ONE, TWO), (TWO, THREE), (THREE, ONE)):
        assert brokers.take_over(broker, dead)
    before = brokers.campaign(ONE)
    assert before == Mandate(ControllerEpoch(4), 4)
    brokers.stores[TWO].delete(paths.CONTROLLER_EPOCH)
    resumed = campaign(brokers.stores[ONE], ONE, NOW, brokers.events, before.epoch)
    assert resumed is not None
    assert resumed.epoch > before.epoch
    assert resumed.epoch_version > before.epoch_version
    assert campaign(brokers.stores[ONE], ONE, NOW, brokers.events, resumed.epoch) == resumed
    resign(brokers.stores[ONE])
    brokers.stores[TWO].delete(paths.CONTROLLER_EPOCH)
    ensure_cluster(brokers.stores[TWO])  # a broker that starts makes it anew
    last = campaign(brokers.stores[TWO], TWO, NOW, brokers.events, resumed.epoch)
    assert last is not None
    assert last.epoch > resumed.epoch
    assert last.epoch_version > resumed.epoch_version


def test_epoch_that_is_far_above_the_version_is_restored() -> None:
    """The version rises by one with each write, and the store takes a number of them at once."""
    brokers, known = Candidates(), ControllerEpoch(1_000_000)
    brokers.stores[TWO].delete(paths.CONTROLLER_EPOCH)
    mandate = campaign(brokers.stores[ONE], ONE, NOW, brokers.events, known)
    assert mandate is not None
    assert mandate.epoch > known


def test_foreign_controller_is_removed_without_its_successor() -> None:
    """Before the broker that saw it removes it, another one has done that and won."""
    brokers = Candidates()
    resign(brokers.stores[ONE])
    brokers.stores[ONE].create(paths.CONTROLLER, b"")
    contended(brokers, TWO, lambda: brokers.campaign(ONE))
    assert brokers.campaign(TWO) is None
    assert brokers.controller == ONE


def test_resignation_needs_no_controller_epoch() -> None:
    """Another program deleted it: this session keeps /controller, and no other could be elected."""
    brokers = Candidates()
    brokers.stores[TWO].delete(paths.CONTROLLER_EPOCH)
    resign(brokers.stores[ONE])
    assert brokers.controller is None
    assert brokers.campaign(TWO) is not None


def test_resignation_without_epoch_does_not_end_a_successor() -> None:
    """The epoch is there again, and another broker took over, before the resignation is written."""
    brokers = Candidates()

    def replaced() -> None:
        ensure_cluster(brokers.stores[TWO])
        assert brokers.take_over(TWO)

    store = contended(brokers, ONE, lambda: None)
    assert brokers.campaign(ONE)
    brokers.stores[TWO].delete(paths.CONTROLLER_EPOCH)
    store.multis, store.happens = 0, lambda number: replaced() if number == 1 else None
    resign(store)
    assert brokers.controller == TWO


def test_resignation_does_not_end_a_successor() -> None:
    brokers = Candidates()
    store = contended(brokers, ONE, lambda: None)
    assert brokers.campaign(ONE)
    store.multis, store.happens = 0, lambda number: brokers.take_over(TWO)
    resign(store)
    assert brokers.controller == TWO
