"""What clients count."""

from __future__ import annotations

from math import isnan

from raylog.client.batches.decode import SCHEMA
from raylog.client.fetch.fetch_state import PartitionBuffer
from raylog.client.fetch.subscription import Place
from raylog.client.telemetry.metrics import (
    CONSUMER_METRICS,
    PRODUCER_METRICS,
    SAMPLE_MS,
    FetchCounts,
    NetworkCounts,
    SendCounts,
    Window,
)
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import Record, encode_batch


def test_a_window_tells_of_its_last_two_samples() -> None:
    window = Window()
    assert isnan(window.average(0))
    assert isnan(window.maximum(0))
    window.note(10, 5)
    window.note(20, 6)
    assert (window.average(6), window.maximum(6)) == (15, 20)
    window.note(60, 5 + SAMPLE_MS)
    assert (window.average(5 + SAMPLE_MS), window.maximum(5 + SAMPLE_MS)) == (30, 60)
    assert window.average(5 + 2 * SAMPLE_MS) == 60
    assert isnan(window.average(5 + 3 * SAMPLE_MS))


def test_after_a_pause_a_window_forgets_what_was_before() -> None:
    window = Window()
    window.note(10, 0)
    window.note(20, 10 * SAMPLE_MS)
    assert window.average(10 * SAMPLE_MS) == 20


def test_metrics_have_the_rows_that_are_declared() -> None:
    network, fetches, sends = NetworkCounts().read([], 0), FetchCounts().read([], 0), SendCounts().read(1, 1, 0)
    assert [row.name for row in PRODUCER_METRICS] == [*network, *sends]
    assert [row.name for row in CONSUMER_METRICS] == [*network, *fetches]


def test_each_way_of_reading_counts_records_and_bytes_once() -> None:
    data = b"".join(encode_batch([Record(b"v")] * 3, base_offset=first) for first in (0, 3))
    counted = []
    for way in ("rows", "columns", "raw"):
        counts = FetchCounts()
        place = Place(TopicPartition(TopicName("t"), PartitionIndex(0)))
        place.seek(0)
        buffer = PartitionBuffer(place, None, None, check_crcs=True, counts=counts)
        buffer.add(data, 6)
        if way == "columns":
            buffer.columns(SCHEMA, [])
        elif way == "raw":
            buffer.raw()
        else:
            while found := buffer.peek(2, []):
                buffer.peek(2, [])  # as who stops iterating and comes again
                place.position = found[-1].offset + 1
        counted.append((counts.records, counts.bytes))
    assert counted == [(6, len(data))] * 3
