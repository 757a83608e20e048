"""Members of a group of actors whose processes die or are stopped, whose ZooKeeper is, and what changes cost."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from kit.group_members import GROUP, TOPIC, Ledger, Reader, make_topic, started, tps
from kit.machine import scaled, scaled_ms
from kit.member_process import MemberProcess
from kit.stores import Counting
from kit.waiting import wait_until
from kit.zookeeper import running_zookeeper
from raylog.client.groups.changes import Lost
from raylog.client.groups.member import GroupMember
from raylog.coordination.groups.kinds import GroupKind, settle_kind
from raylog.coordination.membership.registration import ensure_cluster
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_events import Died
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.coordination.store.memory import MemoryStore
from raylog.coordination.store.memory_tree import MemoryTree
from raylog.coordination.store.port import EventSink, MetadataStore, Op, OpResult, Versioned
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper
from raylog.coordination.zookeeper.store import ZkStore
from raylog.protocol.errors import InconsistentGroupProtocol, RaylogError, UnknownMemberId
from raylog.protocol.ids import Offset

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

WAIT_S = 30.0
LONG_SESSION_MS = scaled_ms(60_000)
"""Whatever happens within the bounds of a test, no session ends."""
STABLE_S = 1.0

T = TypeVar("T")


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def address(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> str:
    """Of a tree of the test's own, with a topic of twelve partitions."""
    address = f"{zookeeper.address}/{tmp_path.name}"
    with ZkStore(address) as store:
        ensure_cluster(store)
        make_topic(store, 12)
    return address


# --- processes ---


def await_shares(processes: Sequence[MemberProcess], partitions: int) -> None:
    def settled() -> bool:
        shares = [len(process.began) for process in processes]
        return sum(shares) == partitions and max(shares) - min(shares) <= 1

    wait_until(settled, WAIT_S, f"{len(processes)} processes share {partitions} partitions")


def test_a_killed_member_is_replaced_long_before_its_session_ends(address: str) -> None:
    """Only its own partitions move; the elected one is killed, too, and once more its successor."""
    times = []
    with ExitStack() as stack:
        living = [stack.enter_context(MemberProcess(address, LONG_SESSION_MS)) for _ in range(6)]
        await_shares(living, 12)
        for victim_is_elected in (False, True, True):
            living.sort(key=lambda process: process.member_id or "")
            victim = living.pop(0 if victim_is_elected else -1)
            before, theirs = {tp for process in living for tp in process.began}, set(victim.began)
            killed = victim.kill()
            await_shares(living, 12)
            moved = {tp: at for process in living for tp, at in process.began.items() if at > killed}
            assert set(moved) == theirs
            assert before == {tp for process in living for tp in process.began} - theirs
            times.append(max(moved.values()) - killed)
    print(f"\na member killed: its partitions with others after {', '.join(f'{s * 1000:.0f} ms' for s in times)}")
    assert statistics.median(times) <= STABLE_S


def test_who_comes_after_a_group_that_was_killed_need_not_wait_for_its_sessions(address: str) -> None:
    """It has never reached them; but nobody listens any more on this very machine where they did."""
    with ExitStack() as stack:
        dead = [stack.enter_context(MemberProcess(address, LONG_SESSION_MS)) for _ in range(3)]
        await_shares(dead, 12)
        for process in dead:
            process.kill()
        await_shares([stack.enter_context(MemberProcess(address, LONG_SESSION_MS))], 12)


def test_a_stopped_member_hands_out_nothing_once_its_session_has_ended(address: str) -> None:
    """It has not heard that others have its partitions; its lease tells it."""
    session_ms = 2_000
    with MemberProcess(address, session_ms) as stopped, MemberProcess(address, session_ms) as other:
        await_shares([stopped, other], 12)
        stopped.signal(signal.SIGSTOP)
        wait_until(lambda: len(other.began) == 12, WAIT_S, "the other has them all")
        taken = max(other.began.values())
        stopped.signal(signal.SIGCONT)
        await_shares([stopped, other], 12)
        again = min(stopped.began.values())
        assert [may for when, may in stopped.may_deliver if taken < when < again and may] == []
        assert any(may for when, may in stopped.may_deliver if when < taken)
        wait_until(lambda: stopped.may_deliver[-1][1] == 6, WAIT_S, "it hands out again")


# --- sessions ---


def test_zookeeper_stopped_past_the_session_and_continued_costs_nothing_but_time(
    zookeeper: EmbeddedZooKeeper, address: str
) -> None:
    """Members hand out nothing after their leases, register anew, and every record is read."""
    ledger, end, session_s = Ledger(), 200, scaled(2.0)
    jvm = zookeeper.jvm
    assert jvm is not None
    with ExitStack() as stack:
        stores = [stack.enter_context(ZkStore(address, session_timeout_ms=int(session_s * 1000))) for _ in range(3)]
        readers = [Reader(started(store), ledger) for store in stores]
        for reader in readers:
            stack.callback(reader.member.leave, 1)
            stack.callback(reader.stop)
        await_owned(readers, 12)
        sessions = [store.session for store in stores]
        heard_before = [len(reader.log) for reader in readers]
        os.kill(jvm.pid, signal.SIGSTOP)
        stopped = time.monotonic()

        def lapsed() -> bool:
            asked = time.monotonic()
            still = any(may_deliver(reader) for reader in readers)
            assert not still or asked - stopped < session_s, "who asks once the session is over must not deliver"
            return not still

        wait_until(lapsed, WAIT_S, "the leases have lapsed")
        assert all(reader.member.owned for reader in readers), "none has heard of it"
        for reader in readers:
            reader.end = end
        threading.Event().wait(2.5 * session_s - (time.monotonic() - stopped))
        assert not ledger.read_count()
        os.kill(jvm.pid, signal.SIGCONT)
        wait_until(lambda: not ledger.unread(tps(*range(12)), end), WAIT_S, "every record is read")
        await_owned(readers, 12)

        def told() -> tuple[list[bool], list[bool]]:
            """Who was told that he lost something, and whose session is another."""
            lost = [
                any(isinstance(change, Lost) for change in reader.log[before:])
                for reader, before in zip(readers, heard_before, strict=True)
            ]
            return lost, [store.session != session for store, session in zip(stores, sessions, strict=True)]

        wait_until(  # a member has its partitions again a moment before its user hears that they were lost
            lambda: told()[0] == told()[1],
            WAIT_S,
            "who is heard before the sessions are ended keeps his, and what he has",
            instead=told,
        )


def may_deliver(reader: Reader) -> bool:
    return any(map(reader.member.may_deliver, reader.member.owned))


def await_owned(readers: Sequence[Reader], partitions: int) -> None:
    def settled() -> bool:
        shares = [len(reader.member.owned) for reader in readers]
        return sum(shares) == partitions and max(shares) - min(shares) <= 1 and all(map(may_deliver, readers))

    wait_until(settled, WAIT_S, f"{len(readers)} members share {partitions} partitions")
    assert [reader.error for reader in readers] == [None] * len(readers)


def test_a_wrong_hint_costs_a_registration() -> None:
    """The elected one takes a living member for dead, again and again: that one gets some anew, and keeps them."""
    tree = MemoryTree()
    with MemoryStore(tree) as store, MemoryStore(tree) as other_store:
        make_topic(store, 4)
        elected = Reader(started(store))
        other = Reader(started(other_store))
        try:
            await_owned([elected, other], 4)
            for _ in range(2):
                elected.member._thread.post(Died(other.member.member_id))
            wait_until(lambda: any(isinstance(change, Lost) for change in other.log), WAIT_S, "it was evicted")
            await_owned([elected, other], 4)
            assert elected.member._thread._registry.others[other.member.member_id].host == ""
        finally:
            for reader in (other, elected):
                reader.stop()
                reader.member.leave(5)


# --- who does not poll ---


def test_a_member_that_does_not_poll_gives_up_what_it_has_until_it_polls() -> None:
    tree = MemoryTree()
    with MemoryStore(tree) as store, MemoryStore(tree) as other_store:
        make_topic(store, 4)
        stuck = GroupMember(store, GROUP, frozenset({TOPIC}), max_poll_interval_ms=300)
        stuck.start()
        other = Reader(started(other_store))
        try:
            wait_until(lambda: len(other.member.owned) == 4, WAIT_S, "the other has them all")
            assert not stuck.owned
            wait_until(
                lambda: len(store.children(group_paths.members(GROUP))) == 1, WAIT_S, "only the other is registered"
            )
            with pytest.raises(UnknownMemberId, match=r"it did not poll for max\.poll\.interval\.ms=300"):
                stuck.commit({tps(0)[0]: CommittedOffset(Offset(1))})
            assert stuck.changes() == [], "what he never heard of he need not hear that he lost"
            again = Reader(stuck)
            await_owned([again, other], 4)
            assert again.leave()
        finally:
            stuck.leave(5)
            other.stop()
            other.member.leave(5)


def test_a_member_that_can_be_none_any_more_says_so() -> None:
    """Its session ended, and the group became one of Kafka's clients before it was back."""
    tree = MemoryTree()
    with MemoryStore(tree) as store, MemoryStore(tree) as clients:
        make_topic(store, 4)
        member = started(store)
        wait_until(lambda: len(member.owned) == 4, WAIT_S, "it owns all")
        begun = member.changes()
        store.suspend()
        tree.expire(store.session.id)
        settle_kind(clients, GROUP, GroupKind.CLIENTS)
        clients.create(group_paths.state(GROUP), b'{"members": {"a": {}}}')
        store.resume()
        with pytest.raises(InconsistentGroupProtocol):
            wait_until(lambda: member.polled(), WAIT_S, "it polls")
        assert {change.tp for change in member.changes()} == {change.tp for change in begun}
        for call in (member.changes, lambda: member.commit({tps(0)[0]: CommittedOffset(Offset(1))})):
            with pytest.raises(InconsistentGroupProtocol):
                call()
        assert member.leave(WAIT_S)


def test_a_defect_ends_the_membership_and_holds_up_nobody() -> None:
    class Defective(MemoryStore):
        is_defective = False

        def get(self, path: str, watch: EventSink | None = None) -> Versioned | None:
            assert not self.is_defective, "a defect"
            return super().get(path, watch)

    tree = MemoryTree()
    with Defective(tree) as store, MemoryStore(tree) as other_store:
        make_topic(store, 4)
        member = started(store)
        wait_until(lambda: len(member.owned) == 4, WAIT_S, "it owns all")
        store.is_defective = True
        other = Reader(started(other_store))
        try:
            with pytest.raises(RaylogError, match=r"member .* of group readers has failed: AssertionError: a defect"):
                wait_until(lambda: member.polled(), WAIT_S, "it polls")
            wait_until(lambda: len(other.member.owned) == 4, WAIT_S, "the other has them all")
        finally:
            member.leave(5)
            other.stop()
            other.member.leave(5)


def test_commit_at_hand_of_member_with_a_defect_is_answered() -> None:
    class Defective(MemoryStore):
        is_defective = False

        def multi(self, ops: Sequence[Op]) -> list[OpResult]:
            if self.is_defective:
                raise ValueError("a defect")
            return super().multi(ops)

    tree = MemoryTree()
    with Defective(tree) as store:
        make_topic(store, 1)
        member = started(store)
        [tp] = tps(0)
        wait_until(lambda: member.changes(), WAIT_S, "it is told what it owns")
        store.is_defective = True
        done = member.commit_async({tp: CommittedOffset(Offset(1))})
        with pytest.raises(RaylogError, match="a defect"):
            done.result(scaled(WAIT_S))
        with pytest.raises(RaylogError, match="a defect"):
            member.commit({tp: CommittedOffset(Offset(1))})
        member.leave(5)


# --- what changes cost ---


def cost_of_a_change(members: int) -> tuple[float, float]:
    """Requests of all members together when one more joins, and when it leaves, in a group of so many."""
    tree = MemoryTree()
    with ExitStack() as stack:
        stores = [stack.enter_context(Counting(tree)) for _ in range(members)]
        make_topic(stores[0], 2 * members)

        def join(store: MetadataStore) -> Reader:
            reader = Reader(started(store))
            stack.callback(reader.member.leave, 5)
            stack.callback(reader.stop)
            return reader

        def asked() -> int:
            return sum(store.asked for store in stores)

        readers = [join(store) for store in stores[:-1]]
        await_owned(readers, 2 * members)
        before = asked()
        last = join(stores[-1])
        await_owned([*readers, last], 2 * members)
        joined = asked() - before
        last.leave()
        await_owned(readers, 2 * members)
        return joined, asked() - before - joined


def test_a_change_costs_requests_by_what_moves() -> None:
    """However many members there are: partitions grow with them, so that as many move, two."""
    costs = {members: cost_of_a_change(members) for members in (4, 8, 16, 32)}
    for members, (joined, left) in costs.items():
        print(f"\n{members} members: {joined} requests when one joins, {left} when one leaves", end="")
    for which in (0, 1):
        requests = {members: cost[which] for members, cost in costs.items()}
        assert requests[32] <= 1.5 * requests[8], requests
