"""Where datasets start and end, and which node reads what."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pandas
import pytest

from raylog.client.ranges.offset_ranges import EARLIEST, LATEST, OffsetRange
from raylog.client.ray_data.plan import by_node, places, tasks_at_once
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition


def tp(partition: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))


PARTITIONS = [tp(0), tp(1), tp(2)]


def piece(partition: int, start: int = 0) -> OffsetRange:
    return OffsetRange(tp(partition), Offset(start), Offset(start + 10))


def test_one_place_is_for_all_partitions() -> None:
    assert places("start_offset", "earliest", LATEST, PARTITIONS).offsets == dict.fromkeys(PARTITIONS, EARLIEST)
    assert places("start_offset", 7, LATEST, PARTITIONS).offsets == dict.fromkeys(PARTITIONS, 7)
    assert places("start_offset", {}, LATEST, PARTITIONS).offsets == dict.fromkeys(PARTITIONS, LATEST)


def test_partitions_that_are_left_out_take_the_default() -> None:
    at = datetime(2024, 5, 1, tzinfo=UTC)
    found = places("end_offset", {"t": {0: 3, 2: at}}, LATEST, PARTITIONS)
    assert found.offsets == {tp(0): 3, tp(1): LATEST}
    assert found.times == {tp(2): 1_714_521_600_000}


@pytest.mark.parametrize(
    ("time", "at_ms"),
    [
        (datetime(2024, 5, 1, 0, 0, 0, 500, UTC), 1_714_521_600_001),
        (datetime(2024, 5, 1, 0, 0, 0, 1_000, UTC), 1_714_521_600_001),
        (datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC), 0),
        (datetime(1969, 12, 31, 23, 59, 59, 998_000, UTC), 0),
        (datetime(1, 1, 1), 0),
        (datetime(9999, 12, 31, 23, 59, 59, 999_000), 253_402_300_799_999),
        (pandas.Timestamp(1_500_001, unit="ns"), 2),
    ],
)
def test_time_is_of_the_first_millisecond_at_or_after(time: datetime, at_ms: int) -> None:
    """Before 1970 too, where the protocol has other meanings: -1 is the end."""
    assert places("start_offset", time, EARLIEST, [tp(0)]).times == {tp(0): at_ms}


def test_a_time_without_a_zone_is_utc() -> None:
    instant = datetime(2024, 5, 1, 12, tzinfo=UTC)
    elsewhere = instant.astimezone(timezone(timedelta(hours=9)))
    times = [places("x", at, LATEST, PARTITIONS).times for at in (instant, elsewhere, instant.replace(tzinfo=None))]
    assert times == [dict.fromkeys(PARTITIONS, 1_714_564_800_000)] * 3


@pytest.mark.parametrize("given", ["newest", -1, True, 1.5, None, pandas.NaT, {"t": {0: "newest"}}, {"t": {1: -2}}])
def test_what_is_no_place_is_named(given: Any) -> None:
    with pytest.raises(ValueError, match=r"start_offset: .* is no place"):
        places("start_offset", given, EARLIEST, PARTITIONS)


def test_unknown_partitions_and_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="start_offset: there is no partition t-3"):
        places("start_offset", {"t": {3: 0}}, EARLIEST, PARTITIONS)
    with pytest.raises(ValueError, match="start_offset: '0' is no partition of t; partitions are numbers"):
        places("start_offset", {"t": {"0": 1}}, EARLIEST, PARTITIONS)  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="end_offset: there is no partition u-0"):
        places("end_offset", {"u": {0: 0}}, EARLIEST, PARTITIONS)
    with pytest.raises(ValueError, match="must be like"):
        places("start_offset", {"t": 3}, EARLIEST, PARTITIONS)  # type: ignore[dict-item]


def test_pieces_are_read_where_their_leader_is() -> None:
    hosts = {tp(0): ("a.example", "10.0.0.1"), tp(1): ("10.0.0.2",), tp(2): ()}
    nodes = {"10.0.0.1": ["one"], "10.0.0.2": ["two"], "10.0.0.3": ["three"]}
    pieces = [piece(0), piece(0, 10), piece(1), piece(2)]
    assert by_node(pieces, hosts, nodes) == {"one": pieces[:2], "two": [pieces[2]], None: [pieces[3]]}
    assert by_node([], hosts, nodes) == {}


def test_a_leader_outside_of_ray_is_near_to_nobody() -> None:
    assert by_node([piece(0)], {tp(0): ("10.9.9.9",)}, {"10.0.0.1": ["one"]}) == {None: [piece(0)]}


def test_nodes_of_one_address_share_what_is_near() -> None:
    hosts = {tp(0): ("127.0.0.1",), tp(1): ("127.0.0.1",)}
    placed = by_node([piece(0), piece(1), piece(0, 10)], hosts, {"127.0.0.1": ["b", "a"]})
    assert placed == {"a": [piece(0), piece(0, 10)], "b": [piece(1)]}


def test_a_node_reads_no_more_at_once_than_it_has_cpus_for() -> None:
    assert tasks_at_once(6, 12, None, None, None) is None
    assert tasks_at_once(6, 12, None, 4.0, None) == 4
    assert tasks_at_once(6, 12, None, 4.0, 2) == 2
    assert tasks_at_once(6, 12, None, 0.5, None) == 1
    assert tasks_at_once(6, 12, 4, 4.0, None) == 2
    assert tasks_at_once(12, 12, 4, None, None) == 4
    assert tasks_at_once(0, 0, 4, None, None) == 1
