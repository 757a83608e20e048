"""What consumers do with ``isolation.level``. Brokers have no transactions yet: a proxy puts some into answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.machine import scaled_ms
from kit.proxied import proxied
from raylog.client import Consumer, Producer
from raylog.protocol.batches.transactions import AbortedTransaction
from raylog.protocol.records import Record, encode_batch
from raylog.protocol.wire import fetch
from raylog.protocol.wire.messages import parse_request_header

pytestmark = pytest.mark.system

ABORTED = AbortedTransaction(producer_id=7, first_offset=0)
SETTINGS = {"auto_offset_reset": "earliest"}


def transactions() -> bytes:
    """Producer 7 aborts offset 0 by the marker 2; producer 8 commits offset 1 by the marker 3; 4 is of none."""

    def batch(offset: int, producer: int, *, control: bool = False) -> bytes:
        return encode_batch(
            [Record(b"%d" % offset)],
            base_offset=offset,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
            control=control,
        )

    last = encode_batch([Record(b"4")], base_offset=4)
    return b"".join([batch(0, 7), batch(1, 8), batch(2, 7, control=True), batch(3, 8, control=True), last])


def with_transactions(version: int, frame: bytes, isolation_level: int) -> bytes:
    """The answer with the transactions in place of the five records that the partition has."""
    aborted = [ABORTED] if isolation_level else None
    correlation_id, response = fetch.parse_fetch_response(version, frame)
    topics = [
        topic._replace(
            partitions=[
                found._replace(records=memoryview(transactions()), aborted=aborted) if found.records else found
                for found in topic.partitions
            ]
        )
        for topic in response.topics
    ]
    return b"".join(fetch.encode_fetch_response(version, correlation_id, response._replace(topics=topics)))


@pytest.mark.parametrize(("level", "wire", "seen"), [("read_committed", 1, [1, 4]), ("read_uncommitted", 0, [0, 1, 4])])
def test_aborted_transactions_are_left_out_as_the_answer_lists_them(
    tmp_path: Path, level: str, wire: int, seen: list[int]
) -> None:
    with proxied(tmp_path) as (cluster, proxy, servers):
        with Producer(cluster.bootstrap_servers) as producer:
            for _ in range(5):
                producer.send("t", b"v", partition=0)
        levels: set[int] = set()

        def note(frame: bytes) -> bytes:
            header = parse_request_header(memoryview(frame))
            if header.api_key == fetch.API_KEY:
                request = fetch.parse_fetch_request(header.version, memoryview(frame)[header.body_pos :])
                levels.add(request.isolation_level)
            return frame

        def answer(api_key: int, version: int, frame: bytes) -> bytes:
            return with_transactions(version, frame, min(levels)) if api_key == fetch.API_KEY else frame

        proxy.edit_request, proxy.edit_answer = note, answer
        with Consumer(servers, isolation_level=level, **SETTINGS) as consumer:
            consumer.assign([("t", 0)])
            assert [record.offset for record in consumer.iterate(until_end=True)] == seen
            assert consumer.position("t", 0) == 5
            consumer.seek("t", 0, 0)
            table = consumer.poll_columns(timeout_ms=scaled_ms(10_000))
            assert table.column("value").to_pylist() == [b"%d" % offset for offset in seen]
        assert levels == {wire}
