"""The bytes of a batch: each way that our client writes one, against the bytes that Java's makes, and back."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from judge.clients.question import Answer, Finding, Question, decoded, encoded
from kit.kernels import DECODERS, ENCODERS
from raylog.client.batches.column_schema import HEADERS, Rows
from raylog.client.batches.decode import SCHEMA, body_of, decode_columns
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import (
    HEADER_SIZE,
    Codec,
    Record,
    decode_batch,
    encode_batch,
    frame_batch,
    read_header,
    record_times,
    validate_batch,
)

__all__ = ["findings", "ours", "questions", "read_back", "reads"]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
MIXED, COMPRESSED = 200, 16
VARINT_EDGES = (0, 1, 62, 63, 64, 65, 127, 128, 8_190, 8_191, 8_192, 8_193, 16_383, 16_384)
LONG_EDGES = ((1 << 20) - 1, 1 << 20)
TIME_EDGES = (
    0,
    1,
    63,
    64,
    65,
    8_191,
    8_192,
    8_193,
    (1 << 20) - 1,
    1 << 20,
    1 << 27,
    1 << 31,
    1 << 34,
    1 << 48,
    1 << 61,
)
NOW = 1_700_000_000_000
NO_PRODUCER = (-1, -1, -1)
TP = TopicPartition(TopicName("t"), PartitionIndex(0))
LAST_TIME = (1 << 63) - 1


def questions(seed: int) -> Iterator[Question]:
    """Batches at the edges of every number's width, and random ones; with each codec."""
    chance = random.Random(f"batches {seed}")
    for size in (*VARINT_EDGES, *LONG_EDGES):
        yield _question(f"value of {size}", [Record(b"v" * size, timestamp=NOW)])
        yield _question(f"key of {size}", [Record(None, b"k" * size, timestamp=NOW)])
        yield _question(f"header of {size}", [Record(b"", None, [("h", b"h" * size)], NOW)])
        yield _question(f"header name of {size}", [Record(b"", None, [("n" * size, None)], NOW)])
    for most in (1 << 6, 1 << 13):  # a record's own length comes to an edge where its parts do not
        sizes = range(most - 16, most + 1)
        yield _question(f"records of about {most}", [Record(b"v" * size, timestamp=NOW) for size in sizes])
        yield _question(f"keys of about {most}", [Record(b"", b"k" * size, timestamp=NOW) for size in sizes])
        yield _question(f"halves of about {most}", [Record(b"v" * (size // 2), b"k" * (size // 2)) for size in sizes])
    for count in (63, 64, 65, 66, 8_191, 8_192, 8_193):
        yield _question(f"{count} records", [Record(b"v", timestamp=NOW)] * count)
        yield _question(f"{count} headers", [Record(b"v", None, [("h", None)] * count, NOW)])
    for edge in TIME_EDGES:
        yield _question(f"{edge} ms later", [Record(b"v", timestamp=time) for time in (0, edge, edge + 1, 0)])
        yield _question(f"{edge} ms before", [Record(b"v", timestamp=time) for time in (edge + 1, 1, 0, edge + 1)])
        yield _question(f"{edge} ms after none", [Record(b"v", timestamp=time) for time in (-1, edge, -1)])
    yield _question("no times", [Record(b"v"), Record(None), Record(b"", b"")])
    yield _question("the last time", [Record(b"v", timestamp=time) for time in (0, LAST_TIME, 5)])
    yield _question("the last time before", [Record(b"v", timestamp=time) for time in (LAST_TIME, 0, LAST_TIME)])
    yield _question("the last time after none", [Record(b"v", timestamp=time) for time in (-1, LAST_TIME)])
    for producer in ((0, 0, 0), (LAST_TIME, 32_767, (1 << 31) - 1), (1 << 31, 1, 1 << 30), (7, 0, (1 << 31) - 1)):
        yield _question(f"producer {producer}", [Record(b"v", timestamp=NOW)] * 3, producer=producer)
    for number in range(MIXED):
        yield _question(f"mixed {number}", _mixed(chance), producer=_producer(chance))
    for codec in CODECS[1:]:
        for number in range(COMPRESSED):
            yield _question(f"{codec} {number}", _mixed(chance), codec, _producer(chance))
        for size in (1, 60_000, 70_000, 600_000):  # codecs cut what they get into blocks
            yield _question(f"{codec} of {size}", [Record(b"v" * size, timestamp=NOW)] * 2, codec)
        noise = [Record(chance.randbytes(2_000), timestamp=NOW)] * 300
        yield _question(f"{codec} of noise that repeats", noise, codec)
        yield _question(f"{codec} of noise", [Record(chance.randbytes(900), timestamp=NOW) for _ in range(3)], codec)


def ours(question: Question) -> Iterator[tuple[str, bytes]]:
    """The batch as each part of our client writes it."""
    records, codec = _records(question), Codec[question.inputs["codec"].upper()]
    producer_id, epoch, sequence = question.inputs["producer"]
    yield (
        "rows",
        encode_batch(records, codec=codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence),
    )
    rows = _columns(records)
    for name, encode in ENCODERS.items():
        data, _ = encode(rows, [0, len(records)])
        times = rows.timestamps
        yield f"columns by {name}", frame_batch(
            bytes(data), len(records), int(times[0]), int(times.max()),
            codec=codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence,
        )  # fmt: skip


def findings(question: Question, java: Answer) -> Iterator[Finding]:
    """Ours makes the bytes that Java's makes, those within a compressed batch too, and reads Java's back."""
    theirs = decoded(java)
    assert theirs is not None
    is_plain = question.inputs["codec"] == "none"
    for way, made in ours(question):
        if is_plain:
            if made != theirs:
                yield Finding(question.name, f"{way}: byte {_first_difference(made, theirs)} of {len(theirs)} differs")
        elif _fields(made) != _fields(theirs):
            yield Finding(question.name, f"{way}: {_first_field(_fields(made), _fields(theirs))} differs")
        elif _body(made) != _body(theirs):
            yield Finding(question.name, f"{way}: decompressed, the records differ")
    records = [_told(record, number) for number, record in enumerate(_records(question))]
    for way, read in _readings(theirs):
        if read != records:
            yield Finding(question.name, f"{way} reads other records from Java's batch")


def reads(question: Question) -> Iterator[tuple[str, Question]]:
    """What Java is asked to read of ours."""
    for way, made in ours(question):
        yield way, Question(f"{question.name}, {way}", "read", {"batch": encoded(made)})


def read_back(question: Question, way: str, java: Answer) -> Iterator[Finding]:
    """Java's consumer reads what our producer was given."""
    records = _records(question)
    producer_id, epoch, sequence = question.inputs["producer"]
    last_sequence = -1 if sequence < 0 else (sequence + len(records) - 1) & LAST_TIME >> 32
    expected = {
        "codec": question.inputs["codec"],
        "producer": [producer_id, epoch, sequence],
        "last": [len(records) - 1, last_sequence, max(record.timestamp for record in records)],
        "records": [_told(record, number) for number, record in enumerate(records)],
    }
    for field, value in expected.items():
        if java[field] != value:
            yield Finding(question.name, f"{way}: Java reads other {field}: {str(java[field])[:100]}")


def _question(
    name: str, records: Sequence[Record], codec: str = "none", producer: tuple[int, int, int] = NO_PRODUCER
) -> Question:
    rows = [
        [encoded(each.key), encoded(each.value), each.timestamp, [[h, encoded(v)] for h, v in each.headers]]
        for each in records
    ]
    return Question(f"batch: {name}", "batch", {"codec": codec, "producer": list(producer), "records": rows})


def _records(question: Question) -> list[Record]:
    return [
        Record(decoded(value), decoded(key), [(name, decoded(content)) for name, content in headers], timestamp)
        for key, value, timestamp, headers in question.inputs["records"]
    ]


def _columns(records: Sequence[Record]) -> Rows:
    headers = [[*record.headers] for record in records]
    return Rows(
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        np.array([record.timestamp for record in records], np.int64),
        pa.array(headers, HEADERS) if any(headers) else None,
    )


def _told(record: Record, offset: int) -> list[Any]:
    """As Java's program says it."""
    headers = [[name, encoded(value)] for name, value in record.headers]
    return [encoded(record.key), encoded(record.value), record.timestamp, headers, offset]


def _readings(batch: bytes) -> Iterator[tuple[str, list[list[Any]]]]:
    """The records as each part of our client reads them."""
    header = validate_batch(batch)
    rows = decode_batch(batch)
    yield "rows", [_told(record, record.offset) for record in rows]
    body = body_of(batch, 0, header)
    for name, decode in DECODERS.items():
        found = decode_columns(TP, [(header, body)], SCHEMA, from_offset=0, decode=decode)
        yield f"columns by {name}", _rows_of(found)
    times = [*record_times(batch)]
    if times != [(record.offset, record.timestamp) for record in rows]:
        yield "a look-up by time", [[*pair] for pair in times]


def _rows_of(columns: pa.RecordBatch) -> list[list[Any]]:
    times = columns.column("timestamp").cast(pa.int64()).to_pylist()
    plain = [columns.column(name).to_pylist() for name in ("key", "value", "headers", "offset")]
    return [
        [encoded(key), encoded(value), time, [[each["key"], encoded(each["value"])] for each in headers], offset]
        for time, key, value, headers, offset in zip(times, *plain, strict=True)
    ]


def _fields(batch: bytes) -> dict[str, Any]:
    """What the header says, but for the size and what follows from the compressed bytes."""
    header = read_header(batch)
    return {
        name: getattr(header, name)
        for name in (
            "base_offset", "leader_epoch", "attributes", "last_offset_delta", "base_timestamp", "max_timestamp",
            "producer_id", "producer_epoch", "base_sequence", "record_count",
        )
    }  # fmt: skip


def _first_field(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    return next(f"{name} {ours[name]} (Java: {theirs[name]})" for name in ours if ours[name] != theirs[name])


def _body(batch: bytes) -> bytes:
    return bytes(body_of(batch, 0, read_header(batch)))


def _first_difference(ours: bytes, theirs: bytes) -> int:
    pairs: Iterable[int] = (at for at, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other)
    behind = (at for at in pairs if at >= HEADER_SIZE or not 8 <= at < 21)  # not the length, nor the checksum
    return next(behind, min(len(ours), len(theirs)))


# --- random ones ---


def _mixed(chance: random.Random) -> list[Record]:
    time = chance.choice((-1, 0, NOW))
    records = []
    for _ in range(chance.choice((1, 2, 3, chance.randint(4, 30), chance.randint(30, 150)))):
        match chance.randrange(6):
            case 0:
                time = -1
            case 1:
                time = max(0, time - chance.choice(TIME_EDGES[:9]))
            case 2:
                time = max(0, time) + chance.choice(TIME_EDGES[:9])
        headers = [(_name(chance), _bytes(chance)) for _ in range(chance.choice((0, 0, 0, 1, 2, 5)))]
        records.append(Record(_bytes(chance), _bytes(chance), headers, time))
    return records


def _bytes(chance: random.Random) -> bytes | None:
    """Content that repeats, for it is kept."""
    match chance.randrange(8):
        case 0:
            return None
        case 1:
            return b""
        case 2:
            return chance.randbytes(chance.randint(1, 4))
        case 3:
            return bytes([chance.randrange(256)]) * chance.choice(VARINT_EDGES)
        case _:
            return b"content " * chance.randint(0, 12)


def _name(chance: random.Random) -> str:
    return chance.choice(("", "h", "trace-id", "größe", "名", "😀", "n" * chance.randint(50, 70)))


def _producer(chance: random.Random) -> tuple[int, int, int]:
    if chance.random() < 0.3:
        return NO_PRODUCER
    return chance.randrange(1 << 40), chance.randrange(1 << 15), chance.randrange(1 << 31)
