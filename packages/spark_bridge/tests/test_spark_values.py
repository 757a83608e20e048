"""Values become text or structs while they are read, and those that do not fit become what the mode says."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.spark.reading.values import MalformedValue, ParseMode, ValueDecoding, ValueFormat, decode_values

TP = TopicPartition(TopicName("clicks"), PartitionIndex(1))
TIME = pa.timestamp("us", tz="UTC")


def decode(
    format_: str,
    type_: pa.DataType,
    *values: bytes | None,
    mode: ParseMode = ParseMode.PERMISSIVE,
    time_zone: str = "Asia/Tokyo",
) -> tuple[list[Any], list[bool]]:
    """What the values become, and which do not fit."""
    decoding = ValueDecoding(ValueFormat(format_), type_, mode, time_zone)
    offsets = pa.array(range(40, 40 + len(values)), pa.int64())
    found, unfit = decode_values(decoding, TP, pa.array(values, pa.binary()), offsets)
    assert found.type == type_
    return found.to_pylist(), [False] * len(values) if unfit is None else unfit.to_pylist()


def written(format_: str, value: Any) -> bytes:
    packed: bytes = json.dumps(value).encode() if format_ == "json" else msgpack.packb(value, datetime=True)
    return packed


def test_text_is_utf_8() -> None:
    assert decode("string", pa.string(), "ä".encode(), None, b"") == (["ä", None, ""], [False] * 3)
    assert decode("string", pa.string(), b"a", b"\xff", None) == (["a", None, None], [False, True, False])


@pytest.mark.parametrize("format_", ["json", "msgpack"])
def test_values_become_structs(format_: str) -> None:
    type_ = pa.struct(
        [
            ("id", pa.int64()), ("score", pa.float64()), ("name", pa.string()), ("ok", pa.bool_()),
            ("tags", pa.list_(pa.string())), ("at", pa.struct([("x", pa.int32())])),
            ("by", pa.map_(pa.string(), pa.int64())),
        ]
    )  # fmt: skip
    whole = {"id": 7, "score": 2, "name": "n", "ok": True, "tags": ["a", None], "at": {"x": 1}, "by": {"k": 3}}
    found, unfit = decode(format_, type_, written(format_, whole), written(format_, {"id": 1, "more": [1]}), None)
    assert found == [
        whole | {"score": 2.0, "by": [("k", 3)]},
        dict.fromkeys(field.name for field in type_) | {"id": 1},
        None,
    ]
    assert unfit == [False] * 3


@pytest.mark.parametrize("format_", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.int64(), 1.5),
        (pa.int64(), "1"),
        (pa.int64(), True),
        (pa.int8(), 128),
        (pa.float64(), "x"),
        (pa.float64(), True),
        (pa.string(), 5),
        (pa.bool_(), 1),
        (pa.list_(pa.string()), "ab"),
        (pa.list_(pa.int64()), [1, "2"]),
        (pa.map_(pa.string(), pa.int64()), [1]),
        (pa.struct([("x", pa.int64())]), 3),
        (TIME, 1_700_000_000),
        (TIME, "yesterday"),
        (pa.timestamp("us"), "2024-01-01T00:00:00Z"),
        (pa.date32(), 19_000),
        (pa.decimal128(4, 2), "one"),
        (pa.decimal128(4, 2), 1.555),
    ],
)
def test_a_field_of_another_type_does_not_fit(format_: str, type_: pa.DataType, value: Any) -> None:
    struct = pa.struct([("f", type_)])
    found, unfit = decode(format_, struct, written(format_, {"f": None}), written(format_, {"f": value}))
    assert (found, unfit) == ([{"f": None}, None], [False, True])


@pytest.mark.parametrize(
    ("format_", "damaged"),
    [
        ("json", [b"", b"{", b"nonsense", b"[1]", b"5", b'{"f": 1} {"f": 2}', b"\xff", b"[" * 100_000]),
        ("msgpack", [b"", b"\x81", b"\xc1", b"\x05", b"\x81\xa1f\x01\x00", b"\x91" * 100_000]),
    ],
)
def test_damaged_values_do_not_fit(format_: str, damaged: list[bytes]) -> None:
    type_ = pa.struct([("f", pa.int64())])
    good = written(format_, {"f": 1})
    found, unfit = decode(format_, type_, *damaged, good)
    assert found == [None] * len(damaged) + [{"f": 1}]
    assert unfit == [True] * len(damaged) + [False]


def test_the_first_that_does_not_fit_is_named_on_failfast() -> None:
    type_ = pa.struct([("f", pa.int64())])
    with pytest.raises(MalformedValue, match=r"clicks-1 offset 41: the value is not json .*PERMISSIVE") as raised:
        decode("json", type_, b'{"f": 1}', b"{", b"}", mode=ParseMode.FAILFAST)
    elsewhere = pickle.loads(pickle.dumps(raised.value))
    assert (elsewhere.tp, elsewhere.offset, str(elsewhere)) == (TP, 41, str(raised.value))
    with pytest.raises(MalformedValue, match="clicks-1 offset 40: the value is not string"):
        decode("string", pa.string(), b"\xff", mode=ParseMode.FAILFAST)


def test_times_are_instants() -> None:
    type_ = pa.struct([("t", TIME), ("local", pa.timestamp("us")), ("day", pa.date32())])
    text = b'{"t": "2024-01-01T09:00:00", "local": "2024-01-01T09:00:00", "day": "2024-01-01"}'
    zoned = b'{"t": "2024-01-01T01:00:00.000001+01:00"}'
    packed = written("msgpack", {"t": datetime(2024, 1, 1, tzinfo=UTC)})
    midnight = datetime(2024, 1, 1, tzinfo=UTC)
    assert decode("json", type_, text)[0] == [
        {"t": midnight, "local": datetime(2024, 1, 1, 9), "day": date(2024, 1, 1)}
    ]
    assert decode("json", type_, zoned)[0][0]["t"] == midnight.replace(microsecond=1)
    assert decode("msgpack", type_, packed)[0][0]["t"] == midnight


def test_a_time_zone_may_be_an_offset() -> None:
    type_ = pa.struct([("t", TIME)])
    text = b'{"t": "2024-01-01T09:00:00"}'
    assert decode("json", type_, text, time_zone="+09:00")[0] == [{"t": datetime(2024, 1, 1, tzinfo=UTC)}]
    assert decode("json", type_, text, time_zone="-03:30")[0] == [{"t": datetime(2024, 1, 1, 12, 30, tzinfo=UTC)}]


def test_decimals_are_exact() -> None:
    type_ = pa.struct([("d", pa.decimal128(20, 3)), ("f", pa.float64())])
    found, _ = decode("json", type_, b'{"d": 12345678901234567.125, "f": 0.1}', b'{"d": 7, "f": 1}', b'{"d": "0.5"}')
    assert found == [
        {"d": Decimal("12345678901234567.125"), "f": 0.1},
        {"d": Decimal(7), "f": 1.0},
        {"d": Decimal("0.5"), "f": None},
    ]


def test_bytes_are_themselves_in_msgpack_and_base64_in_json() -> None:
    type_ = pa.struct([("b", pa.binary())])
    assert decode("msgpack", type_, written("msgpack", {"b": b"\x00\xff"}))[0] == [{"b": b"\x00\xff"}]
    assert decode("json", type_, b'{"b": "AP8="}', b'{"b": "?"}') == ([{"b": b"\x00\xff"}, None], [False, True])


@given(
    values=st.lists(st.none() | st.binary(max_size=30), max_size=8),
    format_=st.sampled_from(["string", "json", "msgpack"]),
)
def test_any_bytes_fit_or_are_told(values: list[bytes | None], format_: str) -> None:
    type_ = pa.string() if format_ == "string" else pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])
    found, unfit = decode(format_, type_, *values)
    assert [value is None for value in found] == [
        bad or value is None for bad, value in zip(unfit, values, strict=True)
    ]
    assert [bad for bad, value in zip(unfit, values, strict=True) if value is None] == [False] * values.count(None)
