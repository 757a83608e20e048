"""Members of groups with handlers, in threads of this process, against real brokers and a real ZooKeeper."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled
from kit.proxy import FrameProxy
from kit.waiting import wait_until
from kit.zookeeper import running_zookeeper
from raylog.client import Admin, Consumer, ConsumerRecord, Producer
from raylog.client.handlers.core import Counts
from raylog.client.handlers.plan import GroupPlan
from raylog.client.handlers.runner import HandlerRunner, State
from raylog.coordination.host.free_ports import free_port
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

pytestmark = pytest.mark.system

PARTITIONS = 4
COUNT = 400
WAIT_S = 30.0
CONFIG = {
    "auto_offset_reset": "earliest",
    "auto_commit_interval_ms": 200,
    "errors_retry_timeout": 100,
    "max_poll_records": 20,
}
_numbers = count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    root = tmp_path_factory.mktemp("handlers")
    config = {"group.initial.rebalance.delay.ms": "0"}
    with (
        running_zookeeper(root / "zookeeper") as server,
        InProcessCluster(root, brokers=2, zookeeper=server.address, config=config) as running_cluster,
    ):
        yield running_cluster


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    """With COUNT records: their values are 0 to COUNT - 1, in turn over the partitions."""
    name = f"orders-{next(_numbers)}"
    cluster.create_topic(name, partitions=PARTITIONS)
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(COUNT):
            producer.send(name, b"%d" % number, b"key", partition=number % PARTITIONS, headers=[("no", b"%d" % number)])
    return name


class Seen:
    """What all handlers of a test got, and who owned what."""

    def __init__(self) -> None:
        self.values: Counter[int] = Counter()
        self.owned: list[TopicPartition] = []
        self.released: list[TopicPartition] = []
        self._lock = threading.Lock()

    def add(self, values: Sequence[int]) -> None:
        with self._lock:
            self.values.update(values)


def handler_of(seen: Seen, refused: Mapping[int, str] | None = None) -> type:
    """A class of handlers that note what they get, and raise for the values in ``refused``."""
    refusals = refused or {}

    class Noting:
        def __call__(self, records: list[ConsumerRecord]) -> None:
            values = [int(record.value) for record in records]
            for value in values:
                if value in refusals:
                    raise ValueError(refusals[value])
            seen.add(values)

        def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
            seen.owned += partitions

        def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
            seen.released += partitions

    return Noting


def plan_of(cluster: InProcessCluster, topics: Any, handler: Any, **config: Any) -> GroupPlan:
    names = {"batch_format": "rows", "key_deserializer": None, "value_deserializer": None}
    given = {name: config.pop(name, default) for name, default in names.items()}
    config = {**CONFIG, **config}
    plan = GroupPlan.of(f"group-{next(_numbers)}", cluster.bootstrap_servers, topics, handler, config=config, **given)
    plan.prepare()
    return plan


@contextmanager
def running(plan: GroupPlan) -> Iterator[HandlerRunner]:
    """A member in a thread; it is stopped at the end, and waited for."""
    runner = plan.runner()
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    try:
        yield runner
    finally:
        runner.stop()
        thread.join(scaled(WAIT_S))
        assert not thread.is_alive()


def committed(cluster: InProcessCluster, plan: GroupPlan, topic: str) -> dict[int, int]:
    with Admin(cluster.bootstrap_servers) as admin:
        offsets = admin.list_group_offsets(plan.group)
    return {tp.partition: offset.offset for tp, offset in offsets.items() if tp.topic == topic}


def committed_sum(cluster: InProcessCluster, plan: GroupPlan, topic: str) -> int:
    return sum(committed(cluster, plan, topic).values())


def everything(seen: Seen, without: Sequence[int] = ()) -> bool:
    return set(range(COUNT)) - set(without) <= seen.values.keys()


ENDS = dict.fromkeys(range(PARTITIONS), COUNT // PARTITIONS)


def test_members_share_the_records_and_commit_when_they_stop(cluster: InProcessCluster, topic: str) -> None:
    seen = Seen()
    plan = plan_of(cluster, topic, handler_of(seen))
    with running(plan) as one, running(plan) as other:
        wait_until(lambda: everything(seen), WAIT_S, "all records are handled")
        wait_until(lambda: len(one.status.owned) == len(other.status.owned) == 2, WAIT_S, "each has its half")
        assert one.status.owned | other.status.owned == {
            TopicPartition(TopicName(topic), PartitionIndex(partition)) for partition in range(PARTITIONS)
        }
        wait_until(  # each tells of its own with its next step
            lambda: one.status.generation == other.status.generation,
            WAIT_S,
            "both are in one generation",
            instead=lambda: (one.status, other.status),
        )
    assert set(seen.values.values()) == {1}
    assert committed(cluster, plan, topic) == ENDS
    assert (one.status.state, other.status.state) == (State.STOPPED, State.STOPPED)
    assert one.status.counts.handled + other.status.counts.handled == COUNT
    assert Counter(seen.owned) == Counter(seen.released)


def test_what_a_stopped_group_has_committed_is_not_handled_again(cluster: InProcessCluster, topic: str) -> None:
    first, second = Seen(), Seen()
    plan = plan_of(cluster, topic, handler_of(first))
    with running(plan):
        wait_until(lambda: everything(first), WAIT_S, "all records are handled")
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send(topic, b"%d" % COUNT, partition=0)
    with running(replace(plan, handler=handler_of(second))):
        wait_until(lambda: second.values, WAIT_S, "the new record is handled")
    assert second.values == Counter([COUNT])


def test_a_handler_may_take_columns(cluster: InProcessCluster, topic: str) -> None:
    seen = Seen()

    def handle(table: pa.Table) -> None:
        assert len(pa.compute.unique(table["partition"])) == 1
        seen.add([int(value) for value in table["value"].to_pylist()])

    plan = plan_of(cluster, topic, handle, batch_format="pyarrow")
    with running(plan):
        wait_until(lambda: everything(seen), WAIT_S, "all records are handled")
    assert set(seen.values.values()) == {1}
    assert committed(cluster, plan, topic) == ENDS


@pytest.mark.parametrize("batch_format", ["rows", "pyarrow"])
def test_refused_records_go_to_the_dead_letter_topic(cluster: InProcessCluster, topic: str, batch_format: str) -> None:
    seen, dead = Seen(), f"{topic}.dead"

    def handle(records: Any) -> None:
        values = records["value"].to_pylist() if batch_format == "pyarrow" else [record.value for record in records]
        if {b"7", b"201"}.intersection(values):
            raise ValueError("no such order")
        seen.add([int(value) for value in values])

    config = {"errors_tolerance": "all", "errors_deadletterqueue_topic_name": dead, "batch_format": batch_format}
    plan = plan_of(cluster, topic, handle, **config)
    with running(plan) as member:
        wait_until(lambda: member.status.counts.dead_lettered == 2, WAIT_S, "both records are put aside")
        wait_until(lambda: everything(seen, without=(7, 201)), WAIT_S, "the others are handled")
    assert 7 not in seen.values
    assert committed(cluster, plan, topic) == ENDS
    assert "ValueError: no such order" in member.status.last_error
    with Consumer(cluster.bootstrap_servers, [dead], auto_offset_reset="earliest") as consumer:
        letters = {record.value: record for record in consumer.iterate(until_end=True)}
    assert letters.keys() == {b"7", b"201"}
    letter = letters[b"7"]
    headers = dict(letter.headers)
    assert (letter.key, headers["no"]) == (b"key", b"7")
    told = {name.removeprefix("__connect.errors."): value for name, value in headers.items() if value is not None}
    assert (told["topic"], told["partition"], told["offset"]) == (topic.encode(), b"3", b"1")
    assert told["connector.name"] == plan.group.encode()
    assert told["exception.class.name"] == b"builtins.ValueError"
    assert told["exception.message"] == b"no such order"
    assert b"in handle" in told["exception.stacktrace"]


def test_what_cannot_be_deserialized_is_put_aside_as_it_is(cluster: InProcessCluster, topic: str) -> None:
    dead = f"{topic}.dead"
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send(topic, b"{", partition=0)
    got = Seen()
    plan = plan_of(
        cluster,
        topic,
        lambda records: got.add([record.value for record in records]),
        value_deserializer="json",
        errors_tolerance="all",
        errors_deadletterqueue_topic_name=dead,
    )
    with running(plan) as member:
        wait_until(lambda: everything(got), WAIT_S, "the others are handled")
        wait_until(lambda: member.status.counts.dead_lettered == 1, WAIT_S, "it is put aside")
    with Consumer(cluster.bootstrap_servers, [dead], auto_offset_reset="earliest") as consumer:
        assert [record.value for record in consumer.iterate(until_end=True)] == [b"{"]


def test_a_member_that_stops_for_an_error_has_committed_what_came_before(cluster: InProcessCluster, topic: str) -> None:
    seen = Seen()
    plan = plan_of(cluster, topic, handler_of(seen, {300: "no such order"}), max_poll_records=1)
    with running(plan) as member:
        wait_until(lambda: member.status.state is State.FAILED, WAIT_S, "the member stops")
        assert member.status.trouble == f"{topic}-0, offset 75: the handler raised ValueError: no such order"
        assert member.status.owned == frozenset()
        assert committed(cluster, plan, topic)[0] == 300 // PARTITIONS  # the next one is the refused record
    assert member.status.state is State.FAILED
    with running(replace(plan, handler=handler_of(seen))):  # mended
        wait_until(lambda: everything(seen), WAIT_S, "all records are handled")
    assert max(seen.values.values()) == 1


def test_at_most_once_leaves_out_what_a_handler_failed_at(cluster: InProcessCluster, topic: str) -> None:
    seen = Seen()
    refusing = handler_of(seen, {300: "no such order"})
    config = {"processing_guarantee": "at_most_once", "errors_tolerance": "all", "max_poll_records": 1}
    plan = plan_of(cluster, topic, refusing, **config)
    with running(plan) as member:
        wait_until(lambda: everything(seen, without=(300,)), WAIT_S, "the others are handled")
        wait_until(lambda: committed_sum(cluster, plan, topic) == COUNT, WAIT_S, "all is committed")
    assert max(seen.values.values()) == 1
    assert member.status.counts == Counts(handled=COUNT - 1, failures=1, skipped=1)


def test_exactly_once_reads_from_where_the_users_store_says(cluster: InProcessCluster, topic: str) -> None:
    """Whatever was committed: its store is rolled back behind the group's back, and forgets one partition."""
    store: dict[TopicPartition, int] = {}
    seen = Seen()

    class Storing:
        def on_assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
            return {tp: store[tp] for tp in partitions if tp in store}

        def __call__(self, records: list[ConsumerRecord]) -> None:
            tp = TopicPartition(TopicName(records[0].topic), PartitionIndex(records[0].partition))
            assert store.get(tp, 0) == records[0].offset
            seen.add([int(record.value) for record in records])
            store[tp] = records[-1].offset + 1

    plan = plan_of(cluster, topic, Storing, processing_guarantee="exactly_once", auto_offset_reset="latest")
    with running(plan):
        wait_until(lambda: everything(seen), WAIT_S, "all records are handled")
    assert committed(cluster, plan, topic) == ENDS  # for those who look at lag
    forgotten, back = sorted(store)[:2]
    del store[forgotten]
    store[back] = 90
    seen.values.clear()
    with running(plan):
        wait_until(lambda: sum(seen.values.values()) == 110, WAIT_S, "it is read again")
    assert store == dict.fromkeys(store, COUNT // PARTITIONS)


DYING = """
import os, signal, sys
from raylog.client.handlers.plan import GroupPlan

servers, group, topic, guarantee, log, death = sys.argv[1:]

def handle(records):
    values = [record.value.decode() for record in records]
    if death in values:
        os.kill(os.getpid(), signal.SIGKILL)
    with open(log, "a") as file:
        file.writelines(value + "\\n" for value in values)

config = {"processing_guarantee": guarantee, "auto_offset_reset": "earliest", "max_poll_records": 20}
plan = GroupPlan.of(
    group, servers, topic, handle, batch_format="rows", key_deserializer=None, value_deserializer=None, config=config
)
plan.runner().run()
"""


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
def test_what_a_killed_member_had_in_hand_is_repeated_or_lost_as_promised(
    cluster: InProcessCluster, topic: str, tmp_path: Path, guarantee: str
) -> None:
    """kill -9 of its process while the handler works, halfway."""
    seen, death, log = Seen(), COUNT // 2, tmp_path / "handled"
    plan = plan_of(cluster, topic, handler_of(seen), processing_guarantee=guarantee)
    arguments = [cluster.bootstrap_servers, plan.group, topic, guarantee, str(log), str(death)]
    killed = subprocess.run([sys.executable, "-c", DYING, *arguments], timeout=scaled(2 * WAIT_S), check=False)
    assert killed.returncode == -signal.SIGKILL
    with running(plan):
        wait_until(lambda: committed(cluster, plan, topic) == ENDS, WAIT_S, "another comes to the end")
    handled = seen.values + Counter(map(int, log.read_text().split()))
    missing = set(range(COUNT)) - handled.keys()
    if guarantee == "at_least_once":
        assert missing == set()
        assert death in seen.values
    else:
        assert set(handled.values()) == {1}
        assert death in missing
        assert len(missing) <= 20  # the batch that it had in hand


def test_a_handler_that_does_not_return_loses_its_partitions(cluster: InProcessCluster, topic: str) -> None:
    stuck, go_on, late = threading.Event(), threading.Event(), Seen()

    def hang(records: list[ConsumerRecord]) -> None:
        stuck.set()
        assert go_on.wait(scaled(WAIT_S))
        late.add([int(record.value) for record in records])

    seen = Seen()
    plan = plan_of(cluster, topic, hang, max_poll_interval_ms=4_000, max_poll_records=10)
    try:
        with running(plan) as hanging:
            wait_until(stuck.is_set, WAIT_S, "the handler hangs")
            with running(replace(plan, handler=handler_of(seen))) as other:
                wait_until(lambda: everything(seen), WAIT_S, "another member handles all")
                assert hanging.status.handling is not None  # told before the handler was called
                go_on.set()
                wait_until(lambda: hanging.status.handling is None, WAIT_S, "the handler returns")
                wait_until(lambda: committed_sum(cluster, plan, topic) == COUNT, WAIT_S, "all is committed")
                wait_until(  # it tells so with its next step
                    lambda: other.status.counts.handled == COUNT,
                    WAIT_S,
                    "the other tells that it handled all",
                    instead=lambda: other.status,
                )
    finally:
        go_on.set()
    assert committed(cluster, plan, topic) == ENDS


def test_a_handler_that_exits_is_not_taken_for_one_that_runs(cluster: InProcessCluster, topic: str) -> None:
    plan = plan_of(cluster, topic, lambda records: sys.exit(3))
    with running(plan) as member:
        wait_until(lambda: member.status.state is State.FAILED, WAIT_S, "the member has failed")
        assert member.status.trouble.endswith(": the handler raised SystemExit: 3")


def test_a_member_waits_for_a_cluster_that_is_away_and_says_so(cluster: InProcessCluster, topic: str) -> None:
    """Nobody listens at its bootstrap address; then a proxy to a broker does."""
    seen, port = Seen(), free_port("127.0.0.1")
    plan = plan_of(cluster, topic, handler_of(seen), default_api_timeout_ms=2_000)
    host, _, broker_port = cluster.bootstrap_servers.partition(",")[0].partition(":")
    with running(replace(plan, bootstrap_servers=f"127.0.0.1:{port}")) as member:
        wait_until(lambda: member.status.trouble, WAIT_S, "it tells its trouble")
        assert member.status.state is State.STARTING
        with FrameProxy(port) as proxy:
            proxy.target = (host, int(broker_port))
            wait_until(lambda: everything(seen), WAIT_S, "all records are handled")
        assert member.status.trouble == ""


def test_a_group_of_kafka_clients_takes_no_handlers(cluster: InProcessCluster, topic: str) -> None:
    plan = plan_of(cluster, topic, handler_of(Seen()))
    theirs = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": plan.group})
    try:
        theirs.subscribe([topic])
        wait_until(lambda: theirs.poll(0.05) is None and theirs.assignment(), WAIT_S, "they share the topic")
        with running(plan) as member:
            wait_until(lambda: member.status.state is State.FAILED, WAIT_S, "the member stops")
            assert member.status.trouble.startswith("InconsistentGroupProtocol: ")
    finally:
        theirs.close()
