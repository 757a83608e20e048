"""Errors that pass, one by one: our clients ask who leads and go on, lose nothing, repeat nothing, and never reset."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v8.response import ListOffsetsResponse

from kit.cluster import InProcessCluster
from kit.leaders import begin_epoch
from kit.machine import scaled
from kit.proxied import proxied
from kit.proxy import FrameProxy
from kit.waiting import wait_until
from raylog.client import Consumer, Producer
from raylog.client.aio import AsyncConsumer
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.wire.fetch import (
    FetchedPartition,
    FetchedTopic,
    FetchResponse,
    encode_fetch_response,
    parse_fetch_response,
)
from raylog.protocol.wire.messages import decode_response, encode_response
from raylog.protocol.wire.produce import encode_produce_response, parse_produce_response

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
QUICK: dict[str, Any] = {"retry_backoff_ms": 20, "retry_backoff_max_ms": 20}
CONSUMER: dict[str, Any] = {**QUICK, "fetch_max_wait_ms": 50, "auto_offset_reset": "latest"}
WAIT_S = 20.0
TIMES = 2
TP = TopicPartition(TopicName("t"), PartitionIndex(0))

of_replicas = pytest.mark.parametrize(
    "code",
    [ErrorCode.replica_not_available, ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch],
    ids=lambda code: code.name,
)


class Refusals:
    """The broker behind the proxy answers ``api_key`` with ``code``, TIMES times from each :meth:`begin` on; it has
    done what it was asked for all the same."""

    def __init__(self, proxy: FrameProxy, api_key: int, code: ErrorCode) -> None:
        self.left = 0
        self._api_key, self._code = api_key, code
        self._proxy = proxy
        proxy.edit_answer = self._edit

    def begin(self) -> None:
        self.metadata_before = self._proxy.requests[METADATA]
        self.left = TIMES

    def asked_who_leads(self) -> bool:
        return self._proxy.requests[METADATA] > self.metadata_before

    def _edit(self, api_key: int, version: int, frame: bytes) -> bytes:
        if api_key != self._api_key or self.left <= 0:
            return frame
        edited = EDITS[api_key](version, frame, self._code)
        self.left -= edited is not frame
        return edited


def _refuse_produce(version: int, frame: bytes, code: ErrorCode) -> bytes:
    correlation_id, response = parse_produce_response(version, frame)
    topics = [
        topic._replace(partitions=[part._replace(error_code=code.value, base_offset=-1) for part in topic.partitions])
        for topic in response.topics
    ]
    return encode_produce_response(version, correlation_id, response._replace(topics=topics))


def _refuse_fetch(version: int, frame: bytes, code: ErrorCode) -> bytes:
    correlation_id, response = parse_fetch_response(version, frame)
    if not response.topics:
        return frame
    refused = [FetchedTopic[bytes]("", topic.topic_id, [FetchedPartition(0, code.value)]) for topic in response.topics]
    answer = FetchResponse(refused, session_id=response.session_id)
    return b"".join(encode_fetch_response(version, correlation_id, answer))


def _refuse_list_offsets(version: int, frame: bytes, code: ErrorCode) -> bytes:
    correlation_id, entity = decode_response(LIST_OFFSETS, version, frame)
    response = cast(ListOffsetsResponse, entity)
    topics = tuple(
        replace(topic, partitions=tuple(replace(part, error_code=code) for part in topic.partitions))
        for topic in response.topics
    )
    return encode_response(LIST_OFFSETS, version, correlation_id, replace(response, topics=topics))


EDITS: dict[int, Callable[[int, bytes, ErrorCode], bytes]] = {
    PRODUCE: _refuse_produce,
    FETCH: _refuse_fetch,
    LIST_OFFSETS: _refuse_list_offsets,
}


def send(servers: str, *values: bytes) -> None:
    with Producer(servers, linger_ms=0) as producer:
        for value in values:
            producer.send("t", value, partition=0).result(scaled(WAIT_S))


def read(consumer: Consumer, count: int) -> list[tuple[int, bytes | None]]:
    """At least ``count`` records, fewer only when no more come."""
    found: list[tuple[int, bytes | None]] = []
    while len(found) < count and (polled := consumer.poll(WAIT_S * 1_000)):
        found += [(record.offset, record.value) for records in polled.values() for record in records]
    return found


def was_told(caplog: pytest.LogCaptureFixture, code: str) -> bool:
    """Whether a broker answered a fetch with that."""
    return any(code in message for message in caplog.messages)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of the client; another test's ZooKeeper may have ended meanwhile."""
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    return [f"{r.name}: {r.getMessage()}" for r in records if r.name.startswith("raylog.client")]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.replica_not_available,
        ErrorCode.not_leader_or_follower,
    ],
    ids=lambda code: code.name,
)
def test_a_refused_batch_is_sent_again_and_is_there_once(tmp_path: Path, code: ErrorCode) -> None:
    with proxied(tmp_path) as (_, proxy, servers):
        refusals = Refusals(proxy, PRODUCE, code)
        with Producer(servers, linger_ms=0, batch_size=1, **QUICK) as producer:
            assert producer.send("t", b"0", partition=0).result(scaled(WAIT_S)).offset == 0
            refusals.begin()
            deliveries = [producer.send("t", b"%d" % number, partition=0) for number in range(1, 10)]
            assert [delivery.result(scaled(WAIT_S)).offset for delivery in deliveries] == list(range(1, 10))
        assert refusals.left == 0
        assert refusals.asked_who_leads()
        with Consumer(servers, ["t"], auto_offset_reset="earliest") as consumer:
            assert read(consumer, 10) == [(number, b"%d" % number) for number in range(10)]


@of_replicas
def test_a_refused_fetch_goes_on_from_where_it_was(
    tmp_path: Path, code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    with proxied(tmp_path) as (_, proxy, servers), Consumer(servers, **CONSUMER) as consumer:
        refusals = Refusals(proxy, FETCH, code)
        send(servers, b"0", b"1")
        consumer.assign([("t", 0)])
        consumer.seek("t", 0, 0)
        assert read(consumer, 2) == [(0, b"0"), (1, b"1")]
        refusals.begin()
        send(servers, b"2", b"3")
        assert read(consumer, 2) == [(2, b"2"), (3, b"3")]
        assert refusals.left == 0
        assert refusals.asked_who_leads()
    assert warnings(caplog) == []


@of_replicas
def test_a_refused_fetch_goes_on_in_an_event_loop(
    tmp_path: Path, code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(servers: str, refusals: Refusals) -> list[tuple[int, bytes | None]]:
        async with AsyncConsumer(servers, **CONSUMER) as consumer:
            consumer.assign([("t", 0)])
            consumer.seek("t", 0, 0)
            found: list[tuple[int, bytes | None]] = []
            for expected in (2, 4):
                while len(found) < expected and (polled := await consumer.poll(WAIT_S * 1_000)):
                    found += [(record.offset, record.value) for records in polled.values() for record in records]
                if expected == 2:
                    refusals.begin()
                    await asyncio.to_thread(send, servers, b"2", b"3")
            return found

    with proxied(tmp_path) as (_, proxy, servers):
        refusals = Refusals(proxy, FETCH, code)
        send(servers, b"0", b"1")
        assert asyncio.run(run(servers, refusals)) == [(number, b"%d" % number) for number in range(4)]
        assert refusals.left == 0
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.offset_not_available,
        ErrorCode.replica_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
    ],
    ids=lambda code: code.name,
)
def test_an_end_that_is_not_known_yet_is_asked_for_again(
    tmp_path: Path, code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    """By who looks for a position, and by who just wants to know the end."""
    with proxied(tmp_path) as (_, proxy, servers), Consumer(servers, **CONSUMER) as consumer:
        refusals = Refusals(proxy, LIST_OFFSETS, code)
        send(servers, b"0", b"1")
        refusals.begin()
        consumer.assign([("t", 0)])
        assert consumer.position("t", 0) == 2
        assert refusals.left == 0
        refusals.begin()
        assert consumer.end_offsets([("t", 0)]) == {TP: 2}
        assert refusals.left == 0
        assert refusals.asked_who_leads()
        send(servers, b"2")
        assert read(consumer, 1) == [(2, b"2")]
    assert warnings(caplog) == []


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path, brokers=2) as running:
        running.create_topic("t")
        yield running


def test_a_consumer_that_is_behind_the_leaders_epoch_catches_up(
    cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """FENCED_LEADER_EPOCH: the leader is the same, its epoch is not."""
    caplog.set_level(logging.INFO, "raylog.client")
    servers = cluster.bootstrap_servers
    send(servers, b"0", b"1")
    with Consumer(servers, **CONSUMER) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek("t", 0, 0)
        assert len(read(consumer, 2)) == 2
        for number in range(2, 5):
            begin_epoch(cluster, TP, *cluster.brokers)
            send(servers, b"%d" % number)
            assert read(consumer, 1) == [(number, b"%d" % number)]
    assert was_told(caplog, "FENCED_LEADER_EPOCH (74)")
    assert warnings(caplog) == []


def test_a_consumer_that_is_ahead_of_the_leader_waits_for_it(
    cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """UNKNOWN_LEADER_EPOCH: another broker has told of an epoch, of which the leader has not heard."""
    caplog.set_level(logging.INFO, "raylog.client")
    leader = cluster.leader(*TP)
    [other] = [broker for broker in cluster.brokers.values() if broker is not leader]
    send(leader.address, b"0", b"1")
    begin_epoch(cluster, TP, other.broker_id)
    with Consumer(other.address, **CONSUMER) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek("t", 0, 0)
        early: list[object] = []

        def is_told() -> bool:
            early.extend(consumer.poll(50).items())
            return was_told(caplog, "UNKNOWN_LEADER_EPOCH (75)")

        wait_until(is_told, WAIT_S, "the leader tells that it has not heard of the epoch")
        early.extend(consumer.poll(300).items())
        assert early == []
        begin_epoch(cluster, TP, leader.broker_id)
        assert read(consumer, 2) == [(0, b"0"), (1, b"1")]
    assert was_told(caplog, "UNKNOWN_LEADER_EPOCH (75)")
    assert warnings(caplog) == []
