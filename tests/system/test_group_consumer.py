"""Consumers in groups, against brokers in this process and a real ZooKeeper: docs/groups.md, promise by promise."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kit.cluster import InProcessCluster
from kit.group_reader_process import AT_LEAST_ONCE, AT_MOST_ONCE, COMMAND, EXACTLY_ONCE, Orders, Results
from kit.group_wire import WireMember
from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from kit.zookeeper import running_zookeeper
from raylog.client import Admin, CommittedOffset, Consumer, ConsumerInterceptor, Producer, RebalanceListener
from raylog.client.config.texts import parse_address
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper
from raylog.protocol.errors import (
    BrokerNotAvailable,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidConfig,
    InvalidGroupId,
    InvalidRequest,
    OffsetMetadataTooLarge,
    OffsetOutOfRange,
    RaylogError,
    UnknownMemberId,
)
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition

WAIT_S = 30.0
SESSION_MS = scaled_ms(10_000)
"""No test waits for its end, and no stall of the machine may end it: several prove that nothing was lost."""


class World:
    """A cluster that all tests of this module share: each has topics and groups of its own names."""

    def __init__(self, cluster: InProcessCluster, zookeeper: EmbeddedZooKeeper) -> None:
        self.cluster = cluster
        self.zookeeper = zookeeper
        self.servers = cluster.bootstrap_servers
        self._numbers = count()

    def addresses(self) -> list[tuple[str, int]]:
        return [parse_address(text) for text in self.servers.split(",")]

    def topic(self, partitions: int = 2, records: int = 0) -> str:
        """A new one, with values 0, 1, …, round robin."""
        name = f"t{next(self._numbers)}"
        self.cluster.create_topic(name, partitions=partitions)
        self.fill(name, range(records), partitions)
        return name

    def fill(self, topic: str, values: Iterable[int], partitions: int = 2) -> None:
        with Producer(self.servers, linger_ms=50) as producer:
            for value in values:
                producer.send(topic, b"%d" % value, partition=value % partitions, timestamp=1_000_000 + value)

    def consumer(self, topics: Any, group: str, **config: Any) -> Consumer:
        config = {"auto_offset_reset": "earliest", "session_timeout_ms": SESSION_MS, "fetch_max_wait_ms": 50, **config}
        return Consumer(self.servers, topics, group_id=group, value_deserializer=int, **config)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("groups")
    config = {"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"}
    with (
        running_zookeeper(root / "zookeeper") as zookeeper,
        InProcessCluster(root / "brokers", brokers=2, config=config, zookeeper=zookeeper.address) as cluster,
    ):
        yield World(cluster, zookeeper)


class Heard(RebalanceListener):
    """What a listener was told: («assigned», partition numbers), …"""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[int]]] = []
        self.do: Callable[[str, Sequence[TopicPartition]], object] = lambda what, partitions: None

    def on_assigned(self, partitions: Sequence[TopicPartition], /) -> None:
        self._hear("assigned", partitions)

    def on_revoked(self, partitions: Sequence[TopicPartition], /) -> None:
        self._hear("revoked", partitions)

    def on_lost(self, partitions: Sequence[TopicPartition], /) -> None:
        self._hear("lost", partitions)

    def of(self, what: str) -> list[int]:
        return sorted(number for kind, numbers in self.told if kind == what for number in numbers)

    def _hear(self, what: str, partitions: Sequence[TopicPartition]) -> None:
        self.told.append((what, [tp.partition for tp in partitions]))
        self.do(what, partitions)


def tp_of(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))


def values_of(consumer: Consumer, timeout_ms: float = 50, **poll: Any) -> list[int]:
    return [record.value for records in consumer.poll(timeout_ms, **poll).values() for record in records]


def settle(*consumers: Consumer, partitions: int = 2) -> Counter[int]:
    """Poll until they share the partitions; what they got meanwhile."""
    got: Counter[int] = Counter()

    def shared() -> bool:
        for consumer in consumers:
            got.update(values_of(consumer, 20))
        owned = [len(consumer.assignment()) for consumer in consumers]
        return sum(owned) == partitions and max(owned) - min(owned) <= 1

    wait_until(shared, WAIT_S, f"{len(consumers)} consumers share {partitions} partitions")
    return got


def read_until(done: Callable[[Counter[int]], bool], *consumers: Consumer, **poll: Any) -> Counter[int]:
    """What all of them got together, by the time that ``done`` says so."""
    got: Counter[int] = Counter()

    def enough() -> bool:
        for consumer in consumers:
            got.update(values_of(consumer, **poll))
        return done(got)

    wait_until(enough, WAIT_S, "the consumers have read enough")
    return got


# --- sharing ---


def test_members_share_what_there_is_and_whoever_leaves_is_followed_where_he_stopped(world: World) -> None:
    topic = world.topic(partitions=4, records=400)
    got: Counter[int] = Counter()
    first = world.consumer(topic, "share")
    with first:
        got += read_until(lambda got: got.total() >= 100, first, max_records=10)
        with world.consumer(topic, "share") as second:
            got += read_until(lambda got: len(second.assignment()) == 2, first, second, max_records=10)
            assert first.assignment() | second.assignment() == {tp_of(topic, number) for number in range(4)}
            assert not first.assignment() & second.assignment()
            wait_until(lambda: first.generation == second.generation, WAIT_S, "both are in one generation")
            got += read_until(lambda more: (got + more).total() >= 300, first, second, max_records=10)
        got += read_until(lambda more: (got + more).total() >= 400 and len(first.assignment()) == 4, first)
    assert got == Counter(range(400)), "each record once: no member failed"
    with world.consumer(topic, "share") as later:
        settle(later, partitions=4)
        assert {later.position(topic, number) for number in range(4)} == {100}


def test_without_addresses_it_joins_on_the_only_cluster_here(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the files that `raylog up` leaves."""
    known = {"bootstrap_servers": world.servers, "data_dir": str(tmp_path)}
    whole = {**known, "namespace": "raylog-test", "ray": {"address": "127.0.0.1:1"}, "brokers": []}
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "here.json").write_text(json.dumps(known))
    (tmp_path / "cluster.json").write_text(json.dumps(whole))
    monkeypatch.setenv("RAYLOG_HOME", str(tmp_path))
    topic = world.topic(records=10)
    with Consumer(group_id="here", topics=[topic], auto_offset_reset="earliest") as consumer:
        assert sorted(int(record.value) for record in islice(consumer, 10)) == list(range(10))


def test_iterating_and_columns_and_batches_read_a_group_s_partitions(world: World) -> None:
    topic = world.topic(records=60)
    with world.consumer(topic, "rows") as consumer:
        first = islice(consumer.iterate(timeout_ms=scaled_ms(int(WAIT_S) * 1_000)), 60)  # joining may take its time
        assert sorted(record.value for record in first) == list(range(60))
        assert list(consumer.iterate(timeout_ms=500)) == []
        with pytest.raises(InvalidRequest, match="until_end"):
            next(consumer.iterate(until_end=True))
    with world.consumer(topic, "columns") as consumer:
        tables = []
        wait_until(lambda: tables.append(consumer.poll_columns(50)) or sum(map(len, tables)) == 60, WAIT_S, "columns")
    with world.consumer(topic, "batches") as consumer:
        batches: list[Any] = []

        def all_there() -> bool:
            batches.extend(consumer.poll_batches(50).values())
            return sum(len(batch.records()) for batch in batches) == 60

        wait_until(all_there, WAIT_S, "batches")
    with world.consumer(topic, "columns") as consumer:
        settle(consumer)
        assert {consumer.position(topic, number) for number in range(2)} == {30}, "columns were committed as read"


def test_who_iterates_gives_a_partition_up_in_the_middle_of_a_batch(world: World) -> None:
    topic = world.topic(records=2_000)
    with world.consumer(topic, "iterate", max_poll_records=1) as first:
        records = first.iterate(timeout_ms=scaled_ms(5_000))  # longer than joining and a stall of the machine
        got = Counter(next(records).value for _ in range(10))
        with world.consumer(topic, "iterate") as second:

            def has_one() -> bool:
                got.update([next(records).value, *values_of(second, 5)])
                return bool(second.assignment())

            wait_until(has_one, WAIT_S, "the second has a partition")
            assert got.total() < 1_000, "the batch of a thousand was not handed out to its end first"
            [theirs] = second.assignment()
            got += read_until(lambda _: second.position(*theirs) == 1_000, second)
        got.update(record.value for record in records)
    assert got == Counter(range(2_000))


# --- the listener ---


def test_the_listener_hears_all_and_may_commit_what_is_given_up(world: World) -> None:
    topic = world.topic(records=100)
    heard, others = Heard(), Heard()
    first = world.consumer(topic, "listen", listener=heard, enable_auto_commit=False)
    with first:
        read_until(lambda got: got.total() == 100, first)
        assert heard.of("assigned") == [0, 1]

        def commit(what: str, partitions: Sequence[TopicPartition]) -> None:
            if what == "revoked":
                first.commit({tp: first.position(*tp) - 5 for tp in partitions})

        heard.do = commit
        with world.consumer(topic, "listen", listener=others) as second:
            got = settle(first, second)
            [mine] = second.assignment()
            assert second.committed([mine])[mine] == CommittedOffset(
                Offset(45),
                committed_ms=second.committed([mine])[mine].committed_ms,  # type: ignore[union-attr]
            )
            assert heard.of("revoked") == others.of("assigned") == [mine.partition]
            got += read_until(lambda _: second.position(*mine) == 50, second)
            assert got == Counter(range(90 + mine.partition, 100, 2)), "the five that were not committed"
    assert heard.of("lost") == []
    assert heard.of("revoked") == [0, 1], "one to the other, one by closing"


def test_a_listener_that_closes_the_consumer_is_refused_and_nothing_is_closed(world: World) -> None:
    topic = world.topic(records=10)
    heard = Heard()
    with world.consumer(topic, "closing", listener=heard) as consumer:
        refused: list[str] = []

        def close(what: str, partitions: Sequence[TopicPartition]) -> None:
            with pytest.raises(InvalidRequest, match="cannot close"):
                consumer.close()
            refused.append(what)

        heard.do = close
        read_until(lambda got: got.total() == 10, consumer)
        assert consumer.may_deliver(topic, 0)
    assert set(refused) == {"assigned", "revoked"}
    with world.consumer(topic, "closing") as next_one:
        settle(next_one)
        assert set(next_one.committed([(topic, 0), (topic, 1)]).values()) != {None}


def test_seeking_when_assigned_reads_from_there(world: World) -> None:
    topic = world.topic(records=100)
    heard = Heard()
    with world.consumer(topic, "seek", listener=heard) as consumer:
        heard.do = lambda what, tps: [consumer.seek(*tp, 40) for tp in tps if what == "assigned"]
        got = read_until(lambda got: got.total() >= 20, consumer)
        assert got == Counter(range(80, 100))


def test_rewinding_by_offset_and_by_time_and_pausing(world: World) -> None:
    topic = world.topic(records=100)
    with world.consumer(topic, "rewind") as consumer:
        read_until(lambda got: got.total() == 100, consumer)
        consumer.seek(topic, 0, 45)
        assert read_until(lambda got: got.total() >= 5, consumer) == Counter(range(90, 100, 2))
        consumer.seek_to_time(1_000_090)
        consumer.pause((topic, 1))
        assert read_until(lambda got: got.total() >= 5, consumer) == Counter(range(90, 100, 2))
        assert values_of(consumer) == []
        consumer.resume()
        assert read_until(lambda got: got.total() >= 5, consumer) == Counter(range(91, 100, 2))
        with pytest.raises(InvalidRequest, match="in a group"):
            consumer.assign([(topic, 0)])


# --- committing ---


def test_auto_commit_commits_while_polling_what_was_handed_out_before(world: World) -> None:
    topic = world.topic(partitions=1)
    tp = tp_of(topic, 0)
    with world.consumer(topic, "auto", auto_commit_interval_ms=0) as consumer:

        def committed() -> int | None:
            found = consumer.committed([tp])[tp]
            return None if found is None else found.offset

        wait_until(lambda: consumer.poll(20) == {} and committed() == 0, WAIT_S, "the beginning is committed")
        world.fill(topic, range(30), 1)
        got = wait_until(lambda: values_of(consumer, max_records=10), WAIT_S, "records")
        assert committed() == 0, "they are in the user's hands"
        consumer.pause()
        assert values_of(consumer) == []
        wait_until(lambda: consumer.poll(20) == {} and committed() == len(got), WAIT_S, "they are committed")


def test_interceptors_hear_of_commits(world: World) -> None:
    class Commits(ConsumerInterceptor):
        def __init__(self) -> None:
            self.heard: list[dict[int, int]] = []

        def on_commit(self, offsets: Mapping[TopicPartition, CommittedOffset], /) -> None:
            self.heard.append({tp.partition: committed.offset for tp, committed in offsets.items()})

    topic, commits = world.topic(records=10), Commits()
    with world.consumer(topic, "intercepted", interceptors=[commits], enable_auto_commit=False) as consumer:
        read_until(lambda got: got.total() == 10, consumer)
        consumer.commit()
        assert commits.heard == [{0: 5, 1: 5}]
        consumer.commit_async({(topic, 0): 3}).result(scaled(WAIT_S))
        values_of(consumer)
        assert commits.heard[1:] == [{0: 3}]
        assert consumer.metrics()["commit-total"] == 2


def test_after_an_error_in_the_with_block_nothing_is_committed(world: World) -> None:
    topic = world.topic(partitions=1, records=30)

    def fail() -> None:
        with world.consumer(topic, "error") as consumer:
            for record in consumer:
                if record.value == 7:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with world.consumer(topic, "error") as consumer:
        assert next(iter(consumer)).value == 0
    with world.consumer(topic, "error") as consumer:
        assert next(iter(consumer)).value == 1, "one was read to its end"


def test_commits_that_are_refused(world: World) -> None:
    topic = world.topic(records=10)
    with world.consumer(topic, "refused", enable_auto_commit=False) as first:
        settle(first)
        with world.consumer(topic, "refused", enable_auto_commit=False) as second:
            settle(first, second)
            [others] = second.assignment()
            [mine] = first.assignment()
            with pytest.raises(IllegalGeneration, match=str(others)):
                first.commit({others: 1, mine: 1})
            assert first.committed([mine, others]) == {mine: None, others: None}, "all of them or none"
            with pytest.raises(InvalidRequest, match=f"{mine}: offset=-1"):
                first.commit({mine: -1})
            with pytest.raises(OffsetMetadataTooLarge, match=r"4097 bytes .* 4096"):
                first.commit({mine: CommittedOffset(Offset(1), metadata="x" * 4_097)})
            first.commit({mine: CommittedOffset(Offset(2), metadata="x" * 4_096)})
            assert first.commit_async({mine: 3}).result(scaled(WAIT_S)) is None
            found = first.committed([mine])[mine]
            assert found is not None
            assert (found.offset, found.metadata) == (3, "")
            assert isinstance(first.commit_async({others: 1}).exception(scaled(WAIT_S)), IllegalGeneration)
    with pytest.raises(RaylogError, match="closed"):
        first.commit()


@pytest.mark.parametrize("semantics", [AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE])
def test_a_member_killed_at_the_worst_moment(world: World, tmp_path: Path, semantics: str) -> None:
    """It dies with ten records between result and commit, or commit and result; another goes on."""
    topic = world.topic(records=200)
    store, group = str(tmp_path / "results"), f"killed, {semantics}"
    for dies_after, status in ((5, -signal.SIGKILL), (0, 0)):
        orders = Orders(world.servers, topic, group, semantics, store, ends=100, batch=10, dies_after=dies_after)
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        done = subprocess.run([*COMMAND, orders.argument()], env=environment, capture_output=True, timeout=scaled(60))
        assert done.returncode == status, done.stderr.decode()
    results = Results(store)
    seen = results.seen()
    results.close()
    again = len(seen) - len(set(seen))
    lost = set(range(200)) - set(seen)
    print(f"{semantics}: {again} records twice, {len(lost)} lost")
    assert (again, len(lost)) == {AT_MOST_ONCE: (0, 10), AT_LEAST_ONCE: (10, 0), EXACTLY_ONCE: (0, 0)}[semantics]


# --- where to read from ---


def test_a_committed_offset_that_is_gone_is_told_with_both_ends(world: World, caplog: pytest.LogCaptureFixture) -> None:
    topic = world.topic(partitions=1, records=100)
    with world.consumer(topic, "gone", enable_auto_commit=False) as consumer:
        settle(consumer, partitions=1)
        consumer.commit({(topic, 0): 10})
    with Admin(world.servers) as admin:
        admin.delete_records({(topic, 0): 60})
    with caplog.at_level(logging.WARNING), world.consumer(topic, "gone", enable_auto_commit=False) as consumer:
        assert min(read_until(lambda got: got.total() == 40, consumer)) == 60
    assert re.search(r"offset 10 is out of range, the broker has 60 to 100; .*reading on from offset 60", caplog.text)
    with world.consumer(topic, "gone", auto_offset_reset="none") as consumer, pytest.raises(OffsetOutOfRange) as lost:
        read_until(lambda got: bool(got), consumer)
    assert "offset 10 is out of range, the broker has 60 to 100" in str(lost.value)


def test_without_a_committed_offset_and_a_reset_there_is_nowhere_to_read_from(world: World) -> None:
    topic = world.topic(partitions=1, records=10)
    with world.consumer(topic, "nowhere", auto_offset_reset="none") as consumer:
        with pytest.raises(OffsetOutOfRange, match="no position"):
            read_until(lambda got: bool(got), consumer)
        consumer.seek_to_beginning()
        read_until(lambda got: got.total() == 10, consumer)


# --- topics ---


def test_a_topic_that_comes_later_is_waited_for_aloud(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), world.consumer("comes-later", "patient") as consumer:
        wait_until(
            lambda: values_of(consumer) or "'comes-later' cannot be read yet" in caplog.text, WAIT_S, "it says so"
        )
        world.cluster.create_topic("comes-later", partitions=2)
        settle(consumer)
        world.fill("comes-later", range(10))
        read_until(lambda got: got.total() == 10, consumer)


def test_a_pattern_finds_topics_of_today_and_tomorrow(world: World) -> None:
    world.cluster.create_topic("flights-jfk", partitions=1)
    with world.consumer(re.compile(r"flights-[a-z]+"), "pattern") as consumer:
        settle(consumer, partitions=1)
        world.cluster.create_topic("flights-", partitions=1)
        world.cluster.create_topic("flights-lga", partitions=1)
        settle(consumer, partitions=2)
        assert {tp.topic for tp in consumer.assignment()} == {"flights-jfk", "flights-lga"}
        world.fill("flights-lga", [0, 0], partitions=1)
        read_until(lambda got: got.total() == 2, consumer)


# --- who is in ---


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"group_id": ""}, InvalidGroupId),
        ({"group_id": "g", "topics": []}, InvalidConfig),
        ({"group_id": "g", "topics": [re.compile("a"), "b"]}, InvalidConfig),
        ({"topics": re.compile("a")}, InvalidRequest),
        ({"group_id": "g", "partition_assignment_strategy": "roundrobin"}, InvalidConfig),
    ],
)
def test_what_makes_no_member(world: World, arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Consumer(world.servers, **{"topics": ["t"], **arguments})


def test_a_zookeeper_that_cannot_be_reached_is_named(world: World) -> None:
    here = {"zookeeper_connect": "127.0.0.1:1", "default_api_timeout_ms": 3_000}
    with pytest.raises(BrokerNotAvailable, match=r"no ZooKeeper answers at 127\.0\.0\.1:1, as zookeeper\.connect says"):
        world.consumer("t", "unreachable", **here)


def test_a_group_is_of_one_kind(world: World) -> None:
    with WireMember("classic", world.addresses) as kafkas:
        kafkas.join()
        with pytest.raises(InconsistentGroupProtocol, match="group classic is one of Kafka's clients"):
            world.consumer(world.topic(), "classic")
        kafkas.leave()
    topic = world.topic()
    with world.consumer(topic, "classic") as consumer:
        settle(consumer)
        with WireMember("classic", world.addresses) as kafkas:

            def refused() -> bool:
                """A broker that still holds what was its group learns by its first write, a sync's, that it is not."""
                if kafkas.try_join().error_code is ErrorCode.none:
                    assert kafkas.sync([kafkas.member_id], b"all").error_code is not ErrorCode.none
                return kafkas.codes[-1] is ErrorCode.inconsistent_group_protocol

            wait_until(refused, WAIT_S, "a client of Kafka's is refused")
            assert len(consumer.assignment()) == 2


def test_who_does_not_poll_is_put_out_and_comes_back_by_polling(world: World) -> None:
    topic = world.topic(records=100)
    heard = Heard()
    stuck = world.consumer(topic, "stuck", listener=heard, max_poll_interval_ms=4_000, enable_auto_commit=False)
    with stuck:
        settle(stuck)
        values_of(stuck, 1_000)
        with world.consumer(topic, "stuck") as other:
            wait_until(lambda: values_of(other, 20) or len(other.assignment()) == 2, WAIT_S, "the other has all")
            assert [stuck.may_deliver(*tp) for tp in sorted(stuck.assignment())] == [False, False]
            with pytest.raises(UnknownMemberId, match=r"max\.poll\.interval\.ms"):
                stuck.commit()
            values_of(stuck)
            assert heard.of("lost") == [0, 1]
            settle(stuck, other)
            assert len(heard.of("assigned")) == 3


def test_nothing_is_handed_out_when_the_lease_has_lapsed(world: World) -> None:
    """ZooKeeper is stopped for longer than the lease lasts, but shorter than the session."""
    topic = world.topic(records=100)
    with world.consumer(topic, "lease", session_timeout_ms=scaled_ms(8_000)) as consumer:
        wait_until(lambda: values_of(consumer, max_records=1), WAIT_S, "a record")
        jvm = world.zookeeper.jvm
        assert jvm is not None
        owned = consumer.assignment()
        os.kill(jvm.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: not any(consumer.may_deliver(*tp) for tp in owned), WAIT_S, "the lease lapses")
            assert values_of(consumer, 200, max_records=1) == [], "though 99 records are here"
        finally:
            os.kill(jvm.pid, signal.SIGCONT)
        read_until(lambda got: got.total() >= 1, consumer)


def test_lapsed_lease_asks_brokers_no_more_often_than_they_may_wait(world: World) -> None:
    """One partition's records are here and may not be handed out; the others, of the same broker, are empty."""
    topic = world.topic(partitions=6)
    world.fill(topic, range(0, 600, 6), 6)
    config = {"session_timeout_ms": scaled_ms(3_000), "fetch_max_wait_ms": 250}  # brokers' leases last longer
    with world.consumer(topic, "lapsed", **config) as consumer:
        wait_until(
            lambda: values_of(consumer, max_records=1) and len(consumer.assignment()) == 6, WAIT_S, "a record, and all"
        )
        jvm = world.zookeeper.jvm
        assert jvm is not None
        owned = consumer.assignment()
        os.kill(jvm.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: not any(consumer.may_deliver(*tp) for tp in owned), WAIT_S, "the lease lapses")
            fetches, begun = consumer.metrics()["fetch-total"], time.monotonic()
            values_of(consumer, 1_000)
            per_s = (consumer.metrics()["fetch-total"] - fetches) / (time.monotonic() - begun)
        finally:
            os.kill(jvm.pid, signal.SIGCONT)
        print(f"\n{per_s:.1f} fetches a second under a lapsed lease")
        assert per_s <= 2 * 4 + 2  # two brokers, each of which lets a fetch wait for a quarter of a second


def read_while_stopped(zookeeper: EmbeddedZooKeeper, seconds: float, consumer: Consumer) -> Counter[int]:
    """What it hands out while ZooKeeper is stopped for so long."""
    jvm = zookeeper.jvm
    assert jvm is not None
    stopped = time.monotonic()
    os.kill(jvm.pid, signal.SIGSTOP)
    try:
        return read_until(lambda _: time.monotonic() - stopped > seconds, consumer, timeout_ms=20)
    finally:
        os.kill(jvm.pid, signal.SIGCONT)


def test_a_session_that_ended_unnoticed_is_lost_aloud_and_nothing_of_it_is_missed(world: World) -> None:
    """ZooKeeper is stopped past the session; what it then answers is that the session has ended."""
    topic = world.topic(records=200)
    heard = Heard()
    session_s = scaled(2.0)
    config = {"session_timeout_ms": round(session_s * 1000), "max_poll_records": 10}
    with world.consumer(topic, "ended", listener=heard, **config) as consumer:
        got = read_until(lambda got: got.total() >= 50, consumer)
        consumer.commit()
        got += read_until(lambda got: got.total() >= 10, consumer)
        for _ in range(5):  # a client that is back before the server looks at its sessions keeps its own
            got += read_while_stopped(world.zookeeper, 1.25 * session_s, consumer)
            assert set(got.values()) == {1}
            back = time.monotonic()
            by = back + scaled(3)
            got += read_until(lambda _, by=by: {*heard.of("lost")} == {0, 1} or time.monotonic() > by, consumer)
            if heard.of("lost"):
                break
        world.fill(topic, range(200, 400))
        got += read_until(lambda more: {*heard.of("lost")} == {0, 1} and len(got + more) == 400, consumer)
    lost = heard.of("lost")  # once, or again where the machine stalled for as long as the short session lasts
    assert heard.of("assigned") == sorted([0, 1, *lost])
    again = got.total() - 400
    print(f"{again} records again")
    assert max(got.values()) <= 1 + len(lost) // 2, "at least once, and once more for what was not committed"


def test_a_broker_that_restarts_is_not_noticed_by_the_group(world: World) -> None:
    topic = world.topic(records=20)
    heard = Heard()
    with world.consumer(topic, "restart", listener=heard) as consumer:
        got = read_until(lambda got: got.total() == 20, consumer)
        world.cluster.restart(0)
        world.fill(topic, range(20, 40))
        got += read_until(lambda more: len(got + more) == 40, consumer)
    assert got == Counter(range(40))
    assert (heard.of("assigned"), heard.of("lost")) == ([0, 1], [])
