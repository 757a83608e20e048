"""The client's columns become Spark's."""

from __future__ import annotations

import pyarrow as pa
import pytest

from raylog.client.batches.decode import decode_columns, schema_of
from raylog.client.ranges.offset_ranges import OffsetRange
from raylog.protocol.batches.header import batch_headers
from raylog.protocol.errors import InvalidTimestamp
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import HEADER_SIZE, Record, TimestampType, encode_batch
from raylog.spark.reading.columns import SPARK_COLUMNS, choose_columns, client_columns, to_spark
from raylog.spark.reading.reader import parse_range, range_text

TP = TopicPartition(TopicName("flights"), PartitionIndex(3))


def columns_of(data: bytes, *names: str) -> pa.RecordBatch:
    wanted = names or SPARK_COLUMNS
    batches = [(header, data[pos + HEADER_SIZE : pos + header.size]) for pos, header in batch_headers(data)]
    read = decode_columns(TP, batches, schema_of(client_columns(wanted)), from_offset=0)
    return to_spark(TP, read, wanted)


def test_all_columns_have_spark_s_names_and_types() -> None:
    records = [
        Record(value=b"v", key=b"k", headers=[("h", b"1"), ("h", None)], timestamp=1_500, offset=0),
        Record(value=None, timestamp=-1, offset=1),
    ]
    table = columns_of(encode_batch(records, base_offset=7))
    assert table.schema.names == list(SPARK_COLUMNS)
    assert table.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert table.to_pydict() | {"timestamp": table.column("timestamp").cast(pa.int64()).to_pylist()} == {
        "key": [b"k", None],
        "value": [b"v", None],
        "topic": ["flights", "flights"],
        "partition": [3, 3],
        "offset": [7, 8],
        "timestamp": [1_500_000, -1_000],
        "timestampType": [0, 0],
        "headers": [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None],
    }


def test_no_record_has_headers() -> None:
    table = columns_of(encode_batch([Record(value=b"a"), Record(value=b"b")]), "headers")
    assert table.to_pydict() == {"headers": [None, None]}


def test_timestamp_types_may_change_within_a_topic() -> None:
    old = encode_batch([Record(value=b"a"), Record(value=b"b")], base_offset=0)
    new = encode_batch([Record(value=b"c")], base_offset=2, timestamp_type=TimestampType.LOG_APPEND_TIME)
    table = columns_of(old + new, "timestampType")
    assert table.schema.field("timestampType").type == pa.int32()
    assert table.to_pydict() == {"timestampType": [0, 0, 1]}


def test_a_time_that_spark_cannot_hold_names_its_record() -> None:
    farthest = (2**63 - 1) // 1000
    data = encode_batch([Record(value=b"a", timestamp=farthest), Record(value=b"b", timestamp=farthest + 1)])
    with pytest.raises(InvalidTimestamp, match=r"flights-3 offset 1: .* columns="):
        columns_of(data)
    assert columns_of(data, "value").to_pydict() == {"value": [b"a", b"b"]}


def test_columns_are_chosen_by_name() -> None:
    assert choose_columns(None, include_headers=False) == SPARK_COLUMNS[:-1]
    assert choose_columns(None, include_headers=True) == SPARK_COLUMNS
    assert choose_columns(["value", "key"], include_headers=False) == ("value", "key")
    assert choose_columns("value", include_headers=False) == ("value",)


@pytest.mark.parametrize("names", [[], ["value", "value"], ["Value"]])
def test_unfit_columns_are_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match="must be some of key, value, topic"):
        choose_columns(names, include_headers=False)


def test_a_range_travels_as_text() -> None:
    piece = OffsetRange(TP, Offset(2**40), Offset(2**62))
    assert parse_range(range_text(piece)) == piece
