"""The record codec and the hot messages on one core: ``python tests/bench/bench_codec.py``. Ends with one JSON line.

Each figure is the best of many rounds in CPU time, so that another process on the machine costs rounds and not the
figure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from uuid import UUID

import numpy as np
import pyarrow as pa

from raylog.client.batches.column_schema import Rows
from raylog.client.batches.decode import DECODE, SCHEMA, Decode, body_of, decode_columns
from raylog.client.batches.encode import ENCODE, Encode, encode_rows
from raylog.client.batches.numpy_decode import decode_by_numpy
from raylog.client.batches.numpy_encode import encode_by_numpy
from raylog.protocol.batches.compiled import KERNEL
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import Codec, Record, batch_headers, decode_batch, encode_batch, validate_batch
from raylog.protocol.wire.fetch import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    encode_fetch_request,
    encode_fetch_response,
    parse_fetch_request,
)
from raylog.protocol.wire.messages import parse_request_header
from raylog.protocol.wire.produce import (
    PartitionRecords,
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
    ProduceResponse,
    TopicRecords,
    encode_produce_request,
    encode_produce_response,
    parse_produce_request,
)

NOW_MS = 1_700_000_000_000
TOPIC_ID = UUID(int=1)
TP = TopicPartition(TopicName("bench"), PartitionIndex(0))
SECONDS_EACH = 0.4
MIN_ROUNDS = 20
ROUND_SECONDS = 0.005


def best_seconds(work: Callable[[], object]) -> float:
    """The least CPU time that ``work`` took, averaged over a round that is long beside the clock's steps."""
    start = time.perf_counter()
    work()
    repeats = range(max(1, round(ROUND_SECONDS / (time.perf_counter() - start))))
    best = float("inf")
    end = time.perf_counter() + SECONDS_EACH
    rounds = 0
    while rounds < MIN_ROUNDS or time.perf_counter() < end:
        start = time.thread_time()
        for _ in repeats:
            work()
        best = min(best, (time.thread_time() - start) / len(repeats))
        rounds += 1
    return best


def value(number: int) -> bytes:
    """100 bytes that compress about as well as text does."""
    return b"%020d some words that are the same in every record, and then %020d" % (number * 7919, number) + b"." * 2


CASES: dict[str, Callable[[int], Record]] = {
    "value only": lambda i: Record(value(i), timestamp=NOW_MS),
    "timestamps": lambda i: Record(value(i), timestamp=NOW_MS + i),
    "keys": lambda i: Record(value(i), b"key-%06d" % i, timestamp=NOW_MS + i),
    "headers": lambda i: Record(value(i), b"key-%06d" % i, (("name", b"value"),), NOW_MS + i),
}


def bench_records(count: int, codec: Codec) -> dict[str, tuple[float, float]]:
    """Millions of records per second, encoded and decoded, by case."""
    figures = {}
    for name, make in CASES.items():
        records = [make(i) for i in range(count)]
        batch = encode_batch(records, codec=codec)
        encode = count / best_seconds(lambda: encode_batch(records, codec=codec)) / 1e6  # noqa: B023
        decode = count / best_seconds(lambda: decode_batch(batch)) / 1e6  # noqa: B023
        figures[name] = (encode, decode)
    return figures


def columns_figures() -> dict[str, float]:
    """Millions of records per second from what a fetch returned to an Arrow batch of all columns, and without headers
    from Arrow columns to batches' bodies, one core: by the compiled kernel (nothing, where there is none) and without.

    Records have a value of 100 bytes and a timestamp, batches a thousand of them, the fetch a megabyte. Reading headers
    and checking checksums is part of the figure.
    """
    batch = 1000
    data = b"".join(
        encode_batch([CASES["timestamps"](n) for n in range(first, first + batch)], base_offset=first)
        for first in range(0, 10 * batch, batch)
    )
    count = 10 * batch
    values = pa.array([value(n) for n in range(count)], pa.binary())
    rows = Rows(pa.nulls(count, pa.binary()), values, np.arange(NOW_MS, NOW_MS + count), None)

    def decode_by(decode: Decode) -> pa.RecordBatch:
        batches = [(header, body_of(data, pos, header)) for pos, header in batch_headers(data)]
        return decode_columns(TP, batches, SCHEMA, from_offset=0, decode=decode)

    def encode_by(encode: Encode) -> int:
        batches = encode_rows(rows, lambda part, sizes: None, lambda size: 0, 110 * batch, encode=encode)
        return sum(encoded.record_count for encoded in batches)

    ways: dict[str, tuple[Decode, Encode]] = {"python": (decode_by_numpy, encode_by_numpy)}
    if KERNEL is not None:
        ways["kernel"] = (DECODE, ENCODE)
    figures = {}
    for name, (decode, encode) in ways.items():
        assert decode_by(decode).column("value") == values
        assert encode_by(encode) == count
        figures[f"{name}_decode_m_per_s"] = round(count / best_seconds(lambda: decode_by(decode)) / 1e6, 2)  # noqa: B023
        figures[f"{name}_encode_m_per_s"] = round(count / best_seconds(lambda: encode_by(encode)) / 1e6, 2)  # noqa: B023
    return figures


def bench_messages() -> dict[str, float]:
    """Microseconds that a broker spends on the bytes of one request and its response, one partition each."""
    batch = encode_batch([CASES["keys"](i) for i in range(550)])  # about 64 KB
    topic = TopicRecords("", TOPIC_ID, [PartitionRecords(0, batch)])
    parts = encode_produce_request(13, ProduceRequest(None, 1, 1000, [topic]), correlation_id=1, client_id="bench")
    produce_frame = memoryview(b"".join(parts))[4:]
    produced = ProduceResponse([ProducedTopic("", TOPIC_ID, [ProducedPartition(0, 0, 5)])])
    fetch = FetchRequest(500, 1, [FetchTopic("", TOPIC_ID, [FetchPartition(0, 5, 1 << 20)])])
    fetch_frame = memoryview(encode_fetch_request(17, fetch, correlation_id=1, client_id="bench"))[4:]
    fetched = FetchResponse([FetchedTopic("", TOPIC_ID, [FetchedPartition(0, records=batch)])])

    def produce_once() -> None:
        header = parse_request_header(produce_frame)
        parse_produce_request(header.version, produce_frame[header.body_pos :])
        encode_produce_response(header.version, header.correlation_id, produced)

    def fetch_once() -> None:
        header = parse_request_header(fetch_frame)
        parse_fetch_request(header.version, fetch_frame[header.body_pos :])
        encode_fetch_response(header.version, header.correlation_id, fetched)

    return {
        "produce request and response": best_seconds(produce_once) * 1e6,
        "fetch request and response": best_seconds(fetch_once) * 1e6,
        "validate a batch of 64 KB": best_seconds(lambda: validate_batch(batch)) * 1e6,
    }


def main() -> None:
    print(f"{'millions of records a second':<40} encode  decode")
    figures = {}
    for count in (10, 100, 1000):
        figures[count] = bench_records(count, Codec.NONE)
        for name, (encode, decode) in figures[count].items():
            print(f"{name + f', batches of {count}':<40} {encode:6.2f}  {decode:6.2f}")
    for codec in list(Codec)[1:]:
        encode, decode = bench_records(1000, codec)["keys"]
        print(f"{'keys, batches of 1000, ' + codec.name.lower():<40} {encode:6.2f}  {decode:6.2f}")
    columns = columns_figures()
    for name, millions in columns.items():
        print(f"{name.removesuffix('_m_per_s').replace('_', ' ') + ', all columns':<40} {millions:6.2f}")
    print("microseconds")
    for name, microseconds in bench_messages().items():
        print(f"{name:<40} {microseconds:6.2f}")
    encode, decode = figures[1000]["value only"]
    rows = {"codec_encode_m_per_s": round(encode, 2), "codec_decode_m_per_s": round(decode, 2)}
    print(json.dumps(rows | columns))


if __name__ == "__main__":
    main()
