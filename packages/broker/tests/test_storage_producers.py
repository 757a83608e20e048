"""Idempotent producers: what is a retry, what a gap, and what a restart remembers."""

from __future__ import annotations

import pytest

from kit.partitions import NOW, batch
from raylog.broker.storage.producers import BATCHES_KEPT, GRACE_MS, Producers
from raylog.protocol.errors import CorruptMessage, DuplicateSequence, InvalidProducerEpoch, OutOfOrderSequence
from raylog.protocol.ids import NO_TIMESTAMP, Offset, TimestampMs
from raylog.protocol.records import BatchHeader, read_header

DAY_MS = 24 * 60 * 60 * 1000
LAST = 2**31 - 1


def header(sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 1) -> BatchHeader:
    return read_header(batch(*[b"v"] * count, producer=(producer, epoch, sequence)))


def add(producers: Producers, sequence: int, count: int, offset: int, *, epoch: int = 0, now: int = NOW) -> None:
    h = header(sequence, count, epoch=epoch)
    assert producers.check(h) is None
    producers.update(h, Offset(offset), NO_TIMESTAMP, TimestampMs(now))


def test_the_last_five_batches_are_known() -> None:
    producers = Producers()
    for n in range(7):
        add(producers, 2 * n, 2, 100 + 2 * n)
    for n in range(7 - BATCHES_KEPT, 7):
        known = producers.check(header(2 * n, 2))
        assert known is not None
        assert (known.base_offset, known.last_offset) == (100 + 2 * n, 101 + 2 * n)
    with pytest.raises(DuplicateSequence):
        producers.check(header(0, 2))


def test_a_gap_is_refused() -> None:
    producers = Producers()
    add(producers, 0, 3, 0)
    with pytest.raises(OutOfOrderSequence, match="sequence 4, expected 3"):
        producers.check(header(4))
    with pytest.raises(OutOfOrderSequence):
        producers.check(header(2, 3))  # begins in what is there and goes beyond


def test_sequences_wrap() -> None:
    producers = Producers()
    add(producers, LAST - 1, 2, 0)
    add(producers, 0, 2, 2)
    add(producers, 2, 1, 4)
    known = producers.check(header(LAST - 1, 2))
    assert known is not None
    assert known.base_offset == 0
    with pytest.raises(DuplicateSequence):
        producers.check(header(LAST, 1))
    over = header(LAST, 3)
    assert over.last_sequence == 1
    producers = Producers()
    add(producers, LAST, 3, 0)
    add(producers, 2, 1, 3)


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert Producers().check(header(77)) is None


def test_epochs() -> None:
    producers = Producers()
    add(producers, 0, 5, 0, epoch=2)
    with pytest.raises(InvalidProducerEpoch):
        producers.check(header(5, epoch=1))
    with pytest.raises(OutOfOrderSequence):
        producers.check(header(5, epoch=3))
    add(producers, 0, 1, 5, epoch=3)
    add(producers, 1, 1, 6, epoch=3)
    known = producers.check(header(0, epoch=3))
    assert known is not None
    assert known.base_offset == 5


def test_silent_producers_are_forgotten() -> None:
    producers = Producers()
    add(producers, 0, 1, 0, now=1000)
    now = TimestampMs(1000)
    assert producers.expire(now, 500, 1000) == 0
    add(producers, 1, 1, 1, now=1000)
    assert producers.expire(now, 1499, 1000) == 0
    assert producers.expire(now, 2498, 1000) == 0
    assert producers.expire(now, 2499, 1000) == 1
    assert len(producers) == 0


@pytest.mark.parametrize("step", [-DAY_MS, DAY_MS])
def test_a_clock_that_is_set_makes_nobody_silent(step: int) -> None:
    producers = Producers()
    add(producers, 0, 1, 0, now=NOW)
    assert producers.expire(TimestampMs(NOW), 0, DAY_MS) == 0
    assert producers.expire(TimestampMs(NOW + step), 1000, DAY_MS) == 0
    add(producers, 1, 1, 1, now=NOW + step)
    assert producers.expire(TimestampMs(NOW + 2 * DAY_MS), 2000, DAY_MS) == 0
    assert producers.expire(TimestampMs(NOW), 2000 + DAY_MS, DAY_MS) == 1


def test_the_silence_before_a_start_counts_but_for_an_hour() -> None:
    producers = Producers()
    add(producers, 0, 1, 0, now=NOW)
    again = Producers.decode(producers.encode(), TimestampMs(NOW + 9 * DAY_MS))
    assert again.expire(TimestampMs(NOW + 9 * DAY_MS), 0, DAY_MS) == 0
    assert again.expire(TimestampMs(NOW + 9 * DAY_MS), GRACE_MS - 1, DAY_MS) == 0
    assert again.expire(TimestampMs(NOW + 9 * DAY_MS), GRACE_MS, DAY_MS) == 1


def test_a_snapshot_keeps_the_last_batch() -> None:
    producers = Producers()
    add(producers, LAST - 2, 2, 10)
    add(producers, LAST, 3, 12)
    again = Producers.decode(producers.encode(), TimestampMs(NOW))
    known = again.check(header(LAST, 3))
    assert known is not None
    assert (known.base_offset, known.last_offset) == (12, 14)
    assert again.check(header(2)) is None
    with pytest.raises(DuplicateSequence):
        again.check(header(LAST - 2, 2))
    assert again.encode() == producers.encode()


def test_a_damaged_snapshot_is_told() -> None:
    producers = Producers()
    add(producers, 0, 1, 0)
    data = producers.encode()
    for n in range(len(data)):
        with pytest.raises(CorruptMessage):
            Producers.decode(data[:n], TimestampMs(NOW))
        flipped = bytearray(data)
        flipped[n] ^= 0x10
        with pytest.raises(CorruptMessage):
            Producers.decode(bytes(flipped), TimestampMs(NOW))
