"""What goes wrong with other brokers: a topic made by asking for it, an idempotent producer over a restart, and what a
client is told that is not offered."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
import pytest

from kit import kafka_java
from kit.clients import PYTHON_CLIENTS, TIMEOUT_S, Client, Kcat, Raylog, Row
from kit.cluster import InProcessCluster
from kit.proxied import proxied
from kit.proxy import Fate
from raylog.client import Producer
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

pytestmark = pytest.mark.conformance

NAMES = [client.name for client in (*PYTHON_CLIENTS, Kcat(), *kafka_java.RELEASES) if client.name != "raylog"]


@pytest.fixture(scope="module")
def automatic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    """Three brokers that make topics when they are asked for, as Kafka's do by default."""
    with InProcessCluster(tmp_path_factory.mktemp("automatic"), brokers=3, config={"num.partitions": "2"}) as cluster:
        yield cluster


@pytest.mark.parametrize("writer_name", NAMES)
def test_writing_makes_the_topic(automatic: InProcessCluster, writer: Client) -> None:
    """Its first Metadata says that the topic is not there yet; the client asks again and goes on."""
    rows: list[Row] = [(b"key", b"%d" % n, []) for n in range(10)]
    topic = f"made-by-{writer.name}"
    writer.write(automatic.bootstrap_servers, topic, 1, rows, "none")
    assert Raylog().read(automatic.bootstrap_servers, topic, 1, len(rows)) == rows


KEPT = TopicPartition(TopicName("kept"), PartitionIndex(0))
Send = Callable[[bytes], None]
"""Sends one value to partition 0 of the topic and waits until it is acknowledged; raises when it is not."""


def with_confluent(servers: str, topic: str, use: Callable[[Send], None]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    errors: list[object] = []

    def send(value: bytes) -> None:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(TIMEOUT_S) == 0
        assert errors.pop() is None

    use(send)


def with_kafka_python(servers: str, topic: str, use: Callable[[Send], None]) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=servers.split(","), enable_idempotence=True)
    try:
        use(lambda value: producer.send(topic, value, partition=0).get(TIMEOUT_S))
    finally:
        producer.close()


def with_aiokafka(servers: str, topic: str, use: Callable[[Send], None]) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers.split(","), enable_idempotence=True)
        await producer.start()
        try:
            loop = asyncio.get_running_loop()

            def send(value: bytes) -> None:
                sent = asyncio.run_coroutine_threadsafe(producer.send_and_wait(topic, value, partition=0), loop)
                sent.result(TIMEOUT_S)

            await asyncio.to_thread(use, send)
        finally:
            await producer.stop()

    asyncio.run(run())


def with_raylog(servers: str, topic: str, use: Callable[[Send], None]) -> None:
    with Producer(servers) as producer:
        use(lambda value: producer.send(topic, value, partition=0).result(TIMEOUT_S))


@pytest.mark.parametrize("client", [with_confluent, with_kafka_python, with_aiokafka, with_raylog])
def test_an_idempotent_producer_goes_on_after_a_restart(
    tmp_path: Path, client: Callable[[str, str, Callable[[Send], None]], None]
) -> None:
    """It keeps its id and counts on: the broker has its sequence from the snapshot, and from the log where it has none.

    The second restart finds no snapshot, as after a crash.
    """
    with InProcessCluster(tmp_path) as cluster:
        cluster.create_topic("kept")

        def use(send: Send) -> None:
            send(b"0")
            send(b"1")
            cluster.restart(0)
            send(b"2")
            cluster.stop(0)
            for snapshot in tmp_path.glob("broker-0/**/kept-0/*.snapshot"):
                snapshot.unlink()
            for clean in tmp_path.glob("broker-0/**/.kafka_cleanshutdown"):
                clean.unlink()
            cluster.start(0)
            send(b"3")

        client(cluster.bootstrap_servers, "kept", use)
        rows = Raylog().read(cluster.bootstrap_servers, "kept", 0, 4)
        assert [value for _, value, _ in rows] == [b"0", b"1", b"2", b"3"]
        assert cluster.leader("kept", 0).partitions.get(KEPT).log_end_offset == len(rows)


FLIPPED, LOST = b"a batch that is flipped", b"an answer that is lost"
Produce = Callable[[bytes, int], None]
"""Queues one value for a partition of the topic ``t``."""


def librdkafka_with_one_in_flight(servers: str, use: Callable[[Produce, Callable[[], None]], None]) -> None:
    config = {"enable.idempotence": True, "linger.ms": 0, "request.timeout.ms": 1_000, "socket.timeout.ms": 1_500}
    one = {"max.in.flight.requests.per.connection": 1, "bootstrap.servers": servers}
    producer = confluent_kafka.Producer({**config, **one})

    def flush() -> None:
        assert producer.flush(TIMEOUT_S) == 0

    use(lambda value, partition: producer.produce("t", value, partition=partition), flush)


def raylog_with_five(servers: str, use: Callable[[Produce, Callable[[], None]], None]) -> None:
    with Producer(servers, linger_ms=0, request_timeout_ms=1_000) as producer:
        use(lambda value, partition: producer.send("t", value, partition=partition), producer.flush)


@pytest.mark.parametrize("client", [librdkafka_with_one_in_flight, raylog_with_five])
def test_a_batch_that_is_refused_has_no_other_partition_written_twice(
    tmp_path: Path, client: Callable[[str, Callable[[Produce, Callable[[], None]], None]], None]
) -> None:
    """A batch behind one that was refused is out of order. Where librdkafka has several in flight, it then begins a new
    producer epoch and sends again, in *all* partitions, what it does not know to be there: broker and log cannot tell
    that from something new (https://github.com/confluentinc/librdkafka/issues/4953).
    """
    queued, asked = threading.Event(), threading.Event()
    flipped = []

    def edit(frame: bytes) -> bytes:
        if FLIPPED in frame and not flipped:
            flipped.append(frame)
            assert queued.wait(TIMEOUT_S)
            return frame.replace(FLIPPED, FLIPPED[::-1])
        if LOST in frame and not asked.is_set():
            asked.set()
            proxy.on_answer = lose
        return frame

    def lose(api_key: int) -> Fate:
        proxy.on_answer = lambda _: Fate.PASS
        return Fate.DROP

    with proxied(tmp_path) as (cluster, proxy, servers):

        def use(produce: Produce, flush: Callable[[], None]) -> None:
            for partition in (0, 1):
                produce(b"first", partition)
            flush()
            proxy.edit_request = edit
            produce(LOST, 1)
            assert asked.wait(TIMEOUT_S)
            produce(FLIPPED, 0)
            produce(b"behind it", 0)
            queued.set()
            flush()

        client(servers, use)
        assert flipped
        for partition, expected in ((0, [b"first", FLIPPED, b"behind it"]), (1, [b"first", LOST])):
            end = cluster.leader("t", partition).partitions.get(
                TopicPartition(TopicName("t"), PartitionIndex(partition))
            )
            rows = Raylog().read(cluster.bootstrap_servers, "t", partition, end.log_end_offset)
            assert [value for _, value, _ in rows] == expected


def begin_with_confluent(servers: str) -> tuple[bool, str]:
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "transactional.id": "mine"})
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        producer.init_transactions(TIMEOUT_S)
    error = raised.value.args[0]
    return error.retriable(), error.str()


def begin_with_kafka_python(servers: str) -> tuple[bool, str]:
    producer = kafka.KafkaProducer(bootstrap_servers=servers.split(","), transactional_id="mine")
    try:
        with pytest.raises(kafka.errors.KafkaError) as raised:
            producer.init_transactions()
    finally:
        producer.close(timeout=0)
    return raised.value.retriable, repr(raised.value)


def begin_with_aiokafka(servers: str) -> tuple[bool, str]:
    async def run() -> tuple[bool, str]:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, transactional_id="mine")
        try:
            with pytest.raises(aiokafka.errors.KafkaError) as raised:
                await producer.start()
        finally:
            await producer.stop()
        return raised.value.retriable, repr(raised.value)

    return asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


@pytest.mark.parametrize("begin", [begin_with_confluent, begin_with_kafka_python, begin_with_aiokafka])
def test_transactional_producer_fails_at_once(
    automatic: InProcessCluster, begin: Callable[[str], tuple[bool, str]]
) -> None:
    """There are no transactions: an error that clients retry would make them ask for ever."""
    begun = time.monotonic()
    retriable, text = begin(automatic.bootstrap_servers)
    assert not retriable
    assert re.search("transactional.?id.?authorization", text, re.IGNORECASE), text
    assert time.monotonic() - begun < TIMEOUT_S / 2
