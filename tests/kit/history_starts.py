"""Judges where logs begin: only what DeleteRecords or retention took away is gone, and it stays gone.

What is taken away is always a prefix, so that one number, the log's start, tells it. A start that was told is judged by
what could have moved it before the answer came: a DeleteRecords that had been asked, answered or not, or retention.
Retention by age takes only records that were sent longer ago than it keeps them; retention by size leaves so many
committed records, which the end shows that is asked for next. A start that only retention had moved may go back with
another leader, as in Kafka; one that DeleteRecords told may not, for the in-sync replicas had it, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from kit.history_operations import Operations, Retention, Send

__all__ = ["Highest", "came_back", "last_starts", "removed_early"]

_NO_RETENTION = Retention()
_ALL = 1 << 63


class Highest:
    """The greatest number told so far; asked with times that only grow."""

    def __init__(self, told: Iterable[tuple[int, int]]) -> None:
        """``told``: times, ascending, and numbers."""
        self._told = iter(told)
        self._next = next(self._told, None)
        self._highest = -1

    def before(self, time: int) -> int:
        while self._next is not None and self._next[0] < time:
            self._highest = max(self._highest, self._next[1])
            self._next = next(self._told, None)
        return self._highest


def last_starts(ops: Operations) -> dict[int, int]:
    """Where each log begins in the end, as it was told last."""
    return {
        partition: start
        for answer in sorted(ops.starts, key=lambda answer: answer.ended)
        for partition, start in answer.starts
    }


def removed_early(ops: Operations) -> Iterator[str]:
    """Starts beyond what anything was allowed to take away."""
    told: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for answer in ops.starts:
        for partition, start in answer.starts:
            told[partition].append((answer.ended, start))
    asked = _asked_to_delete(ops)
    ends = _ends_asked(ops)
    sends = _by_offset(ops)
    for partition, answers in told.items():
        allowed = Highest(sorted(asked[partition]))
        retention = ops.retention.get(partition, _NO_RETENTION)
        looked_at = 0
        next_ends = iter(ends[partition])
        next_end = next(next_ends, None)
        for when, start in sorted(answers):
            below = max(allowed.before(when), 0)
            while next_end is not None and next_end[0] <= when:
                next_end = next(next_ends, None)
            if start <= below:
                continue
            where = f"partition {partition} begins at {start}, DeleteRecords was asked up to {below}"
            if retention.keeps_records is not None:
                if next_end is not None and next_end[1] < start + retention.keeps_records:
                    yield f"{where}, and retention left {next_end[1] - start} of {retention.keeps_records} records"
            elif retention.keeps_ns is not None:
                for send in _between(sends[partition], max(below, looked_at), start):
                    if send.begun > when - retention.keeps_ns:
                        age_ms = (when - send.begun) // 1_000_000
                        yield f"{where}, and the record at {send.offset} was only {age_ms} ms old"
                looked_at = start
            else:
                yield where


def _asked_to_delete(ops: Operations) -> dict[int, list[tuple[int, int]]]:
    """Per partition when a DeleteRecords began, and the highest start that it may cause."""
    asked: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for delete in ops.deletes:
        most = delete.offset
        if most < 0:
            most = delete.start if delete.start >= 0 else _ALL
        asked[delete.partition].append((delete.begun, most))
    return asked


def _ends_asked(ops: Operations) -> dict[int, list[tuple[int, int]]]:
    """Per partition when an end was asked, ascending, and the end."""
    ends: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for answer in sorted(ops.ends, key=lambda answer: answer.begun):
        for partition, end in answer.ends:
            ends[partition].append((answer.begun, end))
    return ends


def _by_offset(ops: Operations) -> dict[int, dict[int, Send]]:
    sends: dict[int, dict[int, Send]] = defaultdict(dict)
    for send in ops.sends:
        if send.offset >= 0:
            sends[send.partition][send.offset] = send
    return sends


def _between(sends: dict[int, Send], begin: int, end: int) -> Iterator[Send]:
    return (sends[offset] for offset in range(begin, end) if offset in sends)


def came_back(ops: Operations) -> Iterator[str]:
    """Records below a start that DeleteRecords had told, read or told as the start by what was asked afterwards."""
    deleted: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for delete in ops.deletes:
        if delete.start >= 0:
            deleted[delete.partition].append((delete.ended, delete.start))
    seen: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for answer in ops.starts:
        for partition, start in answer.starts:
            seen[partition].append((answer.begun, start, "told as the start"))
    for poll in ops.polls:
        for partition, offset, _ in poll.records:
            seen[partition].append((poll.begun, offset, f"read by {poll.process}"))
    for partition, known in deleted.items():
        highest = Highest(sorted(known))
        for begun, offset, how in sorted(seen[partition]):
            if offset < (start := highest.before(begun)):
                yield f"partition {partition}: offset {offset} {how}, after all below {start} was told to be deleted"
