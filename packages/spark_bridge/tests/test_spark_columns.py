"""Record batches become Arrow columns, and a range ends where it was planned to end."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from raylog.protocol.errors import InvalidTimestamp
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import Batches, Codec, Record, TimestampType, encode_batch
from raylog.spark.columns import SPARK_TYPES, RangeDecoder, choose_columns, spark_schema
from raylog.spark.offsets import OffsetRange

TP = TopicPartition(TopicName("flights"), PartitionIndex(3))


def decoder(start: int, end: int, *names: str) -> RangeDecoder:
    return RangeDecoder(OffsetRange(TP, Offset(start), Offset(end)), names or tuple(SPARK_TYPES))


def batch(base: int, values: Sequence[str], *, control: bool = False) -> bytes:
    records = [Record(value=value.encode(), timestamp=1_000) for value in values]
    return encode_batch(records, base_offset=base, codec=Codec.LZ4, control=control)


def fetched(*parts: bytes, at: int = 0) -> Batches:
    return Batches(b"".join(parts), high_watermark=1_000, from_offset=at)


def values(reader: RangeDecoder, *parts: bytes) -> list[bytes]:
    return [value for part in reader.feed(fetched(*parts)) for value in part.column("value").to_pylist()]


def test_all_columns_have_spark_s_names_and_types() -> None:
    records = [
        Record(value=b"v", key=b"k", headers=[("h", b"1"), ("h", None)], timestamp=1_500, offset=0),
        Record(value=None, timestamp=-1, offset=1),
    ]
    data = encode_batch(records, base_offset=7)
    [table] = decoder(7, 9).feed(fetched(data))
    assert table.schema.names == list(SPARK_TYPES)
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


def test_a_time_that_spark_cannot_hold_names_its_record() -> None:
    farthest = (2**63 - 1) // 1000
    data = encode_batch([Record(value=b"a", timestamp=farthest), Record(value=b"b", timestamp=farthest + 1)])
    with pytest.raises(InvalidTimestamp, match=r"flights-3 offset 1: .* columns="):
        list(decoder(0, 2).feed(fetched(data)))
    [table] = decoder(0, 2, "value").feed(fetched(data))
    assert table.column("value").to_pylist() == [b"a", b"b"]


def test_timestamp_types_may_change_within_a_topic() -> None:
    old = encode_batch([Record(value=b"a"), Record(value=b"b")], base_offset=0)
    new = encode_batch([Record(value=b"c")], base_offset=2, timestamp_type=TimestampType.LOG_APPEND_TIME)
    [table] = decoder(0, 3, "timestampType").feed(fetched(old, new))
    assert table.to_pydict() == {"timestampType": [0, 0, 1]}


def test_a_range_begins_and_ends_inside_batches() -> None:
    reader = decoder(1, 5, "value")
    assert values(reader, batch(0, ["a", "b", "c"]), batch(3, ["d", "e", "f"])) == [b"b", b"c", b"d", b"e"]
    assert reader.done
    assert reader.position == 5


def test_a_range_whose_last_offsets_are_a_control_batch_ends() -> None:
    reader = decoder(0, 3, "value")
    assert values(reader, batch(0, ["a", "b"])) == [b"a", b"b"]
    assert not reader.done
    assert values(reader, batch(2, ["commit"], control=True)) == []
    assert reader.done


def test_a_range_whose_last_offsets_were_compacted_away_ends() -> None:
    reader = decoder(0, 6, "value")
    assert values(reader, batch(0, ["a", "b"]), batch(40, ["z"])) == [b"a", b"b"]
    assert reader.done
    assert reader.position == 6


def test_a_partial_batch_at_the_end_of_a_fetch_waits_for_the_next() -> None:
    reader = decoder(0, 4, "value")
    whole, cut = batch(0, ["a", "b"]), batch(2, ["c", "d"])
    assert values(reader, whole, cut[:-1]) == [b"a", b"b"]
    assert reader.position == 2
    assert values(reader, cut) == [b"c", b"d"]
    assert reader.done


def test_small_batches_share_an_arrow_batch_up_to_a_size() -> None:
    reader = RangeDecoder(OffsetRange(TP, Offset(0), Offset(10)), ["value"], rows=4)
    parts = [batch(base, ["a", "b"]) for base in range(0, 10, 2)]
    assert [part.num_rows for part in reader.feed(fetched(*parts))] == [4, 4, 2]


def test_columns_are_chosen_by_name() -> None:
    assert choose_columns(None, include_headers=False) == tuple(SPARK_TYPES)[:-1]
    assert choose_columns(None, include_headers=True) == tuple(SPARK_TYPES)
    assert choose_columns(["value", "key"], include_headers=False) == ("value", "key")
    assert spark_schema(["value", "offset"]) == "value binary, offset long"


@pytest.mark.parametrize("names", [[], ["value", "value"], ["Value"]])
def test_unfit_columns_are_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match="must be some of key, value, topic"):
        choose_columns(names, include_headers=False)
