"""Threads of the broker that carry something: what they have at hand when they fail is neither lost nor forgotten."""

from __future__ import annotations

import queue
import threading
from typing import cast

from kit.machine import scaled
from raylog.broker.cluster.controller_calls import Item
from raylog.broker.cluster.controller_sender import Sender
from raylog.broker.cluster.membership import Membership
from raylog.broker.groups.holding.due import THREADS, DueGroups
from raylog.broker.partition.table import PartitionTable
from raylog.coordination.control.peer_control import Ack, AckStatus, UpdateState
from raylog.coordination.controller import events as core
from raylog.coordination.host.clocks import monotonic_ms
from raylog.coordination.host.loops import Loops
from raylog.coordination.membership.lease import Lease
from raylog.coordination.membership.registration import BrokerRegistration
from raylog.coordination.store.port import MetadataStore, SessionEvent, SessionState, StoreUnavailable
from raylog.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, GroupId, MonotonicMs

WAIT_S = 10.0
RECEIVER = BrokerId(2)


def message(sequence: int) -> UpdateState:
    return UpdateState(BrokerId(1), ControllerEpoch(3), BrokerEpoch(5), sequence, True, "cluster", ())


class Flaky:
    """PeerControl that meets a defect at the first message."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    def send(self, broker_id: BrokerId, payload: bytes) -> bytes:
        update = UpdateState.decode(payload)
        self.sent.append(update.sequence)
        if len(self.sent) == 1:
            raise ValueError("not foreseen")
        return Ack(AckStatus.OK, broker_id, update.broker_epoch, update.controller_epoch, update.sequence).encode()

    def propose(self, controller_id: BrokerId, payload: bytes) -> bytes:
        raise NotImplementedError


def test_message_that_meets_a_defect_is_not_taken_for_sent() -> None:
    answers: queue.SimpleQueue[Item] = queue.SimpleQueue()
    loops, peers = Loops(), Flaky()
    sender = Sender(RECEIVER, peers, answers.put, loops)
    sender.put(message(1))
    assert answers.get(timeout=scaled(WAIT_S)) == core.SendFailed(RECEIVER, 1)
    sender.put(message(2))
    acked = answers.get(timeout=scaled(WAIT_S))
    assert isinstance(acked, core.Acked)
    assert (acked.ack.status, acked.ack.sequence) == (AckStatus.OK, 2)
    assert loops.failures() == {"control-to-2": 1}
    sender.stop()


def test_group_whose_tick_fails_is_ticked_again() -> None:
    """Else no session of it would end any more."""
    ticks: queue.SimpleQueue[GroupId] = queue.SimpleQueue()
    failures = iter(range(1))

    def tick(group: GroupId) -> None:
        if group == "bad" and next(failures, None) is not None:
            raise ValueError("not foreseen")
        ticks.put(group)

    loops = Loops()
    ticker = DueGroups("group-ticker", tick, monotonic_ms, loops)
    ticker.start()
    try:
        for group in ("bad", "good"):
            ticker.schedule(GroupId(group), MonotonicMs(monotonic_ms()))
        assert [ticks.get(timeout=scaled(WAIT_S)), ticks.get(timeout=scaled(WAIT_S))] == ["good", "bad"]
        assert loops.failures() == {"group-ticker": 1}
    finally:
        ticker.stop()


def test_group_has_one_thread_at_a_time_and_others_go_on() -> None:
    """What is scheduled for a group meanwhile is done once more after that."""
    begun: queue.SimpleQueue[GroupId] = queue.SimpleQueue()
    goes_on = threading.Event()

    def work(group: GroupId) -> None:
        begun.put(group)
        if group.startswith("slow"):
            assert goes_on.wait(scaled(WAIT_S))

    due = DueGroups("worker", work, monotonic_ms, Loops())
    due.start()
    try:
        slow = [GroupId(f"slow {number}") for number in range(THREADS - 1)]
        for group in (*slow, *slow):
            due.schedule(group, monotonic_ms())
        assert {begun.get(timeout=scaled(WAIT_S)) for _ in slow} == {*slow}
        for group in slow:
            due.schedule(group, monotonic_ms())
        for number in range(100):
            due.schedule(GroupId(f"{number}"), MonotonicMs(monotonic_ms() - number))
        assert {begun.get(timeout=scaled(WAIT_S)) for _ in range(100)} == {f"{number}" for number in range(100)}
        assert due.next_ms is None
        goes_on.set()
        assert {begun.get(timeout=scaled(WAIT_S)) for _ in slow} == {*slow}
    finally:
        goes_on.set()
        due.stop()


class Registered:
    """A registration that stands, in a store that does not answer at first. Notes with which looks it is watched."""

    is_current = True

    def __init__(self) -> None:
        self.watched: list[bool] = []

    def stands(self, watch: object | None) -> bool:
        self.watched.append(watch is not None)
        if len(self.watched) == 1:
            raise StoreUnavailable("no answer in time", "/brokers/ids/1")
        return True


class Heartbeats:
    """A store whose connection stays all the time."""

    session_timeout_ms = 10

    def heartbeat(self) -> MonotonicMs:
        return monotonic_ms()


def test_watch_that_could_not_be_set_is_set_with_the_next_look() -> None:
    """Else a broker that is taken for dead does not hear of it, unless the connection is lost, too."""
    registered, loops = Registered(), Loops()
    membership = Membership(
        cast(MetadataStore, Heartbeats()),
        cast(BrokerRegistration, registered),
        cast(PartitionTable, None),
        loops,
        lease=Lease(),
    )
    membership._events.put(SessionEvent(SessionState.CONNECTED, 1))
    for _ in range(3):
        assert membership._turn()
    assert registered.watched == [True, True, False]
