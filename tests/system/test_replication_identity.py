"""Who a broker is: another cluster's directory, two processes of one id, a copied directory; under load."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.history_checker import Verdict
from kit.machine import scaled_ms
from kit.replicated import ReplicatedCluster
from kit.waiting import wait_until
from kit.workload import Workload

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

PARTITIONS = 2
LOAD = 300
"""Acknowledgements that make a load."""
WAIT_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedCluster]:
    with ReplicatedCluster(tmp_path_factory.mktemp("cluster"), session_ms=scaled_ms(6_000)) as running:
        yield running


@pytest.fixture
def topic(cluster: ReplicatedCluster, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with all its replicas in sync."""
    name: str = request.node.name[:60]
    cluster.create_topic(name, partitions=PARTITIONS)
    return name


def load_on(cluster: ReplicatedCluster, topic: str) -> Workload:
    return Workload(cluster.bootstrap_servers, topic, partitions=PARTITIONS)


def more(load: Workload) -> None:
    """So much again is acknowledged, everywhere."""
    load.wait_acked(sum(map(len, load.acks)) + LOAD)
    load.wait_acked_everywhere(time.monotonic())


def checked(what: str, load: Workload, tmp_path: Path) -> None:
    judgement = load.judge(keep=tmp_path / "history.jsonl")
    print(f"\n{what}: acked {judgement.acked}, lost {judgement.lost}; {judgement}")
    assert judgement.verdict is Verdict.VALID, judgement.findings
    assert load.errors == []
    assert load.resets == []


def check_equal(cluster: ReplicatedCluster, topic: str) -> None:
    def equal() -> bool:
        return all(
            len({cluster.log_bytes(broker_id, topic, partition) for broker_id in range(cluster.size)}) == 1
            for partition in range(PARTITIONS)
        )

    wait_until(equal, WAIT_S, "all replicas have the same bytes")


def test_a_directory_of_another_cluster_is_refused(cluster: ReplicatedCluster, topic: str, tmp_path: Path) -> None:
    """Its broker says which cluster it belongs to; the others go on, and take it back once the id is right again."""
    victim = cluster.leader(topic, 0)
    properties = cluster.data_dir(victim) / "log" / "meta.properties"
    with load_on(cluster, topic) as load:
        load.wait_acked_everywhere()
        cluster.kill(victim)
        ours = properties.read_text()
        [id_line] = [line for line in ours.splitlines() if line.startswith("cluster.id=")]
        properties.write_text(ours.replace(id_line, "cluster.id=another-cluster"))
        cluster.start(victim)
        refusal = cluster.wait_refused(victim)
        more(load)
        assert all(victim not in cluster.state(topic, partition).isr for partition in range(PARTITIONS))
        properties.write_text(ours)
        cluster.wait_serving(victim)  # it has tried again all the time
        cluster.wait_in_sync(topic, PARTITIONS)
    assert "belongs to cluster.id another-cluster, this broker has cluster.id" in refusal
    assert "choose another directory" in refusal
    checked("a directory of another cluster: refused, the others go on", load, tmp_path)
    check_equal(cluster, topic)


def test_a_second_broker_of_one_id_replaces_nobody(cluster: ReplicatedCluster, topic: str, tmp_path: Path) -> None:
    """An empty one waits for the first's end: it takes no incarnation from it, and leads and follows nothing."""
    broker_id = cluster.leader(topic, 0)
    epoch = cluster.epoch(broker_id)
    with load_on(cluster, topic) as load:
        load.wait_acked_everywhere()
        cluster.start_twin(broker_id, copied=False)
        refusal = cluster.wait_twin_refused(broker_id)
        more(load)
        assert cluster.epoch(broker_id) == epoch
        assert cluster.leader(topic, 0) == broker_id
        cluster.wait_in_sync(topic, PARTITIONS)
        cluster.kill_twin(broker_id)
    assert f"broker id {broker_id} is registered by a process at" in refusal
    assert "choose another broker.id" in refusal
    checked("a second broker of one id: refused, overlap 0 s", load, tmp_path)


def test_a_copy_of_a_directory_leads_nothing_before_it_has_all(
    cluster: ReplicatedCluster, topic: str, tmp_path: Path
) -> None:
    """Copied under load, it waits while the first lives; then it follows, and takes what the others have since."""
    broker_id = cluster.leader(topic, 0)
    with load_on(cluster, topic) as load:
        load.wait_acked_everywhere()
        cluster.start_twin(broker_id, copied=True)
        cluster.wait_twin_refused(broker_id)
        more(load)
        killed = cluster.give_way_to_twin(broker_id)
        load.wait_acked_everywhere(killed)
        cluster.wait_serving(broker_id)
        served = time.monotonic() - killed
        cluster.wait_in_sync(topic, PARTITIONS)
        more(load)
    checked(f"a copied directory serves {served:.1f} s after the first's end, overlap 0 s", load, tmp_path)
    check_equal(cluster, topic)
