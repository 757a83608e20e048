"""Targets in the client: what a broker that is not to be trusted answers, as rows and as columns."""

from __future__ import annotations

from typing import Any

from fuzz.target import Target, fix_checksums
from fuzz.targets_batch import ERRORS, batch_seeds
from kit.kernels import DECODERS, ENCODERS
from raylog.client.batches.column_schema import Rows
from raylog.client.batches.decode import SCHEMA, body_of, decode_columns
from raylog.client.batches.encode import header_column, integers
from raylog.protocol.batches.header import check_crc
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import Record, batch_headers, decode_batch

TP = TopicPartition(TopicName("t"), PartitionIndex(0))
BITS = 1 << 64


def columns(data: bytes) -> None:
    """All readers of batches, by rows and by columns, find the same records or the same damage; all writers of columns
    write the same bytes."""
    batches = bytearray(data[1:])
    fix_checksums(batches)
    answer = bytes(batches)
    try:
        headers = list(batch_headers(answer))
    except ERRORS:
        return
    for pos, header in headers:
        rows: list[Record] | None = None
        try:
            rows = decode_batch(answer, pos)
        except ERRORS:
            pass
        for name, decode in DECODERS.items():
            table: Any = None
            try:
                check_crc(answer, pos, header)
                body = body_of(answer, pos, header)
                table = decode_columns(TP, [(header, body)], SCHEMA, from_offset=-BITS, decode=decode)
            except ERRORS:
                pass
            assert (rows is None) == (table is None), name
            if rows is not None:
                table.validate(full=True)
                _agree(rows, table)
                _write(table)


def _write(table: Any) -> None:
    columns = (table.column(name) for name in ("key", "value", "timestamp", "headers"))
    keys, values, times, headers = columns
    rows = Rows(keys, values, integers(times, "timestamps"), header_column(headers))
    cuts = sorted({0, len(table) // 2, len(table)})
    written = {(bytes(body), tuple(edges)) for body, edges in (encode(rows, cuts) for encode in ENCODERS.values())}
    assert len({(body[: edges[-1]], edges) for body, edges in written}) == 1


def _agree(rows: list[Record], table: Any) -> None:
    """Numbers beyond 64 bits, which no broker of ours gives out, come round again in columns."""
    found: dict[str, list[Any]] = {
        name: table.column(name).cast("int64").to_pylist() for name in ("offset", "timestamp")
    }
    assert found["offset"] == [_wrapped(row.offset) for row in rows]
    assert found["timestamp"] == [_wrapped(row.timestamp) for row in rows]
    assert table.column("key").to_pylist() == [row.key for row in rows]
    assert table.column("value").to_pylist() == [row.value for row in rows]
    headers = [[(each["key"], each["value"]) for each in row] for row in table.column("headers").to_pylist()]
    assert headers == [list(row.headers) for row in rows]


def _wrapped(number: int) -> int:
    return (number + BITS // 2) % BITS - BITS // 2


CLIENT_TARGETS = {"columns": Target(columns, batch_seeds, max_len=512)}
