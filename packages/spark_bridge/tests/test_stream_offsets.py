from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.client.ranges.offset_ranges import EARLIEST, LATEST, LogBounds, OffsetRange
from raylog.protocol.ids import NO_TOPIC_ID, BrokerId, Offset, PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.spark.reading.stream_offsets import (
    Backlog,
    Seen,
    StreamOffset,
    admit,
    advance,
    backlog,
    beginning,
    behind,
    is_early,
    ranges_between,
)

FLIGHTS = TopicName("flights")
ONE, OTHER = TopicId(UUID(int=1)), TopicId(UUID(int=2))


def tp(partition: int) -> TopicPartition:
    return TopicPartition(FLIGHTS, PartitionIndex(partition))


def seen(*bounds: tuple[int, int], topic_id: TopicId = ONE) -> Seen:
    """One log per partition, from 0."""
    logs = {tp(number): LogBounds(Offset(first), Offset(end)) for number, (first, end) in enumerate(bounds)}
    return Seen(dict.fromkeys(logs, BrokerId(0)), {FLIGHTS: topic_id}, logs)


def at(*positions: int, topic_id: TopicId = ONE, initial: tuple[int, ...] | None = None) -> StreamOffset:
    return StreamOffset(of(*positions), {FLIGHTS: topic_id}, None if initial is None else of(*initial))


def of(*positions: int) -> dict[TopicPartition, Offset]:
    return {tp(number): Offset(position) for number, position in enumerate(positions)}


def unread(found: Backlog) -> list[tuple[int, int]]:
    return [tuple(log) for _, log in sorted(found.unread.items())]


# --- the checkpoint ---


@pytest.mark.parametrize("offset", [at(3, 0), at(7, 9, initial=(2, 9)), StreamOffset({}, {}, {})])
def test_an_offset_comes_back_from_the_checkpoint(offset: StreamOffset) -> None:
    assert StreamOffset.from_json(offset.to_json()) == offset


def test_the_text_of_an_offset_is_stable() -> None:
    told = '"topic_ids": {"flights": "00000000-0000-0000-0000-000000000001"}'
    assert at(3, 4).to_json() == f'{{"format": 1, "positions": {{"flights": {{"0": 3, "1": 4}}}}, {told}}}'
    backwards = StreamOffset(dict(reversed(of(3, 4).items())), {FLIGHTS: ONE})
    assert backwards.to_json() == at(3, 4).to_json()


@pytest.mark.parametrize(
    "text",
    ['{"flights": {"0": 3}}', "7", "null", "{", json.dumps({**json.loads(at(3).to_json()), "format": 2})],
    ids=["of Kafka's source", "a number", "null", "no JSON", "of a newer raylog"],
)
def test_a_checkpoint_of_another_source_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"is none of a raylog stream .*take a new checkpoint"):
        StreamOffset.from_json(text)


# --- where it begins ---


def test_a_stream_begins_where_it_is_told() -> None:
    logs = seen((5, 20), (0, 8))
    assert beginning(EARLIEST, logs).positions == of(5, 0)
    assert beginning(LATEST, logs).positions == of(20, 8)
    chosen = beginning({tp(0): Offset(7), tp(1): EARLIEST}, logs)
    assert chosen.positions == of(7, 0) == chosen.initial
    with pytest.raises(ValueError, match=r"startingOffsets must name every partition .* missing are flights-1"):
        beginning({tp(0): Offset(7)}, logs)


def test_the_first_batch_is_the_same_when_it_runs_again() -> None:
    begin = beginning(EARLIEST, seen((5, 20), (0, 8)))
    end = at(12, 8, initial=(5, 0))
    assert ranges_between(None, end) == [
        OffsetRange(tp(0), Offset(5), Offset(12)),
        OffsetRange(tp(1), Offset(0), Offset(8)),
    ]
    assert ranges_between(None, end) == ranges_between(begin, end)
    with pytest.raises(ValueError, match="lost the offsets before"):
        ranges_between(None, at(12, 8))


# --- what is new, and what is lost ---


def test_what_follows_is_unread() -> None:
    start = at(3, 8)
    found = backlog(start, seen((0, 9), (2, 8)))
    assert (unread(found), found.losses, found.size) == ([(3, 9), (8, 8)], (), 6)
    assert advance(start, seen((0, 9), (2, 8)), found, None) == at(9, 8)


def test_nothing_new_is_the_very_same_offset() -> None:
    """Spark compares the texts, and the first batch's end says more than those of others."""
    start = at(9, 8, initial=(0, 0))
    logs = seen((0, 9), (0, 8))
    assert advance(start, logs, backlog(start, logs), None) is start


def test_a_partition_that_was_added_is_read_from_its_beginning() -> None:
    start, logs = at(9), seen((0, 9), (0, 4))
    found = backlog(start, logs)
    assert (unread(found), found.losses) == ([(9, 9), (0, 4)], ())
    assert ranges_between(start, advance(start, logs, found, None)) == [OffsetRange(tp(1), Offset(0), Offset(4))]


def test_a_partition_that_was_added_and_has_lost_records_is_a_loss() -> None:
    assert backlog(at(9), seen((0, 9), (3, 4))).losses == ("flights-1: offsets 0 to 2 are gone",)


def test_deleted_records_are_a_loss_and_left_out() -> None:
    start, logs = at(3), seen((7, 9))
    found = backlog(start, logs)
    assert (unread(found), found.losses) == ([(7, 9)], ("flights-0: offsets 3 to 6 are gone",))
    assert advance(start, logs, found, 1) == at(8)


def test_a_log_that_ends_earlier_is_a_loss_and_read_from_its_end() -> None:
    start, logs = at(12), seen((0, 9))
    found = backlog(start, logs)
    assert unread(found) == [(9, 9)]
    assert found.losses == ("flights-0: the log ends at offset 9 and the stream was at 12: records before are gone",)
    end = advance(start, logs, found, None)
    assert end == at(9)
    assert ranges_between(start, end) == []
    assert ranges_between(end, at(10)) == [OffsetRange(tp(0), Offset(9), Offset(10))]


def test_a_topic_created_again_is_a_loss_and_read_from_its_beginning() -> None:
    start, logs = at(3), seen((0, 9), topic_id=OTHER)
    found = backlog(start, logs)
    assert unread(found) == [(0, 9)]
    [loss] = found.losses
    assert loss == "flights-0 was deleted and created again, and what the old one had from offset 3 on is gone"
    end = advance(start, logs, found, 2)
    assert end == at(2, topic_id=OTHER)
    assert ranges_between(start, end) == [OffsetRange(tp(0), Offset(0), Offset(2))]


def test_a_topic_created_again_is_noticed_also_when_it_is_empty() -> None:
    start, logs = at(0), seen((0, 0), topic_id=OTHER)
    assert advance(start, logs, backlog(start, logs), None) == at(0, topic_id=OTHER)


def test_brokers_that_tell_no_ids_are_believed() -> None:
    assert backlog(at(3), seen((0, 9), topic_id=NO_TOPIC_ID)).losses == ()


def test_a_partition_that_is_gone_is_a_loss_and_forgotten() -> None:
    start, logs = at(3, 4), seen((0, 9))
    found = backlog(start, logs)
    assert found.losses == ("flights-1 is gone (deleted, or not selected any more), with what came from offset 4 on",)
    assert advance(start, logs, found, None) == at(9)


def test_a_stream_of_what_is_available_ends_there() -> None:
    logs, until = seen((0, 9), (0, 9), (0, 9)), of(5, 2)
    found = backlog(at(3, 4), logs, until)
    assert unread(found) == [(3, 5), (4, 4), (0, 0)]


# --- how much a batch takes ---


@given(st.lists(st.integers(0, 1_000), max_size=6), st.integers(1, 2_000))
def test_a_batch_has_as_much_as_it_may(sizes: list[int], most: int) -> None:
    shares = admit({tp(number): size for number, size in enumerate(sizes)}, most)
    assert min(most, sum(sizes)) - len(sizes) <= sum(shares.values()) <= most
    assert all(0 <= shares[tp(number)] <= size for number, size in enumerate(sizes))
    if most >= len(sizes):
        assert all(shares[tp(number)] > 0 for number, size in enumerate(sizes) if size)


def test_a_batch_takes_of_each_partition_in_proportion() -> None:
    assert list(admit({tp(0): 9_000, tp(1): 1_000, tp(2): 0}, 1_000).values()) == [900, 100, 0]
    assert list(admit({tp(0): 1_000_000, tp(1): 1}, 10).values()) == [9, 1]
    assert list(admit({tp(0): 5, tp(1): 9, tp(2): 7}, 2).values()) == [0, 1, 1]
    assert list(admit({tp(0): 5, tp(1): 9}, None).values()) == [5, 9]


@pytest.mark.parametrize(
    ("size", "waited_ms", "early"), [(9, 0.0, True), (9, 999.9, True), (9, 1_000.0, False), (10, 0.0, False)]
)
def test_a_small_batch_waits_but_not_for_ever(size: int, waited_ms: float, *, early: bool) -> None:
    assert is_early(size, 10, waited_ms, 1_000) is early
    assert not is_early(size, None, waited_ms, 1_000)


def test_the_lag_has_the_names_of_spark_s_kafka_source() -> None:
    assert behind(of(3, 4, 2), seen((0, 9), (0, 5), (0, 2)).bounds) == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "6",
        "avgOffsetsBehindLatest": str(7 / 3),
    }
    assert behind({}, {}) == {}
