"""Disks that lose data, or are lost, under replicas: what was acknowledged outlives them while one is whole."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.history_checker import Judgement, Verdict
from kit.machine import scaled
from kit.replicated import ReplicatedCluster
from kit.waiting import wait_until
from kit.wire import WireClient
from kit.workload import Workload
from raylog.protocol.records import Record, encode_batch

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

PARTITIONS = 2
LOAD = 500
"""Acknowledgements that make a load."""
WAIT_S = 30.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path, notes_syncs=True) as running:
        yield running


def load_on(cluster: ReplicatedCluster) -> Workload:
    return Workload(cluster.bootstrap_servers, "t", partitions=PARTITIONS)


def start(cluster: ReplicatedCluster, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        cluster.start(broker_id)
    for broker_id in broker_ids:
        cluster.wait_serving(broker_id)


def kill_all_but_the_leader(cluster: ReplicatedCluster) -> tuple[int, list[int]]:
    """Until it is alone in sync; who that is, and the others."""
    last = cluster.leader("t", 0)
    others = [broker_id for broker_id in cluster.running if broker_id != last]
    for broker_id in others:
        cluster.kill(broker_id)
    wait_until(lambda: set(cluster.state("t", 0).isr) == {last}, WAIT_S, "one is left in sync")
    return last, others


def check_equal(cluster: ReplicatedCluster) -> None:
    """Every replica has the same bytes, once nobody writes any more."""

    def equal() -> bool:
        return all(
            len({cluster.log_bytes(broker_id, "t", partition) for broker_id in range(cluster.size)}) == 1
            for partition in range(PARTITIONS)
        )

    wait_until(equal, WAIT_S, "all replicas have the same bytes")


def checked(what: str, load: Workload, tmp_path: Path) -> Judgement:
    judgement = load.judge(keep=tmp_path / "history.jsonl")
    print(f"\n{what}: acked {judgement.acked}, lost {judgement.lost}; {judgement}")
    assert judgement.verdict is Verdict.VALID, judgement.findings
    return judgement


def test_one_machine_loses_what_it_had_not_synced(cluster: ReplicatedCluster, tmp_path: Path) -> None:
    """The leader's, then a follower's; with the default policy nothing is synced before a segment is full."""
    cluster.create_topic("t", partitions=PARTITIONS)
    lost_bytes = 0
    with load_on(cluster) as load:
        load.wait_acked_everywhere()
        for _ in range(2):
            victim = cluster.leader("t", 0)
            crashed = time.monotonic()
            lost_bytes += cluster.crash_machine(victim)
            load.wait_acked_everywhere(crashed)
            start(cluster, victim)
            cluster.wait_in_sync("t", PARTITIONS)
            load.wait_acked_everywhere(time.monotonic())
    checked(f"a machine's unsynced writes lost, twice ({lost_bytes} bytes)", load, tmp_path)
    check_equal(cluster)


def test_the_last_one_standing_loses_what_it_had_not_synced(cluster: ReplicatedCluster, tmp_path: Path) -> None:
    """Alone in sync, it loses its unsynced writes and comes back first: it may not lead over those that lost none."""
    cluster.create_topic("t", partitions=PARTITIONS)
    with load_on(cluster) as load:
        load.wait_acked_everywhere()
        last, others = kill_all_but_the_leader(cluster)
        lost_bytes = cluster.crash_machine(last)
        assert lost_bytes > 0
        start(cluster, last)
        for broker_id in others:
            start(cluster, broker_id)
        begun = time.monotonic()
        load.wait_acked_everywhere(begun)
        cluster.wait_in_sync("t", PARTITIONS)
    checked(f"the last one standing lost {lost_bytes} unsynced bytes", load, tmp_path)
    check_equal(cluster)


def test_a_machine_that_starts_anew_after_an_orderly_stop_has_lost_nothing(cluster: ReplicatedCluster) -> None:
    """All was synced at the stop, so the broker is intact; after a crash nobody can know."""
    cluster.create_topic("t", partitions=PARTITIONS)
    with load_on(cluster) as load:
        load.wait_acked(LOAD)
    begun = cluster.intact_since(0)
    cluster.stop(0)
    assert cluster.crash_machine(0) == 0
    start(cluster, 0)
    assert cluster.intact_since(0) == begun
    before = cluster.epoch(0)
    cluster.crash_machine(0)
    start(cluster, 0)
    assert cluster.intact_since(0) > before, "since an incarnation after the crash"


@pytest.mark.parametrize("flush", ["never", "each append"])
def test_all_machines_lose_their_power_at_once(cluster: ReplicatedCluster, tmp_path: Path, flush: str) -> None:
    """Nothing is lost if each append is flushed; with the default policy as much as was not synced, and no more."""
    config = {"flush.messages": "1"} if flush == "each append" else {}
    cluster.create_topic("t", partitions=PARTITIONS, config=config)
    with load_on(cluster) as load:
        load.wait_acked(LOAD)
    for broker_id in cluster.running:
        cluster.kill(broker_id)
    lost_bytes = sum(cluster.crash_machine(broker_id) for broker_id in range(cluster.size))
    start(cluster, *range(cluster.size))
    cluster.wait_in_sync("t", PARTITIONS)
    judgement = load.judge(keep=tmp_path / "history.jsonl")
    print(f"\nall machines lost {lost_bytes} unsynced bytes, flush {flush}: lost {judgement.lost}; {judgement}")
    if flush == "each append":
        assert judgement.verdict is Verdict.VALID, judgement.findings
    else:
        assert judgement.lost > 0, "nobody had synced it: were it there, the test above would show nothing"


@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_an_emptied_directory_is_filled_again_and_leads_nothing_before(
    cluster: ReplicatedCluster, tmp_path: Path, victim: str
) -> None:
    cluster.create_topic("t", partitions=PARTITIONS)
    with load_on(cluster) as load:
        load.wait_acked_everywhere()
        leader = cluster.leader("t", 0)
        emptied = leader if victim == "leader" else (leader + 1) % cluster.size
        killed = cluster.kill(emptied)
        cluster.empty(emptied)
        start(cluster, emptied)
        load.wait_acked_everywhere(killed)
        load.wait_acked(LOAD)
        cluster.wait_in_sync("t", PARTITIONS)
    checked(f"the directory of a {victim} emptied", load, tmp_path)
    check_equal(cluster)


def test_an_emptied_directory_of_the_last_in_sync_does_not_lead(cluster: ReplicatedCluster, tmp_path: Path) -> None:
    cluster.create_topic("t", partitions=PARTITIONS)
    with load_on(cluster) as load:
        load.wait_acked_everywhere()
        last, others = kill_all_but_the_leader(cluster)
        cluster.kill(last)
        cluster.empty(last)
        start(cluster, last)
        start(cluster, *others)
        load.wait_acked_everywhere(time.monotonic())
        cluster.wait_in_sync("t", PARTITIONS)
    checked("the directory of the last in sync emptied", load, tmp_path)
    check_equal(cluster)


def test_a_follower_that_diverged_gives_up_what_the_others_never_had(
    cluster: ReplicatedCluster, tmp_path: Path
) -> None:
    """A leader alone takes records at acks=1; when it comes back, it follows, and has what the others have."""
    cluster.create_topic("t", partitions=PARTITIONS)
    with load_on(cluster) as load:
        load.wait_acked_everywhere()
        load.wait_acked_everywhere(time.monotonic())
    alone = cluster.leader("t", 0)
    others = [broker_id for broker_id in cluster.running if broker_id != alone]
    for broker_id in others:
        cluster.kill(broker_id)
    batch = encode_batch([Record(b"only here", timestamp=1_000)])
    with WireClient(cluster.address(alone), timeout_s=scaled(WAIT_S)) as client:
        codes: list[int] = []

        def taken() -> bool:  # not while its lease has lapsed
            [topic] = client.produce("t", batch, acks=1).topics
            codes.append(topic.partitions[0].error_code)
            return codes[-1] == 0

        for _ in range(20):
            wait_until(taken, WAIT_S, "it takes a record", instead=lambda: codes[-1])
        wait_until(lambda: set(cluster.state("t", 0).isr) == {alone}, WAIT_S, "one is left in sync")
    cluster.kill(alone)
    assert b"only here" in cluster.log_bytes(alone, "t", 0)
    start(cluster, *others)
    wait_until(  # the eligible replicas, which have all that was acknowledged by all
        lambda: cluster.leader("t", 0) in others, WAIT_S, "one of the others leads"
    )
    with load_on(cluster) as later:
        later.wait_acked_everywhere()
        start(cluster, alone)
        cluster.wait_in_sync("t", PARTITIONS)
    check_equal(cluster)
    assert b"only here" not in cluster.log_bytes(alone, "t", 0)
