"""Subscriptions and assignments of consumers, against kio's types of every version, and bytes that are none."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_entity_schema
from kio.serial import entity_writer
from kio.static.constants import EntityType

from raylog.protocol.errors import InvalidRequest
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.wire.consumer_protocol import (
    assigned_partitions,
    encode_assignment,
    encode_subscription,
    subscribed_topics,
)
from raylog.protocol.wire.entities import entity_reader
from raylog.protocol.wire.primitives import Reader

VERSIONS = range(4)


def kio_type(name: str, version: int) -> Any:
    return load_entity_schema(name, version, EntityType.data)


def write(kind: Any, version: int, **fields: Any) -> bytes:
    buffer = BytesIO(version.to_bytes(2, "big"))
    buffer.seek(2)
    entity_writer(kind)(buffer, kind(**fields))
    return buffer.getvalue()


def read(kind: Any, data: bytes) -> Any:
    reader = Reader(data, 2, flexible=False)
    entity = entity_reader(kind)(reader)
    reader.finish()
    return entity


def tp(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))


def test_what_is_written_is_version_0_and_whole() -> None:
    subscription = read(kio_type("consumer_protocol_subscription", 0), encode_subscription({"b", "a"}))
    assert (subscription.topics, subscription.user_data) == (("a", "b"), None)
    assignment = read(
        kio_type("consumer_protocol_assignment", 0), encode_assignment([tp("t", 1), tp("s", 2), tp("t", 0)])
    )
    assert [(part.topic, part.partitions) for part in assignment.assigned_partitions] == [("s", (2,)), ("t", (0, 1))]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_read(version: int) -> None:
    kind = kio_type("consumer_protocol_subscription", version)
    later = {"owned_partitions": ()} if version >= 1 else {}
    assert subscribed_topics(write(kind, version, topics=("a", "b"), user_data=b"x", **later)) == {"a", "b"}
    kind = kio_type("consumer_protocol_assignment", version)
    topic = kind.__dataclass_fields__["assigned_partitions"].type.__args__[0]
    parts = (topic(topic=TopicName("t"), partitions=(3, 4)),)
    assert assigned_partitions(write(kind, version, assigned_partitions=parts)) == {tp("t", 3), tp("t", 4)}


def test_a_version_to_come_begins_as_the_others_do() -> None:
    assert subscribed_topics(b"\x00\x09" + encode_subscription(["a"])[2:] + b"more") == {"a"}


def test_no_bytes_are_no_partitions() -> None:
    assert assigned_partitions(b"") == frozenset()


@given(
    topics=st.frozensets(st.text(max_size=20).filter(str.isprintable)),
    partitions=st.frozensets(st.builds(tp, st.text("abc.-_", max_size=5), st.integers(0, 2**31 - 1))),
)
def test_what_is_written_is_read(topics: frozenset[str], partitions: frozenset[TopicPartition]) -> None:
    assert subscribed_topics(encode_subscription(topics)) == topics
    assert assigned_partitions(encode_assignment(partitions)) == partitions


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x00", id="no version"),
        pytest.param(b"\xff\xff\x00\x00\x00\x00", id="a negative version"),
        pytest.param(b"\x00\x00\x7f\xff\xff\xff", id="an array longer than the bytes"),
        pytest.param(b"\x00\x00\x00\x00\x00\x01\x00\x02a", id="a name that is cut off"),
    ],
)
def test_bytes_that_are_none(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        subscribed_topics(data)
    with pytest.raises(InvalidRequest):
        assigned_partitions(data)
