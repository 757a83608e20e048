"""The record codec and the hot messages on one core: ``python tests/bench/bench_codec.py``. Ends with one JSON line.

Each figure is the best of many rounds in CPU time, so that another process on the machine costs rounds and not the
figure.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from uuid import UUID

from raylog.protocol.fetch import (
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
from raylog.protocol.messages import parse_request_header
from raylog.protocol.produce import (
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
from raylog.protocol.records import Codec, Record, decode_batch, encode_batch, validate_batch

NOW_MS = 1_700_000_000_000
TOPIC_ID = UUID(int=1)
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
    print("microseconds")
    for name, microseconds in bench_messages().items():
        print(f"{name:<40} {microseconds:6.2f}")
    encode, decode = figures[1000]["value only"]
    print(json.dumps({"codec_encode_m_per_s": round(encode, 2), "codec_decode_m_per_s": round(decode, 2)}))


if __name__ == "__main__":
    main()
