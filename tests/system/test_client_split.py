"""Batches that are too large for their topic are split and sent, by every sender: each record once, in order."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled
from kit.proxied import proxied
from kit.proxy import Fate
from kit.reading import all_records
from raylog.client import Admin, Producer
from raylog.client.aio import AsyncProducer
from raylog.client.produce.producer_state import Continuation, Identity
from raylog.protocol.errors import MessageTooLarge, OutOfOrderSequence, RaylogError
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

ROWS = [b"%04d" % number + random.Random(number).randbytes(96) for number in range(600)]
LARGE = random.Random(0).randbytes(2_500)
"""A record that the topic never takes."""
SETTINGS = {"batch_size": 16_000, "linger_ms": 50}
"""Batches of some 130 rows."""

PRODUCE = 0

topics = (f"small-{number}" for number in itertools.count())
ids = itertools.count(2_000_000)

Where = list[tuple[int | None, type[RaylogError] | None]]
"""Of each row its offset, or why it was not delivered."""
Sender = Callable[[str, str, Sequence[bytes]], Where]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path_factory.mktemp("brokers")) as running:
        yield running


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    """Takes some twelve rows at once."""
    name = next(topics)
    cluster.create_topic(name, config={"max.message.bytes": "2000"})
    return name


def by_rows(servers: str, topic: str, rows: Sequence[bytes], **more: object) -> Where:
    with Producer(servers, **SETTINGS, **more) as producer:
        sent = [producer.send(topic, row, b"k", headers=[("h", b"1")]) for row in rows]
        producer.flush(60)
    assert all(delivery.done() for delivery in sent)
    errors = [delivery.exception(0) for delivery in sent]
    return [
        (delivery.result(0).offset, None) if error is None else (None, type(error))
        for delivery, error in zip(sent, errors, strict=True)
    ]


def by_rows_of_one_try(servers: str, topic: str, rows: Sequence[bytes]) -> Where:
    """Without idempotence, so without sequences."""
    return by_rows(servers, topic, rows, enable_idempotence=False, max_in_flight_requests_per_connection=1)


def by_columns(servers: str, topic: str, rows: Sequence[bytes], **more: object) -> Where:
    with Producer(servers, compression_type="lz4", **SETTINGS, **more) as producer:
        sent = producer.send_batch(topic, rows, [b"k"] * len(rows), headers=[[("h", b"1")]] * len(rows))
        producer.flush(60)
    where: Where = []
    for outcome, count in sent._batches():
        assert outcome.done
        first = outcome.base_offset
        ours = [(first + n, None) for n in range(count)] if outcome.error is None else [(None, type(outcome.error))]
        where += ours  # type: ignore[arg-type]
    failed = sum(offset is None for offset, _ in where)
    assert (len(sent), sent.failed()) == (len(rows), failed)
    assert (sent.exception(0) is None) == (failed == 0)
    return where


def by_a_loop(servers: str, topic: str, rows: Sequence[bytes]) -> Where:
    async def send() -> Where:
        async with AsyncProducer(servers, **SETTINGS) as producer:
            sent = [await producer.aiosend(topic, row, b"k", headers=[("h", b"1")]) for row in rows]
            await producer.flush(60)
            where: Where = []
            for delivery in sent:
                error = delivery.exception()
                where.append(((await delivery).offset, None) if error is None else (None, type(error)))
            return where

    return asyncio.run(send())


SENDERS = [by_rows, by_rows_of_one_try, by_columns, by_a_loop]


@pytest.mark.parametrize("send", SENDERS)
def test_batches_that_are_too_large_are_split(
    cluster: InProcessCluster, topic: str, send: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    where = send(cluster.bootstrap_servers, topic, ROWS)
    assert caplog.text.count("; its records are sent in smaller ones") == 1
    found = all_records(cluster.bootstrap_servers, topic)
    assert [record.value for record in found] == ROWS
    assert where == [(record.offset, None) for record in found]
    assert {(record.key, tuple(record.headers)) for record in found} == {(b"k", (("h", b"1"),))}


@pytest.mark.parametrize("send", SENDERS)
def test_a_record_that_is_too_large_fails_alone(cluster: InProcessCluster, topic: str, send: Sender) -> None:
    rows = [*ROWS[:300], LARGE, *ROWS[300:]]
    where = send(cluster.bootstrap_servers, topic, rows)
    assert [record.value for record in all_records(cluster.bootstrap_servers, topic)] == ROWS
    assert where[300] == (None, MessageTooLarge)
    assert [offset for offset, _ in where[:300] + where[301:]] == list(range(600))


def test_a_batch_larger_than_a_segment_is_split(cluster: InProcessCluster) -> None:
    large, name = [b"%d" % number + b"x" * 100_000 for number in range(30)], next(topics)
    cluster.create_topic(name, config={"max.message.bytes": "4000000", "segment.bytes": "1048576"})
    with Producer(cluster.bootstrap_servers, batch_size=3_500_000, max_request_size=4_000_000) as producer:
        assert sum(run.record_count for run in producer.send_batch(name, large).result(scaled(60))) == 30
    assert [record.value for record in all_records(cluster.bootstrap_servers, name)] == large


def test_a_batch_grows_to_no_more_than_a_request(cluster: InProcessCluster) -> None:
    name = next(topics)
    cluster.create_topic(name)
    with Producer(cluster.bootstrap_servers, batch_size=100_000, max_request_size=10_000, linger_ms=60_000) as producer:
        for row in ROWS:
            producer.send(name, row)
        producer.send_batch(name, ROWS)
        producer.flush(60)
        assert 5_000 < producer.metrics()["batch-size-max"] <= 10_000
    assert [record.value for record in all_records(cluster.bootstrap_servers, name)] == ROWS * 2


@pytest.mark.parametrize("side", ["request", "answer"])
def test_what_is_lost_on_the_way_changes_nothing(tmp_path: Path, side: str) -> None:
    """Some requests, or answers, are lost with their connection: wholes and halves are sent again."""
    chance, lost = random.Random(7), 0
    with proxied(tmp_path) as (cluster, proxy, servers):
        cluster.create_topic("small", config={"max.message.bytes": "2000"})

        def decide(key: int) -> Fate:
            nonlocal lost
            if key != PRODUCE or chance.random() > 0.15:
                return Fate.PASS
            lost += 1
            return Fate.CUT

        setattr(proxy, f"on_{side}", decide)
        where = by_columns(servers, "small", ROWS, request_timeout_ms=2_000, retry_backoff_ms=10)
        proxy.on_request = proxy.on_answer = lambda _: Fate.PASS
        assert [record.value for record in all_records(servers, "small")] == ROWS
    assert len(where) == len(ROWS)
    assert lost > 3


def continued(servers: str, topic: str, identity: Identity, rows: Sequence[bytes], first: int = 0) -> None:
    """Send rows under the numbers of another producer, as the sink's tasks do."""
    tp = TopicPartition(TopicName(topic), PartitionIndex(0))
    with Producer(servers, continues=Continuation(identity, {tp: first}), batch_size=16_000) as producer:
        producer.send_batch(topic, rows, partition=0).result(scaled(60))


def test_who_sends_split_batches_again_adds_nothing(cluster: InProcessCluster, topic: str) -> None:
    identity = Identity(next(ids), 0)
    for _ in range(2):
        continued(cluster.bootstrap_servers, topic, identity, ROWS)
    continued(cluster.bootstrap_servers, topic, identity, ROWS[200:], first=200)
    assert [record.value for record in all_records(cluster.bootstrap_servers, topic)] == ROWS


def test_who_finds_half_of_a_split_batch_says_so_or_goes_on(cluster: InProcessCluster, topic: str) -> None:
    """The first rows were split; meanwhile the topic takes larger batches, one of which the broker has in part."""
    servers, identity = cluster.bootstrap_servers, Identity(next(ids), 0)
    continued(servers, topic, identity, ROWS[:100])
    with Admin(servers) as admin:
        admin.alter_topic_configs(topic, {"max.message.bytes": "1000000"})
    with pytest.raises(OutOfOrderSequence):
        continued(servers, topic, identity, ROWS)
    assert [record.value for record in all_records(servers, topic)] == ROWS[:100]
    continued(servers, topic, identity, ROWS[100:], first=100)
    assert [record.value for record in all_records(servers, topic)] == ROWS
