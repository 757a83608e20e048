"""What handlers are called with: rows and columns, whole and in parts; and the settings that say how."""

from __future__ import annotations

import pyarrow as pa
import pytest

from raylog.client.arguments.serde import deserializer
from raylog.client.batches.decode import SCHEMA
from raylog.client.handlers.batches import Columns, HandlerBatch, RawRecord, Rows, columns_of, rows_of
from raylog.client.handlers.config import Guarantee, OnError, split_config
from raylog.client.read_errors import RecordDeserializationError
from raylog.client.results import ConsumerRecord
from raylog.protocol.errors import InvalidConfig
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition

TP = TopicPartition(TopicName("t"), PartitionIndex(3))
HEADERS = (("trace", b"1"), ("trace", None))
RAW = [
    RawRecord(Offset(5), 1_000, b"k", b"1", HEADERS),
    RawRecord(Offset(6), 1_001, None, None, ()),
    RawRecord(Offset(9), 1_002, b"k", b"{", ()),
]


def rows(**deserializers: object) -> Rows:
    records = [ConsumerRecord(*TP, raw.offset, raw.timestamp, 0, raw.key, raw.value, raw.headers) for raw in RAW]
    return Rows(TP, records, **{name: deserializer("json") for name in deserializers})


def table() -> pa.Table:
    columns = {
        "key": [raw.key for raw in RAW],
        "value": [raw.value for raw in RAW],
        "topic": [TP.topic] * len(RAW),
        "partition": [TP.partition] * len(RAW),
        "offset": [raw.offset for raw in RAW],
        "timestamp": [raw.timestamp for raw in RAW],
        "timestamp_type": [0] * len(RAW),
        "headers": [[{"key": key, "value": value} for key, value in raw.headers] for raw in RAW],
    }
    return pa.Table.from_pydict(columns, schema=SCHEMA)


BATCHES = [rows(), Columns(TP, table())]


@pytest.mark.parametrize("batch", BATCHES, ids=["rows", "columns"])
def test_a_batch_tells_where_to_go_on_and_what_it_holds(batch: HandlerBatch) -> None:
    assert (len(batch), batch.tp, batch.first_offset, batch.next_offset) == (3, TP, 5, 10)
    assert [raw._replace(headers=tuple(raw.headers)) for raw in batch.raw()] == RAW


@pytest.mark.parametrize("timestamp", [253_402_300_800_000, 2**62, -(2**62)])
def test_raw_of_time_beyond_pythons_is_the_record(timestamp: int) -> None:
    columns = {name: table()[name] for name in SCHEMA.names}
    columns["timestamp"] = pa.array([timestamp] * len(RAW)).cast(SCHEMA.field("timestamp").type)
    found = Columns(TP, pa.Table.from_pydict(columns, schema=SCHEMA)).raw()
    assert [raw._replace(headers=tuple(raw.headers)) for raw in found] == [
        raw._replace(timestamp=timestamp) for raw in RAW
    ]


@pytest.mark.parametrize("batch", BATCHES, ids=["rows", "columns"])
def test_parts_are_the_batch(batch: HandlerBatch) -> None:
    first, second = batch.cut(1)
    assert [raw.offset for raw in first.raw()] == [5]
    assert [raw.offset for raw in second.raw()] == [6, 9]
    assert (first.next_offset, second.next_offset) == (6, 10)
    assert [len(half) for half in second.cut(1)] == [1, 1]


def test_polled_records_become_a_batch_per_partition() -> None:
    other = TopicPartition(TP.topic, PartitionIndex(4))
    assert rows_of({TP: rows().records, other: []}, None, None) == [rows()]
    moved = table().set_column(3, SCHEMA.field("partition"), pa.array([4] * len(RAW), pa.int32()))
    assert columns_of(SCHEMA.empty_table()) == []
    found = columns_of(pa.concat_tables([table(), moved]))
    assert [(batch.tp, batch.payload()) for batch in found] == [(TP, table()), (other, moved)]


def test_what_cannot_be_deserialized_fails_the_batch_and_is_kept_as_it_is() -> None:
    batch = rows(value_deserializer="json")
    good, poison = batch.cut(1)
    assert [record.value for record in good.payload()] == [1]
    with pytest.raises(RecordDeserializationError, match=r"t-3 offset 9: the value cannot .*not JSON") as caught:
        poison.payload()
    assert (caught.value.tp, caught.value.offset, caught.value.value) == (TP, 9, b"{")
    assert list(poison.raw())[1].value == b"{"
    assert [record.key for record in rows().payload()] == [b"k", None, b"k"]


def test_the_config_is_split_between_handler_and_consumer() -> None:
    options, rest = split_config(
        {
            "processing_guarantee": "exactly_once",
            "errors.tolerance": "all",
            "errors_deadletterqueue_topic_name": "dead",
            "max_poll_records": 7,
        }
    )
    assert (options.guarantee, options.on_error) == (Guarantee.EXACTLY_ONCE, OnError.DEAD_LETTER)
    assert rest == {"max_poll_records": 7}
    assert split_config({"errors_tolerance": "all"})[0].on_error is OnError.SKIP
    assert split_config({})[0].on_error is OnError.STOP


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"processing_guarantee": "twice"}, "must be at_most_once or at_least_once or exactly_once"),
        ({"errors_retry_timeout": -2}, "must be at least -1"),
        ({"errors_deadletterqueue_topic_name": "dead"}, "needs errors.tolerance=all"),
        ({"enable_auto_commit": True}, "set processing.guarantee"),
    ],
)
def test_a_contradiction_is_refused(config: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        split_config(config)
