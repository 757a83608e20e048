"""Columns to batches and back, held against the row codec: the same records, or the same refusal."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kit.kernels import DECODERS, ENCODERS
from raylog.client.batches.column_schema import Rows
from raylog.client.batches.decode import SCHEMA, Decode, Integers, body_of, decode_columns, schema_of
from raylog.client.batches.encode import Encode, binary, encode_rows, header_column, integers
from raylog.protocol.batches.header import read_header
from raylog.protocol.errors import CorruptMessage, InvalidRecord, InvalidRequest, MessageTooLarge
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import (
    Codec,
    Record,
    TimestampType,
    batch_headers,
    decode_batch,
    decode_batches,
    encode_batch,
    frame_batch,
)

TP = TopicPartition(TopicName("t"), PartitionIndex(3))

blobs = st.none() | st.binary(max_size=20) | st.integers(50, 9_000).map(bytes)
headers = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2)
records = st.builds(
    Record, blobs, st.none() | st.binary(max_size=70), headers, st.integers(0, 2**62) | st.integers(5, 9)
)


every_decoder = pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS)


def columns_of(
    data: bytes, decode: Decode, from_offset: int = 0, until_offset: int | None = None, columns: list[str] | None = None
) -> pa.RecordBatch:
    batches = [(header, body_of(data, pos, header)) for pos, header in batch_headers(data)]
    schema = schema_of(columns)
    found = decode_columns(TP, batches, schema, from_offset=from_offset, until_offset=until_offset, decode=decode)
    found.validate(full=True)
    return found


def as_records(table: pa.RecordBatch) -> list[Record]:
    assert set(table["topic"].to_pylist()) <= {"t"}
    assert set(table["partition"].to_pylist()) <= {3}
    times = table["timestamp"].cast(pa.int64())
    columns = (table["value"], table["key"], table["headers"], times, table["offset"])
    return [
        Record(value, key, [(h["key"], h["value"]) for h in found], time, offset)
        for value, key, found, time, offset in zip(*(column.to_pylist() for column in columns), strict=True)
    ]


def normal(found: list[Record]) -> list[Record]:
    return [Record(r.value, r.key, list(r.headers), r.timestamp, r.offset) for r in found]


@every_decoder
@given(
    batches=st.lists(
        st.tuples(st.lists(records, min_size=1, max_size=70), st.sampled_from(Codec), st.sampled_from(TimestampType)),
        min_size=1,
        max_size=3,
    ),
    from_offset=st.integers(0, 60),
    until_offset=st.none() | st.integers(0, 150),
)
def test_columns_hold_what_rows_hold(
    decode: Decode,
    batches: list[tuple[list[Record], Codec, TimestampType]],
    from_offset: int,
    until_offset: int | None,
) -> None:
    data, offset = b"", 0
    for found, codec, kind in batches:
        data += encode_batch(found, codec=codec, timestamp_type=kind, base_offset=offset)
        offset += len(found) + 2  # and a gap
    table = columns_of(data, decode, from_offset, until_offset)
    expected = decode_batches(data, from_offset=from_offset)
    assert as_records(table) == normal([r for r in expected if until_offset is None or r.offset < until_offset])
    assert table.schema == SCHEMA


@every_decoder
@given(found=st.lists(records, min_size=1, max_size=4), data=st.data())
def test_damaged_bytes_are_refused_as_the_row_codec_refuses_them(
    decode: Decode, found: list[Record], data: st.DataObject
) -> None:
    """The checksum is made right again, so that the damage reaches the decoders."""
    encoded = bytearray(encode_batch(found))
    [(_, header)] = batch_headers(bytes(encoded))
    body = encoded[61:]
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    damaged = frame_batch(bytes(body), header.record_count, header.base_timestamp, header.max_timestamp)
    try:
        rows = normal(decode_batch(damaged))
    except CorruptMessage:
        rows = None
    try:
        columns = as_records(columns_of(damaged, decode))
    except (CorruptMessage, OverflowError):
        columns = None
    assert columns == rows or (rows is not None and any(abs(r.timestamp) >= 2**62 for r in rows))


@every_decoder
def test_some_columns_can_be_chosen(decode: Decode) -> None:
    data = encode_batch([Record(b"v", b"k", (("h", b"w"),), 7)], base_offset=5)
    assert columns_of(data, decode, columns=["offset", "value"]).to_pylist() == [{"offset": 5, "value": b"v"}]
    whole = columns_of(data, decode)
    for name in SCHEMA.names:
        assert columns_of(data, decode, columns=[name]).column(0) == whole.column(name)


@every_decoder
def test_what_is_not_wanted_is_checked_all_the_same(decode: Decode) -> None:
    record = b"\x00\x00\x00\x01\x01\x02\x02\xff\x01"  # one header, whose name is not UTF-8
    data = frame_batch(bytes([2 * len(record)]) + record, 1, 1, 1)
    for columns in (["offset"], ["value"], None):
        with pytest.raises(CorruptMessage):
            columns_of(data, decode, columns=columns)


@every_decoder
def test_no_batch_and_a_batch_without_records_have_no_rows(decode: Decode) -> None:
    assert decode_columns(TP, [], SCHEMA, from_offset=0, decode=decode).num_rows == 0
    compacted = frame_batch(b"", 0, 1, 1)
    header = read_header(compacted)
    assert header.last_offset_delta == -1
    with pytest.raises(CorruptMessage, match="last offset delta -1"):
        columns_of(compacted, decode)
    kept = header._replace(last_offset_delta=4)
    sound = (kept, body_of(compacted, 0, header))
    assert decode_columns(TP, [sound], SCHEMA, from_offset=0, decode=decode).num_rows == 0


@every_decoder
def test_more_than_a_column_holds_is_refused_before_it_is_read(decode: Decode) -> None:
    """The same body again and again: two gibibytes that nobody has to have."""
    data = encode_batch([Record(bytes(1 << 22))])
    [(pos, header)] = batch_headers(data)
    batch = (header, body_of(data, pos, header))
    with pytest.raises(MessageTooLarge, match="decode fewer batches at once"):
        decode_columns(TP, [batch] * 512, SCHEMA, from_offset=0, decode=decode)


@every_decoder
def test_a_header_that_lies_about_its_records_makes_no_room_for_them(decode: Decode) -> None:
    data = frame_batch(b"\x0c" + bytes(6), (1 << 31) - 1, 1, 1)
    with pytest.raises(CorruptMessage, match="claims 2147483647 records"):
        columns_of(data, decode)


@every_decoder
def test_a_null_may_be_written_in_more_bytes_than_it_needs(decode: Decode) -> None:
    """As in Java's ``ByteUtils.readVarint``: -1 is -1, however it is written."""
    record = b"\x00\x00\x00" + b"\x81\x00" + b"\x81\x00" + b"\x02" + b"\x02n" + b"\x81\x00"
    data = frame_batch(bytes([2 * len(record)]) + record, 1, 1, 1)
    assert normal(decode_batch(data)) == [Record(None, None, [("n", None)], 1, 0)]
    assert as_records(columns_of(data, decode)) == normal(decode_batch(data))


@pytest.mark.parametrize(
    "name",
    [
        b"\x80",
        b"\xc1\xbf",
        b"\xe0\x9f\xbf",
        b"\xed\xa0\x80",
        b"\xf0\x8f\xbf\xbf",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\xe2\x82",
    ],
)
@every_decoder
def test_a_header_whose_name_is_not_utf_8_is_damage(decode: Decode, name: bytes) -> None:
    record = b"\x00\x00\x00\x01\x01\x02" + bytes([2 * len(name)]) + name + b"\x01"
    data = frame_batch(bytes([2 * len(record)]) + record, 1, 1, 1)
    with pytest.raises(CorruptMessage):
        decode_batch(data)
    with pytest.raises(CorruptMessage):
        columns_of(data, decode)


@every_decoder
@given(name=st.binary(max_size=6) | st.text(max_size=4).map(str.encode))
def test_names_are_utf_8_for_columns_when_they_are_for_rows(decode: Decode, name: bytes) -> None:
    record = b"\x00\x00\x00\x01\x01\x02" + bytes([2 * len(name)]) + name + b"\x01"
    data = frame_batch(bytes([2 * len(record)]) + record, 1, 1, 1)
    try:
        rows = normal(decode_batch(data))
    except CorruptMessage:
        with pytest.raises(CorruptMessage):
            columns_of(data, decode)
    else:
        assert as_records(columns_of(data, decode)) == rows


def test_unknown_columns_are_refused() -> None:
    for wrong in (["values"], [], ["key", "key"]):
        with pytest.raises(InvalidRequest, match="must be some of key, value"):
            schema_of(wrong)


def test_a_name_alone_is_one_column() -> None:
    assert schema_of("value").names == ["value"]
    with pytest.raises(InvalidRequest, match=r"columns=\['values'\] must be some of"):
        schema_of("values")


@pytest.mark.parametrize("encode", ENCODERS.values(), ids=ENCODERS)
@example(found=[Record(b"", None, (), 2**62), Record(None, b"", [("é", None)], 0)], batch_size=100)
@given(found=st.lists(records, max_size=80), batch_size=st.integers(80, 20_000))
def test_columns_make_the_batches_that_rows_make(encode: Encode, found: list[Record], batch_size: int) -> None:
    rows = Rows(
        binary([r.key for r in found], len(found), "keys"),
        binary([r.value for r in found], len(found), "values"),
        integers([r.timestamp for r in found], "timestamps"),
        header_column([r.headers for r in found]),
    )
    partitions = integers([n % 3 for n in range(len(found))], "partitions")
    read: dict[int, list[Record]] = {}
    for encoded in encode_rows(rows, lambda part, sizes: partitions, lambda size: 9, batch_size, encode=encode):
        made = frame_batch(encoded.body, encoded.record_count, encoded.base_timestamp, encoded.max_timestamp)
        decoded = decode_batch(made)
        assert len(decoded) == encoded.record_count
        assert len(decoded) == 1 or len(encoded.body) <= batch_size
        assert encoded.max_timestamp == max(r.timestamp for r in decoded)
        read.setdefault(encoded.partition, []).extend(decoded)
    for partition, got in read.items():
        expected = found[partition::3]
        assert [(r.value, r.key, list(r.headers), r.timestamp) for r in got] == [
            (r.value, r.key, list(r.headers), r.timestamp) for r in expected
        ]
    assert sum(map(len, read.values())) == len(found)


@given(st.lists(records, min_size=1, max_size=40), st.data())
def test_every_encoder_writes_the_same_bytes_also_of_slices(found: list[Record], data: st.DataObject) -> None:
    without = data.draw(st.integers(0, len(found) - 1))  # null instead of an empty list of headers
    rows = Rows(
        binary([r.key for r in found], len(found), "keys"),
        binary([r.value for r in found], len(found), "values"),
        integers([r.timestamp for r in found], "timestamps"),
        header_column([None if n == without else r.headers for n, r in enumerate(found)]),
    )
    first = data.draw(st.integers(0, len(found) - 1))
    part = rows.slice(first, data.draw(st.integers(1, len(found) - first)))
    count = len(part.values)
    cuts = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=3))})
    written = {name: encode(part, cuts) for name, encode in ENCODERS.items()}
    bodies = {
        name: [bytes(encoded[start:end]) for start, end in pairwise(edges)]
        for name, (encoded, edges) in written.items()
    }
    assert all(each == bodies["numpy"] for each in bodies.values())


def test_rows_are_written_some_megabytes_at_a_time() -> None:
    rows = Rows(binary(None, 5, "keys"), binary([bytes(7 << 20)] * 5, 5, "values"), integers([1] * 5, "times"), None)
    parts: list[int] = []

    def choose(part: Rows, sizes: Integers) -> None:
        parts.append(len(part.values))
        assert len(sizes) == len(part.values)

    batches = list(encode_rows(rows, choose, lambda size: 0, 1000))
    assert parts == [2, 2, 1]
    assert [batch.record_count for batch in batches] == [1] * 5


def test_columns_that_are_not_what_they_should_be_are_refused() -> None:
    with pytest.raises(InvalidRecord, match="values are not bytes"):
        binary([1, 2], 2, "values")
    with pytest.raises(InvalidRecord, match="timestamps are not whole numbers"):
        integers(["a"], "timestamps")
    with pytest.raises(InvalidRecord, match="timestamps have nulls"):
        integers([1, None], "timestamps")
    with pytest.raises(InvalidRecord, match="headers must be lists"):
        header_column([5])
    for nameless in (None, (None, b"v")):
        with pytest.raises(InvalidRecord, match="a header has no name"):
            header_column([[("n", b"v")], [nameless]])


@every_decoder
@pytest.mark.parametrize("number", [b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x00", b"\xff" * 12])
@pytest.mark.parametrize("place", ["timestamp", "offset", "key"])
def test_numbers_of_up_to_64_bits_are_read_and_longer_ones_refused(number: bytes, place: str, decode: Decode) -> None:
    fields = {"timestamp": b"\x00", "offset": b"\x00", "key": b"\x01"} | {place: number}
    record = b"\x00" + fields["timestamp"] + fields["offset"] + fields["key"] + b"\x01\x00"
    data = frame_batch(bytes([2 * len(record)]) + record, 1, 1, 1)
    if place == "timestamp" and number[-1] == 1:
        assert as_records(columns_of(data, decode)) == normal(decode_batch(data))
        return
    with pytest.raises(CorruptMessage):
        decode_batch(data)
    with pytest.raises(CorruptMessage):
        columns_of(data, decode)
