"""Coordinators of groups are killed, stopped, replaced and cut off from ZooKeeper, and members lose nothing by it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pytest
from kio.schema.errors import ErrorCode

from kit import namespaces
from kit.cluster import InProcessCluster
from kit.group_wire import HEARTBEAT, LOOK_FURTHER, OFFSET_COMMIT, VERSIONS, WireMember
from kit.machine import scaled, scaled_ms
from kit.namespaces import Network
from kit.replicated import ReplicatedCluster
from kit.waiting import wait_until
from kit.wire import WireClient, request
from kit.zookeeper import running_zookeeper
from raylog.protocol.wire.messages import decode_response

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

GROUP = "billing"
CONFIG = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1"}
SESSION_MS = scaled_ms(2_000)
"""Of brokers with ZooKeeper."""
OUTAGE_S = 2 * SESSION_MS / 1000
"""Of ZooKeeper, beyond the end of the leases: sessions end by it, and brokers register anew."""
MOVE_ON = {*LOOK_FURTHER, ErrorCode.unknown_member_id}
"""What a member may hear when its coordinator is gone: 14, 15, 16 or 25."""
ROUNDS = 3
WAIT_S = 30.0


def settle(members: Sequence[WireMember]) -> None:
    """All join, and are in one stable generation; each joins again, as clients do, when another has come after it."""
    generations: dict[WireMember, int] = {}
    over = threading.Event()

    def join(member: WireMember) -> None:
        while not over.wait(0.02):
            generations.pop(member, None)
            if not member.member_id or member.heartbeat() is not ErrorCode.none:
                member.join()
            generations[member] = member.generation

    def together() -> bool:
        return len(found := list(generations.values())) == len(members) and len(set(found)) == 1

    with ThreadPoolExecutor(len(members)) as pool:
        joining = [pool.submit(join, member) for member in members]
        try:
            wait_until(together, WAIT_S, "all members are in one generation")
        finally:
            over.set()
        for each in joining:
            each.result(scaled(WAIT_S))
    assert together()


def heartbeat_until_heard(members: Sequence[WireMember]) -> None:
    """Each member heartbeats until a coordinator hears it."""
    for member in members:
        wait_until(lambda m=member: m.heartbeat() is ErrorCode.none, WAIT_S, "a coordinator hears the member")


def commit_until_heard(member: WireMember, offset: int) -> None:
    """Commit until a coordinator takes it; its answers tell only that one must be looked for: its generation counts."""

    def taken() -> bool:
        code = member.commit(offset)
        assert code in (None, ErrorCode.none, *LOOK_FURTHER)
        return code is ErrorCode.none

    wait_until(taken, WAIT_S, f"{offset} is committed")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path, brokers=3, config=CONFIG) as running:
        running.create_topic("t")
        yield running


@pytest.fixture
def enter() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def of(cluster: InProcessCluster, enter: ExitStack, instance: str | None = None) -> WireMember:
    def addresses() -> list[tuple[str, int]]:
        return [broker.endpoints["PLAINTEXT"] for broker in cluster.brokers.values()]

    return enter.enter_context(WireMember(GROUP, addresses, instance=instance))


def test_members_of_a_killed_coordinator_go_on_where_they_were(tmp_path: Path, enter: ExitStack) -> None:
    gaps: list[float] = []
    with ReplicatedCluster(tmp_path, config=CONFIG, session_ms=SESSION_MS) as cluster:
        cluster.create_topic("t")

        def addresses() -> list[tuple[str, int]]:
            return [cluster.address(broker) for broker in cluster.running]

        members = [enter.enter_context(WireMember(GROUP, addresses, session_ms=scaled_ms(60_000))) for _ in range(2)]
        settle(members)
        generation = members[0].generation
        for number in range(ROUNDS):
            commit_until_heard(members[0], number)
            coordinator = members[0].coordinator
            assert coordinator is not None
            for member in members:
                member.codes.clear()
            killed = cluster.kill(coordinator)
            heartbeat_until_heard(members)
            gaps.append(time.monotonic() - killed)
            assert {code for member in members for code in member.codes} <= MOVE_ON
            assert {member.coordinator for member in members} != {coordinator}
            assert members[1].committed() == number
            cluster.start(coordinator)
            cluster.wait_serving(coordinator)
        assert [member.generation for member in members] == [generation] * 2
        assert members[1].sync().assignment == b"share"
    print(
        f"\nkill -9 of a coordinator, {ROUNDS} times: heard again after {median(gaps):.2f} s (p50), {max(gaps):.2f} s"
    )
    assert min(gaps) < SESSION_MS / 1000 + scaled(1)


def test_a_coordinator_stopped_past_its_session_changes_nothing_when_it_goes_on(
    tmp_path: Path, enter: ExitStack
) -> None:
    with ReplicatedCluster(tmp_path, config=CONFIG, session_ms=SESSION_MS) as cluster:
        cluster.create_topic("t")
        asked: list[int] = list(cluster.running)

        def addresses() -> list[tuple[str, int]]:
            return [cluster.address(broker) for broker in asked]

        member = enter.enter_context(WireMember(GROUP, addresses, session_ms=scaled_ms(30_000), timeout_s=scaled(1.0)))
        member.join()
        zombie = member.coordinator
        assert zombie is not None
        commit = request(OFFSET_COMMIT, VERSIONS[OFFSET_COMMIT], **member.commit_values(666))
        who = {"member_id": member.member_id, "generation_id": member.generation, "group_instance_id": None}
        heartbeat = request(HEARTBEAT, VERSIONS[HEARTBEAT], group_id=GROUP, **who)
        with WireClient(cluster.address(zombie), timeout_s=scaled(WAIT_S)) as old:
            cluster.pause(zombie)
            try:
                old.send(commit + heartbeat)
                asked.remove(zombie)
                wait_until(lambda: member.commit(7) is ErrorCode.none, WAIT_S, "another one coordinates")
                assert member.coordinator != zombie
            finally:
                cluster.resume(zombie)
            _, committed = decode_response(OFFSET_COMMIT, VERSIONS[OFFSET_COMMIT], old.receive())
            _, heard = decode_response(HEARTBEAT, VERSIONS[HEARTBEAT], old.receive())
        codes = {committed.topics[0].partitions[0].error_code, heard.error_code}
        assert codes <= {ErrorCode.not_coordinator, ErrorCode.coordinator_not_available}
        assert member.committed() == 7
        heartbeat_until_heard([member])


@pytest.mark.skipif(not namespaces.available(), reason="network namespaces need root")
def test_a_coordinator_cut_off_from_zookeeper_lets_go_before_another_one_takes_over(
    tmp_path: Path, enter: ExitStack
) -> None:
    network = enter.enter_context(Network())
    with ReplicatedCluster(tmp_path, config=CONFIG, session_ms=SESSION_MS, network=network) as cluster:
        cluster.create_topic("t")

        def addresses() -> list[tuple[str, int]]:
            return [cluster.address(broker) for broker in cluster.running]

        member = enter.enter_context(WireMember(GROUP, addresses, session_ms=scaled_ms(30_000)))
        member.join()
        commit_until_heard(member, 3)
        first = member.coordinator
        assert first is not None
        member.codes.clear()
        heard: list[tuple[float, int | None]] = []
        network.cut(first, network.services)

        def heard_by_another() -> bool:
            if member.heartbeat() is ErrorCode.none:
                heard.append((time.monotonic(), member.coordinator))
            return bool(heard) and heard[-1][1] != first

        wait_until(heard_by_another, WAIT_S, "another one coordinates")
        with WireClient(cluster.address(first)) as client:
            who = {"member_id": member.member_id, "generation_id": member.generation}
            refused = client.ask(HEARTBEAT, VERSIONS[HEARTBEAT], group_id=GROUP, **who)
        network.heal()
        assert refused.error_code in LOOK_FURTHER
        assert set(member.codes) <= LOOK_FURTHER
        assert member.committed() == 3
        commit_until_heard(member, 4)
    gap = heard[-1][0] - heard[-2][0]
    print(f"\na coordinator cut off from ZooKeeper: nobody heard the member for {gap:.2f} s")
    assert gap < SESSION_MS / 1000 + scaled(3)


def test_zookeeper_goes_and_comes_back_and_the_group_is_where_it_was(tmp_path: Path, enter: ExitStack) -> None:
    server = enter.enter_context(running_zookeeper(tmp_path / "zookeeper"))
    cluster = InProcessCluster(
        tmp_path, brokers=3, config=CONFIG, zookeeper=server.address, session_timeout_ms=SESSION_MS
    )
    processes = [process for process in (server.owner, server.jvm) if process is not None]
    with cluster:
        cluster.create_topic("t")
        members = [of(cluster, enter) for _ in range(2)]
        settle(members)
        generation = members[0].generation
        commit_until_heard(members[0], 3)
        members[0].codes.clear()
        for process in processes:
            os.kill(process.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: members[0].heartbeat() is not ErrorCode.none, WAIT_S, "nobody coordinates")
            threading.Event().wait(OUTAGE_S)
        finally:
            for process in processes:
                os.kill(process.pid, signal.SIGCONT)
        assert set(members[0].codes) <= MOVE_ON - {ErrorCode.unknown_member_id}
        heartbeat_until_heard(members)
        assert [member.generation for member in members] == [generation] * 2
        assert members[1].committed() == 3
        commit_until_heard(members[1], 4)


def test_an_orderly_stop_hands_a_stable_group_on_and_tells_those_who_wait(
    cluster: InProcessCluster, enter: ExitStack
) -> None:
    first, second = of(cluster, enter), of(cluster, enter)
    first.join()
    coordinator = first.coordinator
    assert coordinator is not None
    with ThreadPoolExecutor(1) as pool:
        second.try_join()  # its id
        waiting = pool.submit(second.try_join)  # for the first to join again
        wait_until(lambda: first.heartbeat() is ErrorCode.rebalance_in_progress, WAIT_S, "the group is rebalanced")
        cluster.stop(coordinator)
        assert waiting.result(scaled(WAIT_S)).error_code in (ErrorCode.not_coordinator, None)
    heartbeat_until_heard([first])  # the rebalance was not stored: its generation goes on
    assert first.coordinator != coordinator


def test_a_commit_in_the_midst_of_a_rebalance_is_refused_at_once(cluster: InProcessCluster, enter: ExitStack) -> None:
    first, second = of(cluster, enter), of(cluster, enter)
    first.join()
    old = first.generation
    with ThreadPoolExecutor(2) as pool:
        second.try_join()
        joining = pool.submit(second.try_join)
        wait_until(lambda: first.heartbeat() is ErrorCode.rebalance_in_progress, WAIT_S, "the group is rebalanced")
        assert first.commit(1) is ErrorCode.none  # while others may still join, its work counts
        joined = first.try_join()
        assert joining.result(scaled(WAIT_S)).error_code is ErrorCode.none
        assert first.commit(2) is ErrorCode.rebalance_in_progress
        assert first.commit(2, generation=old) is ErrorCode.illegal_generation
        first.sync([member.member_id for member in joined.members])
        assert first.commit(2, generation=old) is ErrorCode.illegal_generation
    assert first.committed() == 1


def test_the_second_of_two_with_one_group_instance_id_fences_the_first(
    cluster: InProcessCluster, enter: ExitStack
) -> None:
    first, second = of(cluster, enter, "reader-1"), of(cluster, enter, "reader-1")
    first.join()
    generation = first.generation
    second.join()
    assert (second.generation, second.assignment) == (generation, b"share")
    assert first.heartbeat() is ErrorCode.fenced_instance_id
    assert first.commit(1) is ErrorCode.fenced_instance_id
    assert first.try_join().error_code is ErrorCode.fenced_instance_id
    assert second.commit(2) is ErrorCode.none
    coordinator = second.coordinator
    assert coordinator is not None
    cluster.stop(coordinator)
    heartbeat_until_heard([second])

    def answered() -> ErrorCode | None:
        code = first.heartbeat()
        return None if code in LOOK_FURTHER else code

    assert wait_until(answered, WAIT_S, "another coordinator answers") is ErrorCode.fenced_instance_id
