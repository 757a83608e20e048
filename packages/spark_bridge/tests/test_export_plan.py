"""Which offsets an export still has to write."""

from __future__ import annotations

import pytest

from raylog.client.ranges.offset_ranges import LogBounds, OffsetRange
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition
from raylog.spark.exports.plan import ExportRefused, plan_export

ZERO, ONE = (TopicPartition(TopicName("clicks"), PartitionIndex(partition)) for partition in (0, 1))


def bounds(first: int, next_offset: int) -> LogBounds:
    return LogBounds(Offset(first), Offset(next_offset))


def wanted(tp: TopicPartition, start: int, end: int) -> OffsetRange:
    return OffsetRange(tp, Offset(start), Offset(end))


def test_a_first_export_takes_all_and_the_next_one_what_came_since() -> None:
    log = {ONE: bounds(0, 10), ZERO: bounds(4, 9)}
    assert plan_export(log, {}, {}, {}) == ([wanted(ZERO, 4, 9), wanted(ONE, 0, 10)], [])
    assert plan_export(log, {ZERO: Offset(9), ONE: Offset(6)}, {}, {}) == ([wanted(ONE, 6, 10)], [])


def test_an_empty_partition_has_nothing_to_export() -> None:
    assert plan_export({ZERO: bounds(0, 0), ONE: bounds(7, 7)}, {}, {}, {}) == ([], [])


def test_since_counts_where_nothing_is_exported_and_until_always() -> None:
    log = {ZERO: bounds(0, 10), ONE: bounds(0, 10)}
    since, until = dict.fromkeys(log, Offset(3)), dict.fromkeys(log, Offset(8))
    assert plan_export(log, {}, since, until)[0] == [wanted(ZERO, 3, 8), wanted(ONE, 3, 8)]
    # the same command again, after a crash
    assert plan_export(log, {ONE: Offset(5)}, since, until)[0] == [wanted(ZERO, 3, 8), wanted(ONE, 5, 8)]
    # the next day's, which begins where yesterday's ended
    assert plan_export(log, until, until, {})[0] == [wanted(ZERO, 8, 10), wanted(ONE, 8, 10)]
    assert plan_export(log, until, {}, since)[0] == []


def test_since_does_not_leave_out_what_lies_behind_the_exported() -> None:
    with pytest.raises(ExportRefused, match=r"clicks-0: exported up to offset 5, and since begins at 8"):
        plan_export({ZERO: bounds(0, 10)}, {ZERO: Offset(5)}, {ZERO: Offset(8)}, {})


def test_what_was_deleted_before_it_was_exported_is_a_loss() -> None:
    ranges, losses = plan_export({ZERO: bounds(20, 30)}, {ZERO: Offset(5)}, {}, {})
    assert ranges == [wanted(ZERO, 20, 30)]
    assert losses == ["clicks-0: offsets 5 to 19 were deleted before they were exported"]
    assert plan_export({ZERO: bounds(20, 30)}, {}, {}, {})[1] == []  # nobody knows of a time when they were to be


def test_a_log_that_ends_before_the_exported_does_is_another_one() -> None:
    with pytest.raises(ExportRefused, match=r"clicks-0: exported up to offset 5, and the log ends at 4"):
        plan_export({ZERO: bounds(0, 4)}, {ZERO: Offset(5)}, {}, {})
