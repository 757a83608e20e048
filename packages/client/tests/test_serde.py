from __future__ import annotations

from typing import Any

import pytest

from raylog.client.arguments.serde import deserializer, serializer
from raylog.protocol.errors import InvalidConfig, InvalidRecord


@pytest.mark.parametrize(
    ("choice", "value"),
    [
        ("msgpack", {"carrier": "UA", "delay": -3, "tags": ["a", None], 7: 1.5}),
        ("json", {"carrier": "ÜA", "delay": None}),
        ("str", "Zürich"),
    ],
)
def test_values_come_back_as_they_were(choice: str, value: Any) -> None:
    decode = deserializer(choice)
    data = serializer(choice)(value)
    assert isinstance(data, bytes)
    assert decode is not None
    assert decode(data) == value


def test_the_default_leaves_bytes_as_they_are_and_packs_the_rest() -> None:
    write = serializer(None)
    assert write(b"raw") == write(memoryview(b"raw")) == write(bytearray(b"raw")) == b"raw"
    assert write({"a": 1}) == serializer("msgpack")({"a": 1})
    assert deserializer(None) is None


def test_a_named_serializer_gives_bytes_back_as_bytes_or_refuses_them() -> None:
    decode = deserializer("msgpack")
    assert decode is not None
    assert decode(serializer("msgpack")(b"raw") or b"") == b"raw"
    assert serializer("bytes")(bytearray(b"raw")) == b"raw"
    assert deserializer("bytes") is None


@pytest.mark.parametrize(
    ("choice", "value"),
    [("bytes", "text"), ("json", {1, 2}), ("json", b"raw"), ("str", b"raw"), ("str", 5), ("msgpack", object())],
)
def test_a_value_that_cannot_be_written_is_refused(choice: str, value: Any) -> None:
    with pytest.raises(InvalidRecord):
        serializer(choice)(value)


@pytest.mark.parametrize(
    ("choice", "data"),
    [
        ("msgpack", b"\xc1\xff"),
        ("msgpack", b"\x81\x90\x01"),  # a list as a map's key
        ("msgpack", b"\x91" * 100_000),
        ("msgpack", b""),
        ("json", b"\xc1\xff"),
        ("json", b"[" * 100_000),
        ("str", b"\xc1\xff"),
    ],
)
def test_bytes_that_cannot_be_read_are_refused(choice: str, data: bytes) -> None:
    decode = deserializer(choice)
    assert decode is not None
    with pytest.raises(InvalidRecord):
        decode(data)


def test_functions_are_taken_and_unknown_names_refused() -> None:
    assert serializer(str.encode)("a") == b"a"
    with pytest.raises(InvalidConfig, match="avro"):
        serializer("avro")
    with pytest.raises(InvalidConfig, match="avro"):
        deserializer("avro")
