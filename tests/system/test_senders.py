"""Every way of sending × everything bad that may happen on the way to a broker.

Each record is there once, in order, or the error names the partition; no other topic is hurt, and the sender goes on.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled, scaled_ms
from kit.proxied import proxied
from kit.proxy import Fate, FrameProxy
from kit.reading import all_records
from raylog.client import Producer
from raylog.client.aio import AsyncProducer
from raylog.client.cli.produce import produce
from raylog.client.ray_data.sink import TopicDatasink
from raylog.coordination.host.free_ports import free_port
from raylog.protocol.errors import MessageTooLarge, RaylogError
from raylog.protocol.records import Record, encode_batch
from raylog.spark.writing.write_task import WriteTask, send_rows

PRODUCE, METADATA, INIT_PRODUCER_ID = 0, 3, 22
SETTINGS: dict[str, Any] = {
    "batch_size": 16_000,
    "linger_ms": 20,
    "retry_backoff_ms": 10,
    "reconnect_backoff_ms": 10,
    "request_timeout_ms": 2_000,
}
SMALL = "2000"
"""A topic's max.message.bytes: it takes some twelve rows at once."""
ROWS = [b"%04d" % number + random.Random(number).randbytes(48).hex().encode() for number in range(120)]
"""They make one batch."""
LARGE = random.Random(0).randbytes(1_500).hex().encode()
"""A record that a small topic never takes."""

_numbers = itertools.count()

Send = Callable[[str, Sequence[bytes]], object]
"""Send the values to partition 0 of the topic. Raises the first error once the fate of all is known."""


# --- who sends ---


@dataclass
class World:
    """One broker behind a proxy, for all tests of this module."""

    cluster: InProcessCluster
    proxy: FrameProxy
    servers: str

    def topic(self, **config: str) -> str:
        name = f"topic-{next(_numbers)}"
        self.cluster.create_topic(name, config=config)
        return name

    def values(self, topic: str) -> list[bytes | None]:
        return [record.value for record in all_records(self.cluster.bootstrap_servers, topic)]


@contextmanager
def by_rows(world: World, servers: str, **settings: Any) -> Iterator[Send]:
    with Producer(servers, **SETTINGS | settings) as producer:

        def send(topic: str, values: Sequence[bytes]) -> None:
            sent = [producer.send(topic, value, partition=0) for value in values]
            producer.flush(60)
            for error in [error for delivery in sent if (error := delivery.exception(0))]:
                raise error

        yield send


def in_batches(form: Callable[[Sequence[bytes]], Any]) -> Sender:
    @contextmanager
    def opened(world: World, servers: str, **settings: Any) -> Iterator[Send]:
        with Producer(servers, **SETTINGS | settings) as producer:
            yield lambda topic, values: producer.send_batch(topic, form(values), partition=0).result(scaled(60))

    return opened


async def one_by_one(producer: AsyncProducer, topic: str, values: Sequence[bytes]) -> None:
    sent = [await producer.aiosend(topic, value, partition=0) for value in values]
    await producer.flush(60)
    for error in [error for delivery in sent if (error := delivery.exception())]:
        raise error


async def all_at_once(producer: AsyncProducer, topic: str, values: Sequence[bytes]) -> None:
    await (await producer.send_batch(topic, list(values), partition=0))


def in_a_loop(how: Callable[[AsyncProducer, str, Sequence[bytes]], Coroutine[Any, Any, None]]) -> Sender:
    @contextmanager
    def opened(world: World, servers: str, **settings: Any) -> Iterator[Send]:
        async def make() -> AsyncProducer:
            return AsyncProducer(servers, **SETTINGS | settings)

        with asyncio.Runner() as runner:
            producer = runner.run(make())
            try:
                yield lambda topic, values: runner.run(how(producer, topic, values))
            finally:
                runner.run(producer.close())

    return opened


@contextmanager
def by_command(world: World, servers: str, **settings: Any) -> Iterator[Send]:
    config = [f"{name.replace('_', '.')}={value}" for name, value in (SETTINGS | settings).items()]
    file = Path(world.cluster.root, "lines")

    def send(topic: str, values: Sequence[bytes]) -> None:
        file.write_bytes(b"".join(value + b"\n" for value in values))
        produce(topic, file, partition=0, config=config, bootstrap_server=servers)

    yield send


@contextmanager
def by_spark_task(world: World, servers: str, **settings: Any) -> Iterator[Send]:
    def send(topic: str, values: Sequence[bytes]) -> None:
        rows = pa.RecordBatch.from_pydict({"value": values, "partition": [0] * len(values)})
        list(send_rows(WriteTask(servers, topic, SETTINGS | settings), iter([rows])))

    yield send


@contextmanager
def by_ray_task(world: World, servers: str, **settings: Any) -> Iterator[Send]:
    def send(topic: str, values: Sequence[bytes]) -> None:
        rows = pa.table({"value": values, "partition": [0] * len(values)})
        TopicDatasink(servers, topic, SETTINGS | settings).write([rows], None)

    yield send


Sender = Callable[..., AbstractContextManager[Send]]
SENDERS: dict[str, Sender] = {
    "send": by_rows,
    "send_batch of rows": in_batches(list),
    "send_batch of columns": in_batches(pa.array),
    "async send": in_a_loop(one_by_one),
    "async send_batch": in_a_loop(all_at_once),
    "raylog produce": by_command,
    "Spark's task": by_spark_task,
    "Ray Data's task": by_ray_task,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with proxied(tmp_path_factory.mktemp("senders")) as (cluster, proxy, servers):
        yield World(cluster, proxy, servers)


@pytest.fixture(autouse=True)
def _all_passes_again(world: World) -> Iterator[None]:
    yield
    world.proxy.on_request = world.proxy.on_answer = lambda _: Fate.PASS


# --- what happens on the way ---


@dataclass
class Losses:
    """What becomes of the first frames of one API on one side."""

    side: str
    api: int
    fate: Fate
    count: int = 1
    before: int = 0
    """So many pass first."""
    met: int = 0

    def arm(self, proxy: FrameProxy) -> None:
        setattr(proxy, f"on_{self.side}", self._decide)

    def _decide(self, api: int) -> Fate:
        if api != self.api:
            return Fate.PASS
        self.met += 1
        return self.fate if self.before < self.met <= self.before + self.count else Fate.PASS


LOSSES = {
    "cut before the request": Losses("request", PRODUCE, Fate.CUT),
    "cut within the request": Losses("request", PRODUCE, Fate.HALF),
    "cut behind the request": Losses("request", PRODUCE, Fate.LAST),
    "cut before the answer": Losses("answer", PRODUCE, Fate.CUT),
    "cut within the answer": Losses("answer", PRODUCE, Fate.HALF),
    "cut behind the answer": Losses("answer", PRODUCE, Fate.LAST),
    "cut before four answers": Losses("answer", PRODUCE, Fate.CUT, 4),
    "cut before metadata": Losses("answer", METADATA, Fate.CUT),
    "cut before the producer's id": Losses("answer", INIT_PRODUCER_ID, Fate.CUT),
}


@pytest.mark.parametrize("small", [False, True], ids=["whole", "split"])
@pytest.mark.parametrize("what", LOSSES)
@pytest.mark.parametrize("sender", SENDERS)
def test_lost_connection_loses_and_repeats_nothing(world: World, sender: str, what: str, small: bool) -> None:
    """Also while the halves of a batch that the topic refused are on their way."""
    topic, other = world.topic(**({"max.message.bytes": SMALL} if small else {})), world.topic()
    losses = replace(LOSSES[what], before=1 if small and LOSSES[what].api == PRODUCE else 0)
    with SENDERS[sender](world, world.servers) as send:
        if losses.api == PRODUCE:
            send(other, [b"before"])
        losses.arm(world.proxy)
        send(topic, ROWS)
        assert losses.met > losses.before
        send(other, [b"after"])
    assert world.values(topic) == ROWS
    assert world.values(other) == [b"before", b"after"][losses.api != PRODUCE :]


@pytest.mark.parametrize("sender", SENDERS)
def test_bootstrap_server_that_refuses_costs_nothing(world: World, sender: str) -> None:
    topic = world.topic()
    with SENDERS[sender](world, f"127.0.0.1:{free_port('127.0.0.1')},{world.servers}") as send:
        send(topic, ROWS)
    assert world.values(topic) == ROWS


# --- what ends in an error ---


@pytest.mark.parametrize("sender", SENDERS)
def test_record_that_no_split_fits_fails_alone_and_is_named(world: World, sender: str) -> None:
    topic, other = world.topic(**{"max.message.bytes": SMALL}), world.topic()
    with SENDERS[sender](world, world.servers) as send:
        with pytest.raises(MessageTooLarge, match=rf"{topic}-0\b"):
            send(topic, [*ROWS[:70], LARGE, *ROWS[70:]])
        send(other, ROWS)
        send(topic, ROWS[:20])
    assert world.values(topic) == ROWS + ROWS[:20]
    assert world.values(other) == ROWS


@pytest.mark.parametrize("side", ["request", "answer"])
@pytest.mark.parametrize("sender", SENDERS)
def test_broker_that_stays_silent_is_named_and_sender_goes_on(world: World, sender: str, side: str) -> None:
    topic, other = world.topic(), world.topic()
    settings = {"delivery_timeout_ms": scaled_ms(700), "request_timeout_ms": scaled_ms(300)}
    with SENDERS[sender](world, world.servers, **settings) as send:
        send(other, [b"before"])
        Losses(side, PRODUCE, Fate.DROP, count=1 << 30).arm(world.proxy)
        with pytest.raises(RaylogError, match=rf"{topic}-0\b"):
            send(topic, ROWS)
        world.proxy.on_request = world.proxy.on_answer = lambda _: Fate.PASS
        send(topic, [b"next"])
        send(other, [b"after"])
    assert world.values(topic) == [*(ROWS if side == "answer" else []), b"next"]
    assert world.values(other) == [b"before", b"after"]


# --- an actor's handle, which has no connection: the caller sends a batch again ---


def test_batch_sent_again_through_a_handle_is_there_once(world: World) -> None:
    topic, other = world.topic(), world.topic()
    batch = encode_batch([Record(row) for row in ROWS], producer_id=9_000_001, producer_epoch=0, base_sequence=0)
    broker = world.cluster.brokers[0]
    assert [broker.produce(topic, 0, batch) for _ in range(3)] == [(0, len(ROWS) - 1)] * 3
    assert broker.produce(other, 0, encode_batch([Record(b"after")])) == (0, 0)
    assert world.values(topic) == ROWS


def test_batch_too_large_for_a_handle_is_refused_whole(world: World) -> None:
    topic = world.topic(**{"max.message.bytes": SMALL})
    broker = world.cluster.brokers[0]
    with pytest.raises(MessageTooLarge, match=rf"{topic}-0\b"):
        broker.produce(topic, 0, encode_batch([Record(row) for row in ROWS]))
    assert broker.produce(topic, 0, encode_batch([Record(row) for row in ROWS[:10]])) == (0, 9)
    assert world.values(topic) == ROWS[:10]
