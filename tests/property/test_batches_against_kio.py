"""Our record batches against kio's reader and writer, and against themselves with every feature on."""

from __future__ import annotations

from datetime import UTC, datetime
from io import BytesIO

from hypothesis import given
from hypothesis import strategies as st
from kio.records import schema
from kio.records.readers import read_batch
from kio.records.writers import write_batch
from kio.static.primitive import TZAwareMicros, i8, i16, i32, i64

from raylog.protocol.records import (
    Codec,
    Record,
    TimestampType,
    batch_headers,
    decode_batch,
    decode_batches,
    encode_batch,
    read_header,
    validate_batch,
)

BYTES = st.none() | st.binary(max_size=40) | st.integers(0, 9000).map(bytes)
HEADERS = st.lists(st.tuples(st.text(max_size=10), BYTES), max_size=3)
SECONDS = st.integers(0, 2**32).map(lambda seconds: seconds * 1000)
"""kio keeps whole seconds of a record's timestamp."""


def record_lists(timestamps: st.SearchStrategy[int]) -> st.SearchStrategy[list[Record]]:
    records = st.builds(Record, BYTES, BYTES, HEADERS, timestamps)
    repeated = st.tuples(records, st.integers(1, 300)).map(lambda pair: [pair[0]] * pair[1])
    return st.lists(records, min_size=1, max_size=20) | repeated


def kio_records(records: list[Record], base_offset: int) -> tuple[schema.Record, ...]:
    return tuple(
        schema.Record(
            attributes=i8(0),
            timestamp=TZAwareMicros.parse(datetime.fromtimestamp(record.timestamp / 1000, UTC)),
            offset=i64(base_offset + delta),
            key=record.key,
            value=record.value,
            headers=tuple(schema.RecordHeader(key=name.encode(), value=value) for name, value in record.headers),
        )
        for delta, record in enumerate(records)
    )


@given(record_lists(SECONDS), st.integers(0, 2**40), st.integers(-1, 2**31 - 1))
def test_kio_reads_what_we_write(records: list[Record], base_offset: int, leader_epoch: int) -> None:
    encoded = encode_batch(records, base_offset=base_offset, leader_epoch=leader_epoch, producer_id=9)
    batch, size = read_batch(encoded, 0)
    assert size == len(encoded)
    assert batch.records == kio_records(records, base_offset)
    header = read_header(encoded)
    assert (batch.base_offset, batch.partition_leader_epoch, batch.producer_id) == (base_offset, leader_epoch, 9)
    assert (batch.crc, batch.max_timestamp) == (header.crc, header.max_timestamp)


@given(record_lists(SECONDS), st.integers(0, 2**40))
def test_we_write_what_kio_writes_and_read_it(records: list[Record], base_offset: int) -> None:
    buffer = BytesIO()
    write_batch(
        buffer,
        schema.NewRecordBatch(
            producer_id=i64(5),
            producer_epoch=i16(1),
            partition_leader_epoch=i32(2),
            base_sequence=i32(8),
            records=kio_records(records, base_offset),
            attributes=i16(0),
        ),
    )
    theirs = buffer.getvalue()
    written_at = read_header(theirs).base_offset
    ours = encode_batch(
        records, base_offset=written_at, leader_epoch=2, producer_id=5, producer_epoch=1, base_sequence=8
    )
    assert ours == theirs
    validate_batch(theirs)
    assert [record.value for record in decode_batch(theirs)] == [record.value for record in records]


@given(
    record_lists(st.integers(-1, 2**62) | st.integers(2**40, 2**40 + 100)),
    st.sampled_from(Codec),
    st.sampled_from(TimestampType),
    st.integers(0, 2**62),
    st.binary(max_size=3),
)
def test_what_is_encoded_is_decoded(
    records: list[Record], codec: Codec, timestamp_type: TimestampType, base_offset: int, before: bytes
) -> None:
    encoded = before + encode_batch(records, codec=codec, base_offset=base_offset, timestamp_type=timestamp_type)
    header = validate_batch(encoded, len(before))
    assert header.max_timestamp == max(record.timestamp for record in records)
    logged = header.max_timestamp if timestamp_type is TimestampType.LOG_APPEND_TIME else None
    assert decode_batch(encoded, len(before)) == [
        Record(
            record.value,
            record.key,
            record.headers or (),
            record.timestamp if logged is None else logged,
            base_offset + delta,
        )
        for delta, record in enumerate(records)
    ]


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=5), st.data())
def test_a_stream_of_batches_gives_its_data_from_any_offset(shape: list[tuple[int, bool]], data: st.DataObject) -> None:
    stream, offset = b"", 0
    expected: list[int] = []
    for count, control in shape:
        offsets = range(offset, offset + count)
        stream += encode_batch([Record(b"%d" % each) for each in offsets], base_offset=offset, control=control)
        expected += [] if control else offsets
        offset += count
    start = data.draw(st.integers(0, offset))
    end = data.draw(st.integers(0, len(stream)))
    records = decode_batches(stream[:end], from_offset=start)
    assert all(record.value == b"%d" % record.offset for record in records)
    complete = max((header.next_offset for _, header in batch_headers(stream[:end])), default=0)
    assert [record.offset for record in records] == [each for each in expected if start <= each < complete]
