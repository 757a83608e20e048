"""Every way to send × every value that can never be sent: it is refused at the call, and the producer goes on."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kit.cluster import InProcessCluster
from kit.machine import scaled
from kit.waiting import wait_until
from raylog.client import Delivery, Producer
from raylog.client.aio import AsyncProducer
from raylog.protocol.errors import InvalidConfig, InvalidPartitions, InvalidRecord, InvalidTopic, RaylogError

SURROGATE = "bad\udc80"
Refusal = type[RaylogError]

RECORDS: dict[str, tuple[dict[str, Any], Refusal]] = {
    "timestamp is a float": ({"timestamp": 1.5}, InvalidRecord),
    "timestamp is a text": ({"timestamp": "now"}, InvalidRecord),
    "timestamp is negative": ({"timestamp": -1}, InvalidRecord),
    "timestamp is too large": ({"timestamp": 2**63}, InvalidRecord),
    "timestamp is a truth": ({"timestamp": True}, InvalidRecord),
    "partition is a float": ({"partition": 1.0}, InvalidPartitions),
    "partition is a text": ({"partition": "1"}, InvalidPartitions),
    "partition is a truth": ({"partition": True}, InvalidPartitions),
    "partition is negative": ({"partition": -1}, InvalidPartitions),
    "header name has a surrogate": ({"headers": [(SURROGATE, b"")]}, InvalidRecord),
    "header name is bytes": ({"headers": [(b"h", b"")]}, InvalidRecord),
    "header value is a text": ({"headers": [("h", "text")]}, InvalidRecord),
    "header value is in a dict, and a text": ({"headers": {"h": "text"}}, InvalidRecord),
    "headers are a text": ({"headers": "ab"}, InvalidRecord),
    "headers are bytes": ({"headers": b"ab"}, InvalidRecord),
    "headers are a number": ({"headers": 5}, InvalidRecord),
    "headers are triples": ({"headers": [("h", b"", b"")]}, InvalidRecord),
    "headers are no pairs": ({"headers": [5]}, InvalidRecord),
    "topic has a surrogate": ({"topic": SURROGATE}, InvalidTopic),
    "topic is empty": ({"topic": ""}, InvalidTopic),
    "topic is bytes": ({"topic": b"t"}, InvalidTopic),
    "topic is nothing": ({"topic": None}, InvalidTopic),
    "topic is a list": ({"topic": ["t"]}, InvalidTopic),
    "topic has a slash": ({"topic": "no/such"}, InvalidTopic),
    "topic is too long": ({"topic": "x" * 250}, InvalidTopic),
    "value cannot be packed": ({"value": object()}, InvalidRecord),
    "value has a surrogate": ({"value": SURROGATE}, InvalidRecord),
    "value is too large a number": ({"value": 2**64}, InvalidRecord),
    "key cannot be packed": ({"key": object()}, InvalidRecord),
}
COLUMNS: dict[str, tuple[dict[str, Any], Refusal]] = {
    "values are one value": ({"values": b"abc"}, InvalidRecord),
    "values are one text": ({"values": "abc"}, InvalidRecord),
    "values are one bytearray": ({"values": bytearray(b"abc")}, InvalidRecord),
    "values are one number": ({"values": 5}, InvalidRecord),
    "values are a dict": ({"values": {"a": 1}}, InvalidRecord),
    "values are a set": ({"values": {b"a"}}, InvalidRecord),
    "values are a generator": ({"values": (b"a" for _ in range(1))}, InvalidRecord),
    "values are Arrow's numbers": ({"values": pa.array([2**63], pa.uint64()).cast(pa.decimal128(20))}, InvalidRecord),
    "a value cannot be packed": ({"values": [b"a", object()]}, InvalidRecord),
    "a value has a surrogate": ({"values": [SURROGATE]}, InvalidRecord),
    "keys are one value": ({"values": [b"a"], "keys": b"k"}, InvalidRecord),
    "timestamps are one number": ({"values": [b"a"], "timestamps": 5}, InvalidRecord),
    "a timestamp is a float": ({"values": [b"a"], "timestamps": [1.5]}, InvalidRecord),
    "a timestamp is a text": ({"values": [b"a"], "timestamps": ["now"]}, InvalidRecord),
    "a timestamp is too large": ({"values": [b"a"], "timestamps": [2**63]}, InvalidRecord),
    "a timestamp is negative": ({"values": [b"a"], "timestamps": [-1]}, InvalidRecord),
    "a timestamp is null": ({"values": [b"a"], "timestamps": [None]}, InvalidRecord),
    "a partition is a float": ({"values": [b"a"], "partition": [0.5]}, InvalidRecord),
    "the partition is a float": ({"values": [b"a"], "partition": 1.0}, InvalidPartitions),
    "the partition is a text": ({"values": [b"a"], "partition": "1"}, InvalidPartitions),
    "the partition is a truth": ({"values": [b"a"], "partition": True}, InvalidPartitions),
    "the partition is negative": ({"values": [b"a"], "partition": -1}, InvalidPartitions),
    "a partition is negative": ({"values": [b"a"] * 2, "partition": [9, -1]}, InvalidPartitions),
    "a header name has a surrogate": ({"values": [b"a"], "headers": [[(SURROGATE, b"")]]}, InvalidRecord),
    "a header value is a number": ({"values": [b"a"], "headers": [[("h", 5)]]}, InvalidRecord),
    "headers are a dict": ({"values": [b"a"], "headers": {"h": b""}}, InvalidRecord),
    "topic has a surrogate": ({"topic": SURROGATE, "values": [b"a"]}, InvalidTopic),
    "topic is bytes": ({"topic": b"t", "values": [b"a"]}, InvalidTopic),
    "topic is a list": ({"topic": ["t"], "values": [b"a"]}, InvalidTopic),
}
SERIALIZED: dict[str, Any] = {"text": "text", "a number": 5, "a list": [1], "a truth": True}
"""What a serializer of the user's gives back in place of bytes."""


@pytest.mark.parametrize(
    ("call", "table"),
    [
        (Producer.send, RECORDS),
        (AsyncProducer.aiosend, RECORDS),
        (Producer.send_batch, COLUMNS),
        (AsyncProducer.send_batch, COLUMNS),
    ],
)
def test_every_argument_of_the_senders_has_a_row(
    call: Callable[..., object], table: dict[str, tuple[dict[str, Any], Refusal]]
) -> None:
    rows = {name for bad, _ in table.values() for name in bad}
    assert rows == set(inspect.signature(call).parameters) - {"self"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = {"auto.create.topics.enable": "false"}
    with InProcessCluster(tmp_path_factory.mktemp("cluster"), brokers=1, config=config) as running:
        running.create_topic("t", partitions=4)
        running.create_topic("other")
        yield running.bootstrap_servers


@pytest.fixture(scope="module")
def producer(servers: str) -> Iterator[Producer]:
    with Producer(servers, linger_ms=0) as made:
        yield made


def wrong(call: Callable[[], object], error: Refusal) -> str:
    """What is wrong with how ``call`` was refused; empty when nothing is."""
    try:
        return f"it gave {call()!r}"
    except error:
        return ""
    except Exception as other:  # noqa: BLE001 (it is looked at)
        return f"it raised {other!r}"


async def wrong_in_a_loop(call: Awaitable[object], error: Refusal) -> str:
    try:
        return f"it gave {await call!r}"
    except error:
        return ""
    except Exception as other:  # noqa: BLE001
        return f"it raised {other!r}"


def goes_on(producer: Producer) -> bool:
    """Whether records are delivered, to this topic and to another one."""
    deliveries = [producer.send(topic, b"fine") for topic in ("t", "other")]
    producer.flush(20)
    return [delivery.exception(scaled(20)) for delivery in deliveries] == [None, None]


def record(bad: dict[str, Any]) -> dict[str, Any]:
    return {"topic": "t", "value": b"v", **bad}


def test_bad_records_and_columns_are_refused(producer: Producer) -> None:
    complaints, after = {}, []
    for name, (bad, error) in RECORDS.items():
        complaints[name] = wrong(lambda: producer.send(**record(bad)), error)  # noqa: B023
        after.append(producer.send("other", b"fine"))
    for name, (bad, error) in COLUMNS.items():
        complaints[name] = wrong(lambda: producer.send_batch(**{"topic": "t", **bad}), error)  # noqa: B023
        after.append(producer.send("other", b"fine"))
    assert {name: complaint for name, complaint in complaints.items() if complaint} == {}
    assert [delivery.exception(scaled(20)) for delivery in after] == [None] * len(after)
    assert goes_on(producer)


def test_bad_records_and_columns_are_refused_in_a_loop(servers: str) -> None:
    async def main() -> None:
        complaints, after = {}, []
        async with AsyncProducer(servers, linger_ms=0) as made:
            for name, (bad, error) in RECORDS.items():
                complaints[name] = await wrong_in_a_loop(made.aiosend(**record(bad)), error)
                after.append(await made.aiosend("other", b"fine"))
            for name, (bad, error) in COLUMNS.items():
                complaints[name] = await wrong_in_a_loop(made.send_batch(**{"topic": "t", **bad}), error)
                after.append(await made.aiosend("other", b"fine"))
            for delivery in after:
                await delivery
        assert {name: complaint for name, complaint in complaints.items() if complaint} == {}

    asyncio.run(main())


@pytest.mark.parametrize("result", SERIALIZED.values(), ids=SERIALIZED)
@pytest.mark.parametrize("of", ["key", "value"])
def test_a_serializer_has_to_give_bytes(servers: str, of: str, result: Any) -> None:
    config = {f"{of}_serializer": lambda value: b"fine" if value == b"fine" else result, "linger_ms": 0}
    with Producer(servers, **config) as made:
        with pytest.raises(InvalidRecord, match=f"{of} serializer"):
            made.send("t", b"v", b"k")
        with pytest.raises(InvalidRecord, match=f"{of} serializer"):
            made.send_batch("t", [b"v"], [b"k"])
        assert made.send("t", b"fine", b"fine").exception(scaled(20)) is None


def test_a_serializer_has_to_give_bytes_in_a_loop(servers: str) -> None:
    async def main() -> None:
        async with AsyncProducer(servers, value_serializer=lambda value: value) as made:
            for call in (made.aiosend("t", "text"), made.send_batch("t", ["text"])):
                assert await wrong_in_a_loop(call, InvalidRecord) == ""
            await (await made.aiosend("t", b"fine"))

    asyncio.run(main())


def test_what_can_be_sent_is_taken_in_every_form(producer: Producer) -> None:
    """Numbers of numpy's, bytes of every kind, headers in a dict, a serializer's null."""
    landed = producer.send(
        "t", bytearray(b"v"), memoryview(b"k"), partition=np.int64(2), timestamp=np.int32(5), headers={"h": b"1"}
    )
    assert landed.result(scaled(20))[1::2] == (2, 5)
    runs = producer.send_batch("t", (b"v", b"w"), partition=np.int64(3), timestamps=np.array([5, 6])).result(scaled(20))
    assert [run[1::2] for run in runs] == [(3, 2)]


@pytest.mark.parametrize("client_id", [SURROGATE, b"bytes"])
def test_a_client_id_that_is_no_text_is_refused(servers: str, client_id: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"client\.id"):
        Producer(servers, client_id=client_id)


class Unencodable(str):
    """A header's name that only fails when it is encoded, in the sender."""

    def encode(self, *_: Any, **__: Any) -> bytes:
        raise ZeroDivisionError("a name's own mistake")


def test_what_fails_in_the_sender_fails_one_batch(servers: str, caplog: pytest.LogCaptureFixture) -> None:
    with Producer(servers, linger_ms=0) as made:
        before = made.send("t", b"before", partition=0)
        bad = made.send("t", b"v", partition=1, headers=[(Unencodable("h"), b"")])
        with pytest.raises(InvalidRecord, match=r"t-1: .*a name's own mistake"):
            bad.result(scaled(20))
        assert before.exception(scaled(20)) is None
        assert [made.send("t", b"after", partition=n).exception(scaled(20)) for n in range(4)] == [None] * 4
    assert "t-1" in caplog.text


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, RuntimeError])
def test_nothing_that_a_callback_raises_ends_the_sender(servers: str, error: type[BaseException]) -> None:
    def raises(_: Delivery) -> None:
        ran.set()
        raise error("from a callback")

    ran = threading.Event()
    with Producer(servers, linger_ms=60_000) as made:
        delivery = made.send("t", b"x")  # which lingers until the callback is set: the sender's thread runs it
        delivery.add_done_callback(raises)
        made.flush(20)
        wait_until(ran.is_set, 20, "the callback ran")
        assert goes_on(made)


def test_a_partitioner_that_raises_fails_one_call(servers: str) -> None:
    def choose(key: bytes | None, _: Sequence[int], __: Sequence[int]) -> int:
        if key is None:
            raise KeyError("no key")
        return 1

    with Producer(servers, partitioner=choose) as made:
        with pytest.raises(KeyError):
            made.send("t", b"v")
        with pytest.raises(KeyError):
            made.send_batch("t", [b"v"])
        assert made.send("t", b"v", b"k").result(scaled(20)).partition == 1
