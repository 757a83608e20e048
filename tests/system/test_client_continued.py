"""Producers that go on under the numbers of another one, against real brokers: each record is there once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled
from kit.waiting import wait_until
from raylog.client import Admin, Consumer, Producer
from raylog.client.delivery import Delivery
from raylog.client.produce.identity import new_identities
from raylog.client.produce.producer_state import Continuation, Identity
from raylog.client.ranges.producer_traces import next_sequences
from raylog.protocol.errors import (
    InvalidConfig,
    InvalidProducerEpoch,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RaylogError,
)
from raylog.protocol.ids import LATEST, PartitionIndex, TopicName, TopicPartition

ROWS = [b"%d" % number for number in range(1_000)]
BATCH_SIZE = 500
"""Some fifteen rows: so that there are many batches."""

topics = (f"t{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with InProcessCluster(tmp_path_factory.mktemp("brokers"), config={"num.partitions": "2"}) as running:
        yield running.bootstrap_servers


@pytest.fixture
def topic() -> str:
    """A topic of this test alone, with two partitions."""
    return next(topics)


def partition(topic: str, index: int = 0) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(index))


def continuing(
    servers: str, identity: Identity, sequences: Mapping[TopicPartition, int] | None = None, **config: Any
) -> Producer:
    return Producer(
        servers, continues=Continuation(identity, sequences or {}), batch_size=config.pop("batch_size", BATCH_SIZE),
        **config,
    )  # fmt: skip


def values(servers: str, topic: str, index: int = 0) -> list[bytes]:
    with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition(topic, index)])
        return [record.value for record in consumer.iterate(until_end=True)]


def test_who_sends_the_same_again_adds_nothing(servers: str, topic: str) -> None:
    for _ in range(3):
        with continuing(servers, Identity(1_000_001, 0)) as producer:
            producer.send_batch(topic, ROWS, partition=0).result(scaled(30))
    assert values(servers, topic) == ROWS


def test_who_goes_on_in_the_middle_adds_what_is_missing(servers: str, topic: str) -> None:
    identity = Identity(1_000_002, 4)
    with continuing(servers, identity) as producer:
        producer.send_batch(topic, ROWS[:600], partition=0).result(scaled(30))
        producer.send_batch(topic, ROWS[:10], partition=1).result(scaled(30))
    with continuing(servers, identity, {partition(topic): 600, partition(topic, 1): 10}) as producer:
        producer.send_batch(topic, ROWS[600:], partition=0).result(scaled(30))
        producer.send_batch(topic, ROWS[10:], partition=1).result(scaled(30))
    assert values(servers, topic) == ROWS
    assert values(servers, topic, 1) == ROWS


def test_two_at_once_add_each_record_once(servers: str, topic: str) -> None:
    identity = Identity(1_000_003, 0)
    with continuing(servers, identity) as one, continuing(servers, identity) as other:
        sent = [producer.send_batch(topic, ROWS, partition=0) for producer in (one, other)]
        for delivery in sent:
            delivery.result(scaled(30))
    assert values(servers, topic) == ROWS


def test_numbers_that_leave_a_gap_or_overlap_fail_all_that_follows(servers: str, topic: str) -> None:
    identity = Identity(1_000_004, 0)
    with continuing(servers, identity) as producer:
        producer.send_batch(topic, ROWS[:100], partition=0).result(scaled(30))
    with continuing(servers, identity, {partition(topic): 101}) as producer:
        with pytest.raises(OutOfOrderSequence, match=f"{topic}-0.*sequence 101, expected 100"):
            producer.send_batch(topic, ROWS[101:], partition=0).result(scaled(30))
        with pytest.raises(OutOfOrderSequence, match="expected 100"):
            producer.send_batch(topic, ROWS, partition=1).result(scaled(30))
    with continuing(servers, identity, {partition(topic): 90}, batch_size=100_000) as producer:
        delivery = producer.send_batch(topic, ROWS[90:], partition=0)
        assert isinstance(delivery.exception(scaled(30)), OutOfOrderSequence)
    assert values(servers, topic) == ROWS[:100]
    assert values(servers, topic, 1) == []


def test_a_newer_epoch_fences_who_is_still_sending(servers: str, topic: str) -> None:
    with continuing(servers, Identity(1_000_005, 1), linger_ms=60_000) as late:
        late.send_batch(topic, ROWS[:10], partition=0).result(scaled(30))
        with continuing(servers, Identity(1_000_005, 2)) as newer:
            newer.send_batch(topic, ROWS[10:20], partition=0).result(scaled(30))
        refused: list[RaylogError] = []

        def send_more(_: Delivery) -> None:
            """At the moment in which the failure is told."""
            with pytest.raises(RaylogError, match="a newer instance took over") as more:
                late.send(topic, b"more")
            refused.append(more.value)

        fenced = late.send(topic, ROWS[10], partition=0)
        fenced.add_done_callback(send_more)
        late.flush(30)
        with pytest.raises(InvalidProducerEpoch, match="a newer instance took over"):
            fenced.result(scaled(30))
        wait_until(lambda: refused, 10, "the callback has run")
    assert values(servers, topic) == ROWS[:20]


def test_the_log_tells_how_far_a_producer_got(servers: str, topic: str) -> None:
    ours, later, other = Identity(1_000_006, 1), Identity(1_000_006, 2), Identity(1_000_007, 1)
    with Producer(servers) as producer:
        producer.send_batch(topic, ROWS[:50], partition=0).result(scaled(30))
    places = [partition(topic), partition(topic, 1)]
    with Admin(servers) as admin:
        starts = {tp: found.offset for tp, found in admin.list_offsets(dict.fromkeys(places, LATEST)).items()}
    assert next_sequences(servers, starts, [ours, later, other]) == {}
    for identity, count in ((ours, 300), (other, 40), (later, 120)):
        with continuing(servers, identity) as producer:
            producer.send_batch(topic, ROWS[:count], partition=0).result(scaled(30))
            producer.send_batch(topic, ROWS[: count // 10], partition=1).result(scaled(30))
    assert next_sequences(servers, starts, [ours, later]) == {
        ours: {places[0]: 300, places[1]: 30},
        later: {places[0]: 120, places[1]: 12},
    }


def test_what_the_log_does_not_have_any_more_cannot_tell(servers: str, topic: str) -> None:
    with Producer(servers) as producer:
        producer.send_batch(topic, ROWS, partition=0).result(scaled(30))
    with Admin(servers) as admin:
        admin.delete_records({partition(topic): 10})
    with pytest.raises(OffsetOutOfRange, match=f"{topic}-0"):
        next_sequences(servers, {partition(topic): 9}, [Identity(1_000_008, 0)])
    assert next_sequences(servers, {partition(topic): 10}, [Identity(1_000_008, 0)]) == {}


def test_new_identities_are_nobody_else_s(servers: str) -> None:
    identities = new_identities(servers, 5) + new_identities(servers, 5)
    assert len({identity.producer_id for identity in identities}) == 10
    assert {identity.epoch for identity in identities} == {0}


def test_it_must_be_idempotent(servers: str) -> None:
    with pytest.raises(InvalidConfig, match=r"needs enable\.idempotence"):
        continuing(servers, Identity(1, 0), acks="1")
