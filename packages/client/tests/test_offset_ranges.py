"""What offset options stand for, and how ranges are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.client.ranges.offset_ranges import (
    EARLIEST,
    LATEST,
    AtTime,
    LogBounds,
    OffsetRange,
    parse_offsets,
    parse_partitions,
    parse_time,
    parse_times,
    resolve,
    split,
)
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition


def tp(partition: int, topic: str = "flights") -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))


def bounds(*pairs: tuple[int, int]) -> dict[TopicPartition, LogBounds]:
    return {tp(i): LogBounds(Offset(first), Offset(end)) for i, (first, end) in enumerate(pairs)}


def ranges(*triples: tuple[int, int, int]) -> list[OffsetRange]:
    return [OffsetRange(tp(partition), Offset(start), Offset(end)) for partition, start, end in triples]


def test_words_and_json_are_parsed() -> None:
    assert parse_offsets("startingOffsets", "earliest") == EARLIEST
    assert parse_offsets("endingOffsets", " Latest ") == LATEST
    assert parse_offsets("startingOffsets", '{"flights": {"0": 23, "1": -2}}') == {tp(0): 23, tp(1): -2}
    assert parse_offsets("endingOffsets", '{"flights": {"0": 23, "1": -1}}') == {tp(0): 23, tp(1): -1}


@pytest.mark.parametrize(
    ("option", "text", "complaint"),
    [
        ("startingOffsets", "latest", "leaves nothing to read: latest"),
        ("startingOffsets", '{"flights": {"0": -1}}', "leaves nothing to read: latest"),
        ("endingOffsets", "earliest", "leaves nothing to read: earliest"),
        ("startingOffsets", "first", "must be earliest, latest or JSON"),
        ("startingOffsets", "[1]", "must be earliest, latest or JSON"),
        ("startingOffsets", '{"flights": 3}', "must be earliest, latest or JSON"),
        ("startingOffsets", '{"flights": {"x": 3}}', "must be earliest, latest or JSON"),
        ("startingOffsets", '{"flights": {"0": -3}}', "-3 is no offset for flights-0"),
        ("startingOffsets", '{"flights": {"0": "7"}}', "'7' is no offset for flights-0"),
        ("startingOffsets", '{"flights": {"0": true}}', "True is no offset for flights-0"),
    ],
)
def test_unfit_offsets_are_refused_in_one_sentence(option: str, text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        parse_offsets(option, text, pointless=LATEST if option == "startingOffsets" else EARLIEST)
    assert option in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_stream_may_start_at_the_end() -> None:
    assert parse_offsets("startingOffsets", "latest") == LATEST
    assert parse_offsets("startingOffsets", '{"flights": {"0": -1}}') == {tp(0): LATEST}


def test_times_are_parsed() -> None:
    assert parse_time("startingTimestamp", " 1500 ") == AtTime(1_500)
    assert parse_times("startingOffsetsByTimestamp", '{"flights": {"0": 0, "1": 9}}') == AtTime({tp(0): 0, tp(1): 9})
    with pytest.raises(ValueError, match="startingTimestamp='-1' must be milliseconds since 1970"):
        parse_time("startingTimestamp", "-1")
    with pytest.raises(ValueError, match=r"must be JSON with milliseconds since 1970 .*: -1 is no time for flights-0"):
        parse_times("endingOffsetsByTimestamp", '{"flights": {"0": -1}}')


def test_partitions_are_parsed() -> None:
    assert parse_partitions("assign", '{"flights": [1, 0, 1], "delays": [2]}') == (tp(2, "delays"), tp(0), tp(1))


@pytest.mark.parametrize(
    "text",
    ["flights", "{}", '{"flights": []}', '{"flights": 3}', '{"flights": [-1]}', "[1]", '{"f": [true]}', '{"f": [[]]}'],
)
def test_unfit_partitions_are_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"assign=.* must be JSON like") as caught:
        parse_partitions("assign", text)
    assert "\n" not in str(caught.value)


def test_everything_is_read_by_default() -> None:
    assert resolve(EARLIEST, LATEST, bounds((0, 10), (5, 7), (3, 3))) == (ranges((0, 0, 10), (1, 5, 7)), [])


def test_each_partition_may_have_its_own_offsets() -> None:
    found = resolve({tp(0): Offset(4), tp(1): EARLIEST}, {tp(0): LATEST, tp(1): Offset(6)}, bounds((0, 10), (5, 7)))
    assert found == (ranges((0, 4, 10), (1, 5, 6)), [])


def test_offsets_that_the_log_has_not_are_named_and_moved() -> None:
    found, losses = resolve(
        {tp(0): Offset(4), tp(1): Offset(2)}, {tp(0): Offset(12), tp(1): Offset(7)}, bounds((0, 10), (5, 7))
    )
    assert found == ranges((0, 4, 10), (1, 5, 7))
    assert losses == [
        "flights-0 has offsets 0 to 9, not 12",
        "flights-1 has offsets 5 to 6, not 2",
    ]


def test_a_range_that_was_deleted_altogether_is_a_loss() -> None:
    found, losses = resolve({tp(0): Offset(1)}, {tp(0): Offset(3)}, bounds((5, 9)))
    assert found == []
    assert losses == ["flights-0 has offsets 5 to 8, not 1", "flights-0 has offsets 5 to 8, not 3"]


def test_an_empty_log_says_so() -> None:
    found, losses = resolve({tp(0): Offset(1)}, LATEST, bounds((5, 5)))
    assert found == []
    assert losses == ["flights-0 has no records and goes on at offset 5, not 1"]


def test_json_names_each_partition_once() -> None:
    with pytest.raises(ValueError, match="missing are flights-1; unknown are other-0"):
        resolve({tp(0): Offset(0), tp(0, "other"): Offset(0)}, LATEST, bounds((0, 10), (0, 10)))


def test_a_range_does_not_end_before_it_starts() -> None:
    with pytest.raises(ValueError, match="flights-0: endingOffsets 3 is before startingOffsets 4"):
        resolve({tp(0): Offset(4)}, {tp(0): Offset(3)}, bounds((0, 10)))


def test_a_partition_is_a_task_unless_more_are_wanted() -> None:
    two = ranges((0, 0, 900), (1, 50, 150))
    assert split(two) == two
    assert split(two, min_partitions=2) == two
    cut = split(two, min_partitions=10)
    assert [piece.size for piece in cut] == [100] * 10
    assert cut[-1] == two[1]


def test_no_more_pieces_than_offsets_are_cut() -> None:
    """However many are asked for: nothing is made for the others."""
    assert split(ranges((0, 3, 5)), min_partitions=10**12) == ranges((0, 3, 4), (0, 4, 5))


def test_long_ranges_are_cut_to_the_most_records() -> None:
    assert split(ranges((0, 0, 10)), max_records=4) == ranges((0, 0, 3), (0, 3, 6), (0, 6, 10))
    assert split([], min_partitions=4, max_records=1) == []


@pytest.mark.parametrize("options", [{"min_partitions": 0}, {"max_records": -1}])
def test_less_than_one_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        split([], **options)


@given(
    sizes=st.lists(st.integers(1, 10_000), max_size=8),
    min_partitions=st.none() | st.integers(1, 50),
    max_records=st.none() | st.integers(1, 3_000),
)
def test_cutting_loses_and_doubles_nothing(
    sizes: list[int], min_partitions: int | None, max_records: int | None
) -> None:
    whole = ranges(*((number, 7, 7 + size) for number, size in enumerate(sizes)))
    pieces = split(whole, min_partitions=min_partitions, max_records=max_records)
    assert [(piece.tp, offset) for piece in pieces for offset in range(piece.start, piece.end)] == [
        (piece.tp, offset) for piece in whole for offset in range(piece.start, piece.end)
    ]
    assert all(piece.size <= (max_records or 10_000) for piece in pieces)
