"""Interceptors of producers and consumers, against real brokers in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled, scaled_ms
from kit.waiting import wait_until
from raylog.client import (
    CommittedOffset,
    Consumer,
    ConsumerInterceptor,
    ConsumerRecord,
    Landed,
    Producer,
    ProducerBatch,
    ProducerInterceptor,
    ProducerRecord,
    RecordMetadata,
)
from raylog.client.aio import AsyncConsumer, AsyncProducer
from raylog.protocol.errors import InvalidPartitions, MessageTooLarge
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

EARLIEST = {"auto_offset_reset": "earliest"}
TP = TopicPartition(TopicName("t"), PartitionIndex(0))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path) as running:
        running.create_topic("t", partitions=1)
        yield running


class Marks(ProducerInterceptor):
    """Puts its mark behind every value, and notes what becomes of records."""

    def __init__(self, mark: bytes) -> None:
        self.mark = mark
        self.acknowledged: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()
        self.closed = 0

    def on_send(self, record: ProducerRecord, /) -> ProducerRecord:
        return record._replace(value=record.value + self.mark)

    def on_send_batch(self, batch: ProducerBatch, /) -> ProducerBatch:
        return batch._replace(values=[value + self.mark for value in batch.values])

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None, /) -> None:
        self.acknowledged.put((metadata[:3], error))

    def on_acknowledgement_batch(self, landed: Sequence[Landed], error: Exception | None, /) -> None:
        self.acknowledged.put((landed, error))

    def close(self) -> None:
        self.closed += 1


class Broken(ProducerInterceptor, ConsumerInterceptor):
    """Raises at everything."""

    def _raise(self, *_: Any) -> Any:
        raise ValueError("broken")

    on_send = on_send_batch = on_acknowledgement = on_acknowledgement_batch = close = _raise
    on_consume = on_consume_columns = on_commit = _raise


class Odd(ConsumerInterceptor):
    """Lets every second record through."""

    def __init__(self) -> None:
        self.committed: list[dict[str, int]] = []

    def on_consume(self, records: dict[TopicPartition, list[ConsumerRecord]], /) -> Any:
        return {tp: kept for tp, some in records.items() if (kept := [r for r in some if r.offset % 2])}

    def on_consume_columns(self, table: pa.Table, /) -> pa.Table:
        return table.take([n for n, offset in enumerate(table["offset"].to_pylist()) if offset % 2])

    def on_commit(self, offsets: Mapping[TopicPartition, CommittedOffset], /) -> None:
        self.committed.append({str(tp): committed.offset for tp, committed in offsets.items()})


def values(servers: str) -> list[bytes]:
    with Consumer(servers, ["t"], **EARLIEST) as consumer:
        return [record.value for record in consumer.iterate(until_end=True)]


def test_records_go_through_a_chain_and_its_members_hear_where_they_landed(
    cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    servers, first, last = cluster.bootstrap_servers, Marks(b"1"), Marks(b"2")
    with Producer(servers, linger_ms=0, interceptors=[first, Broken(), last]) as producer:
        for number in range(20):
            assert producer.send("t", b"a", partition=0).result(scaled(10)).offset == number
        producer.send_batch("t", [b"b", b"c"]).result(scaled(10))
    assert values(servers) == [b"a12"] * 20 + [b"b12", b"c12"]
    for marks in (first, last):
        heard = [marks.acknowledged.get(timeout=scaled(10)) for _ in range(21)]
        assert heard == [(("t", 0, number), None) for number in range(20)] + [([Landed("t", 0, 20, 2)], None)]
        assert marks.acknowledged.empty()
        assert marks.closed == 1
    [line] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert line.getMessage() == "interceptor Broken raised; records go on without it"


def test_interceptors_may_be_given_by_an_iterator(cluster: InProcessCluster) -> None:
    """It was empty once they were checked, and none was called."""
    marks: Any = iter([Marks(b"1")])
    with Producer(cluster.bootstrap_servers, linger_ms=0, interceptors=marks) as producer:
        producer.send("t", b"a", partition=0).result(scaled(10))
    odd: Any = iter([Odd()])
    with Consumer(cluster.bootstrap_servers, ["t"], interceptors=odd, **EARLIEST) as consumer:
        assert [record.value for record in consumer.iterate(until_end=True)] == []
    assert values(cluster.bootstrap_servers) == [b"a1"]


def test_records_that_are_not_delivered_are_told(cluster: InProcessCluster) -> None:
    marks = Marks(b"")
    with Producer(
        cluster.bootstrap_servers, max_request_size=1_000, max_block_ms=500, interceptors=[marks]
    ) as producer:
        with pytest.raises(MessageTooLarge):
            producer.send("t", b"v" * 2_000)
        with pytest.raises(MessageTooLarge):
            producer.send_batch("t", [b"v" * 2_000])
        with pytest.raises(InvalidPartitions):
            producer.send("t", b"v", partition=7)
    told = [marks.acknowledged.get(timeout=scaled(10)) for _ in range(3)]
    assert [(at, type(error)) for at, error in told] == [
        (("t", -1, -1), MessageTooLarge),
        ([], MessageTooLarge),
        (("t", 7, -1), InvalidPartitions),
    ]


def test_what_is_read_goes_through_a_chain_however_it_is_read(cluster: InProcessCluster) -> None:
    servers = cluster.bootstrap_servers
    with Producer(servers) as producer:
        producer.send_batch("t", [b"v"] * 10).result(scaled(10))
    with Consumer(servers, ["t"], interceptors=[Broken(), Odd()], **EARLIEST) as consumer:
        assert [record.offset for record in consumer.iterate(until_end=True)] == [1, 3, 5, 7, 9]
        consumer.seek_to_beginning()
        polled = wait_until(lambda: consumer.poll(1_000, max_records=4), 10, "records come")
        assert polled is not None
        assert [record.offset for record in polled[TP]] == [1, 3]
        assert consumer.position("t", 0) == 4
        assert consumer.poll_columns(scaled_ms(10_000))["offset"].to_pylist() == [5, 7, 9]
        consumer.seek("t", 0, 0)
        for record in consumer:
            assert record.offset == 1
            break
        assert [record.offset for record in consumer.iterate(until_end=True)] == [3, 5, 7, 9]


def test_clients_for_asyncio_have_interceptors_too(cluster: InProcessCluster) -> None:
    marks = Marks(b"!")

    async def run() -> list[tuple[int, bytes]]:
        servers = cluster.bootstrap_servers
        async with (
            AsyncProducer(servers, interceptors=[marks]) as producer,
            AsyncConsumer(servers, ["t"], interceptors=[Odd()], **EARLIEST) as consumer,
        ):
            for _ in range(3):
                await producer.aiosend("t", b"a")
            await (await producer.send_batch("t", [b"b", b"c", b"d"]))
            await producer.flush()
            with pytest.raises(MessageTooLarge):
                await producer.aiosend("t", b"v" * 2_000_000)
            first = await anext(consumer)
            polled = await consumer.poll(scaled_ms(10_000))
            return [(record.offset, record.value) for record in (first, *polled[TP])]

    found = asyncio.run(run())
    assert found[0] == (1, b"a!")
    assert set(found) <= {(1, b"a!"), (3, b"b!"), (5, b"d!")}
    told = [marks.acknowledged.get(timeout=scaled(10)) for _ in range(5)]
    assert [type(error) for _, error in told].count(MessageTooLarge) == 1
    assert marks.closed == 1
