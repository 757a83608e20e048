"""Idempotent producers: what is a retry, what a gap, and what a restart remembers."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from kit.partitions import NOW, batch, open_shelf
from raylog.broker.storage.state.producers import BATCHES_KEPT, GRACE_MS, Producers
from raylog.protocol.errors import CorruptMessage, InvalidProducerEpoch, OutOfOrderSequence
from raylog.protocol.ids import NO_OFFSET, NO_TIMESTAMP, Offset, TimestampMs
from raylog.protocol.records import BatchHeader, read_header, stamp

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
    older = producers.check(header(0, 2))
    assert older is not None
    assert (older.base_offset, older.last_offset) == (-1, 113), "it lies before the newest"


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
    cut_otherwise = producers.check(header(LAST, 1))
    assert cut_otherwise is not None
    assert cut_otherwise.base_offset == -1
    with pytest.raises(OutOfOrderSequence, match=f"sequence {LAST - 2}, expected 3"):
        producers.check(header(LAST - 2))
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


def test_producer_with_an_open_transaction_is_kept() -> None:
    producers = Producers()
    add(producers, 0, 1, 0, now=1000)
    (producer,) = producers
    producer.transaction_start = Offset(0)
    for uptime in (0, 5000, 10_000):
        assert producers.expire(TimestampMs(1000), uptime, 1000) == 0
    producer.transaction_start = NO_OFFSET
    assert producers.expire(TimestampMs(1000), 10_000, 1000) == 1


def test_producer_id_zero_is_known_to_followers_and_after_a_kill(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path)
    log = shelf.partition.log
    data = batch(b"v", producer=(0, 0, 0))
    stamp(data, 0, 0, 0)
    with log.lock:
        log.append_as_replica(data, [read_header(data)], NOW)
    assert [producer.id for producer in log.producers] == [0]
    shelf.dirs.abandon()
    again = open_shelf(tmp_path)
    assert [producer.id for producer in again.partition.log.producers] == [0]
    assert again.partition.append(batch(b"v", producer=(0, 0, 0)), now_ms=NOW).duplicate
    again.dirs.close()


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


def newest_only(data: bytes) -> bytes:
    """What Kafka makes of a snapshot when it loads and saves it: of each producer the last entry."""
    size = struct.calcsize(">qhiqiqiq")
    entries = {data[at : at + 8]: data[at : at + size] for at in range(10, len(data), size)}
    body = struct.pack(">i", len(entries)) + b"".join(entries.values())
    return struct.pack(">hI", 1, crc32c(body)) + body


def restored(producers: Producers) -> Producers:
    again = Producers.decode(producers.encode(), TimestampMs(NOW))
    assert again.encode() == producers.encode()
    return again


WAYS: dict[str, Callable[[Producers], Producers]] = {
    "in memory": lambda producers: producers,
    "from a snapshot": restored,
    "from a snapshot of a snapshot": lambda producers: restored(restored(producers)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("start", [0, 5, LAST - 4, LAST])
@pytest.mark.parametrize("saved_after", range(9))
def test_each_sequence_is_judged_as_by_a_list(way: str, start: int, saved_after: int) -> None:
    """All batches of up to four records around nine appended ones, whenever the producers were saved meanwhile."""
    producers = Producers()
    stored: list[tuple[int, int, int]] = []  # number of the first sequence, count, offset
    number, offset = 0, 50
    for n in range(9):
        count = 1 + n % 3
        add(producers, (start + number) % (LAST + 1), count, offset)
        stored.append((number, count, offset))
        number, offset = number + count, offset + count + 1
        if n == saved_after:
            producers = WAYS[way](producers)
    offsets = {(first, count): offset for first, count, offset in stored[-BATCHES_KEPT:]}
    for first in range(-6, number + 4):
        for count in range(1, 5):
            asked = header((start + first) % (LAST + 1), count)
            if first == number:
                assert producers.check(asked) is None
            elif first >= 0 and first + count <= number:
                known = producers.check(asked)
                assert known is not None
                assert known.base_offset == offsets.get((first, count), -1)
                last = known.base_offset + count - 1 if known.base_offset >= 0 else offset - 2
                assert known.last_offset == last
            else:
                with pytest.raises(OutOfOrderSequence):
                    producers.check(asked)


def test_snapshot_names_older_sequences_before_the_batches() -> None:
    producers = Producers()
    for n in range(7):
        add(producers, 2 * n, 2, 10 + 2 * n)
    rows = [row[2:5] for row in struct.iter_unpack(">qhiqiqiq", producers.encode()[10:])]
    assert rows == [(3, -1, 3), (5, 15, 1), (7, 17, 1), (9, 19, 1), (11, 21, 1), (13, 23, 1)]


def test_a_snapshot_by_kafka_knows_the_last_batch() -> None:
    producers = Producers()
    for n in range(7):
        add(producers, 2 * n, 2, 10 + 2 * n)
    again = Producers.decode(newest_only(producers.encode()), TimestampMs(NOW))
    known = again.check(header(12, 2))
    assert known is not None
    assert (known.base_offset, known.last_offset) == (22, 23)
    assert again.check(header(14)) is None
    with pytest.raises(OutOfOrderSequence):
        again.check(header(10, 2))


def test_a_run_is_never_longer_than_half_the_circle() -> None:
    producers = Producers()
    add(producers, 0, 1, 0)
    [producer] = producers
    producer.run = 2**30
    add(producers, 1, 1, 1)
    assert restored(producers).check(header((2 - 2**30) % 2**31)) is not None
    with pytest.raises(OutOfOrderSequence):
        restored(producers).check(header((1 - 2**30) % 2**31))


def test_a_gap_in_a_leaders_batches_begins_anew() -> None:
    """The leader had forgotten the producer; then no sequence before the gap is known."""
    producers = Producers()
    add(producers, 0, 3, 0)
    producers.replay(header(7)._replace(base_offset=3), TimestampMs(NOW))
    assert producers.check(header(8)) is None
    for sequence in (0, 2, 3, 6):
        with pytest.raises(OutOfOrderSequence):
            producers.check(header(sequence))


def test_a_producer_without_batches_begins_at_zero() -> None:
    """As in Kafka: its epoch is known, from a marker of a transaction."""
    producers = Producers()
    marker = read_header(batch(b"x", control=True, producer=(1, 4, -1)))
    producers.update(marker, Offset(0), NO_TIMESTAMP, TimestampMs(NOW))
    for each in (producers, restored(producers)):
        assert each.check(header(0, epoch=4)) is None
        with pytest.raises(OutOfOrderSequence):
            each.check(header(1, epoch=4))


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
