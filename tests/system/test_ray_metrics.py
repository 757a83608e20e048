"""Metrics as they arrive: on the endpoint that Ray's agent offers to Prometheus, with the right values."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from http.client import HTTPException

import pytest
import ray

from kit.cli import RunningCluster
from kit.machine import scaled
from kit.ray_nodes import metrics_target
from kit.waiting import wait_until
from raylog.client import connect
from raylog.coordination.host.ray_token import ray_token

pytestmark = pytest.mark.system

RECORDS = 300
SENT = "ray_kafka_producer_producer_metrics_record_send_total"
READ = "ray_kafka_consumer_consumer_fetch_manager_metrics_records_consumed_total"
LAG = "ray_kafka_consumer_consumer_fetch_manager_metrics_records_lag_max"
ARRIVAL_S = 180.0
"""The broker tells every 5 s, Ray's worker passes it on every 10; a busy machine takes longer. And what a broker told
that was killed just before stays for 120 s (Ray's RAY_WORKER_TIMEOUT_S)."""
LEADERS = "ray_kafka_server_replicamanager_leadercount"
CONTROLLERS = "ray_kafka_controller_kafkacontroller_activecontrollercount"
OFFLINE = "ray_kafka_controller_kafkacontroller_offlinepartitionscount"
MESSAGES = "ray_kafka_server_brokertopicmetrics_messagesin_total"
OFFSETS = "ray_kafka_topic_partition_current_offset"
IN_SYNC = "ray_kafka_topic_partition_in_sync_replica"

_SAMPLE = re.compile(r"(\w+)\{(.*)\} (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Labels = dict[str, str]


class Page:
    """One scrape: the samples of ours, and every metric's type."""

    def __init__(self, text: str) -> None:
        self.samples: list[tuple[str, Labels, float]] = []
        self.types: dict[str, str] = {}
        for line in text.splitlines():
            if line.startswith("# TYPE ray_kafka"):
                _, _, name, kind = line.split()
                self.types[name] = kind
            elif line.startswith("ray_kafka") and (match := _SAMPLE.match(line)):
                self.samples.append((match[1], dict(_LABEL.findall(match[2])), float(match[3])))

    def values(self, name: str, **labels: str) -> list[tuple[Labels, float]]:
        return [(has, value) for found, has, value in self.samples if found == name and labels.items() <= has.items()]

    def total(self, name: str, **labels: str) -> float:
        return sum(value for _, value in self.values(name, **labels))


@pytest.fixture(scope="module")
def target(three_brokers: RunningCluster) -> str:
    """Where Ray's agent offers metrics; that Prometheus is told of it, test_local_ray.py shows."""
    facts = three_brokers.file()["ray"]
    with ray_token(facts["auth_token_path"]):
        ray.init(address=facts["address"], log_to_driver=False, configure_logging=False)
    try:
        return metrics_target()
    finally:
        ray.shutdown()


def scrape(target: str) -> Page:
    """What Prometheus would get."""
    return Page(urllib.request.urlopen(f"http://{target}/metrics", timeout=scaled(10)).read().decode())


def test_prometheus_finds_kafkas_metrics_with_right_values(three_brokers: RunningCluster, target: str) -> None:
    topic = "measured"
    cluster = connect(data_dir=three_brokers.data_dir)
    with cluster.admin() as admin:
        admin.create_topic(topic, partitions=3)
    with cluster.producer(linger_ms=5) as producer:
        for number in range(RECORDS):
            producer.send(topic, number, partition=number % 3)

    def arrived() -> Page | None:
        try:
            page = scrape(target)
        except (OSError, HTTPException):
            return None  # Ray's agent starts after the brokers do
        counted, offsets = page.total(MESSAGES, topic=topic), page.total(OFFSETS, topic=topic)
        # Each broker tells in its own time, and what a killed one told stays for a while.
        told_once = len(page.values(LEADERS)) == 3 and page.total(CONTROLLERS) == 1 and page.total(OFFLINE) == 0
        in_sync = page.total(IN_SYNC, topic=topic)
        return page if counted == offsets == RECORDS and in_sync == 3 and told_once else None

    def shown() -> str:
        page = scrape(target)
        named = (LEADERS, CONTROLLERS, OFFLINE, MESSAGES, OFFSETS, IN_SYNC)
        return "\n".join(f"{name} {labels} {value}" for name, labels, value in page.samples if name in named)

    page = wait_until(arrived, ARRIVAL_S, "the records show in Ray's metrics", interval_s=0.5, instead=shown)
    assert page is not None
    per_partition = page.values(OFFSETS, topic=topic)
    assert sorted((labels["partition"], value) for labels, value in per_partition) == [
        ("0", 100.0),
        ("1", 100.0),
        ("2", 100.0),
    ]
    assert page.total("ray_kafka_topic_partition_oldest_offset", topic=topic) == 0
    assert page.total("ray_kafka_topic_partition_under_replicated_partition", topic=topic) == 0
    assert page.total("ray_kafka_server_brokertopicmetrics_bytesin_total", topic=topic) > RECORDS
    assert {labels["broker"] for labels, _ in page.values(LEADERS)} == {"0", "1", "2"}

    times = "ray_kafka_network_requestmetrics_totaltimems"
    buckets = page.values(f"{times}_bucket", request="Produce", broker="0")
    assert len(buckets) == 14
    [(_, produced)] = page.values(f"{times}_count", request="Produce", broker="0")
    assert {labels["le"]: value for labels, value in buckets}["+Inf"] == produced > 0
    [(_, spent)] = page.values(f"{times}_sum", request="Produce", broker="0")
    assert 0 < spent < 1000 * ARRIVAL_S

    assert page.types[MESSAGES] == "counter"
    assert page.types[OFFSETS] == "gauge"


CLIENTS = f"""
import sys
from raylog.client import connect

cluster = connect(data_dir=sys.argv[1])
cluster.join_ray()
with cluster.admin() as admin:
    admin.create_topic("told", partitions=1)
with cluster.producer(client_id="teller") as producer:
    for number in range({RECORDS}):
        producer.send("told", number)
with cluster.consumer("told", client_id="teller", auto_offset_reset="earliest") as consumer:
    assert sum(map(len, consumer.poll(10_000, max_records={RECORDS // 3}).values())) == {RECORDS // 3}
    print(consumer.metrics()["records-consumed-total"], flush=True)
    sys.stdin.read()
"""
"""A driver of its own, which joins no other cluster, as the tests' process does."""


def test_clients_inside_ray_tell_it_their_metrics(three_brokers: RunningCluster, target: str) -> None:
    command = [sys.executable, "-c", CLIENTS, str(three_brokers.data_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
        assert clients.stdout is not None
        expected = [RECORDS, float(clients.stdout.readline()), RECORDS - RECORDS // 3]

        def arrived() -> bool:
            try:
                page = scrape(target)
            except (OSError, HTTPException):
                return False
            return [page.total(name, client_id="teller", client="0") for name in (SENT, READ, LAG)] == expected

        try:
            wait_until(arrived, ARRIVAL_S, "the clients' numbers show in Ray's metrics", interval_s=0.5)
        finally:
            clients.communicate()
    assert clients.returncode == 0
