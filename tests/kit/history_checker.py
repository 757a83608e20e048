"""Judges a history of sends, polls and ends (Jepsen's Kafka workload is the model): valid, invalid or unknown.

What is certain: an ``ok`` send is in the log at its offset, unless the log begins after it by now; a ``fail`` send, or
one of an aborted transaction, is nowhere; an ``info`` one may be either. A history whose partitions were not read to
what was acknowledged, or that has hardly anything in it, shows nothing: *unknown*, never *valid*.

| anomaly | what it is |
|---|---|
| inconsistent offset | one offset, two values |
| duplicate | one value at two offsets |
| lost | acknowledged, and not found by the final reads, though they went beyond it or to the end |
| aborted read | a value was read whose send failed, or whose transaction was aborted |
| poll skip | a consumer jumped, within one assignment, over an offset that holds a record |
| non-monotonic poll | a consumer went back, or stood still, within one assignment |
| send order | of one producer's acknowledged sends to a partition, a later one has the lower offset |
| real-time order | a send that began after an acknowledgement at o was acknowledged at an offset below o |
| end went back | list-offsets answered less than was known when it was asked (an end told or an offset acknowledged) |
| phantom | a value was read that nobody sent |
| wrong partition | a value was read in another partition than it was sent to |
| removed early | a log begins later than DeleteRecords and retention allow (``kit.history_starts``) |
| came back | a record was seen that a DeleteRecords had told to be gone |
| own uncommitted read | a read within a transaction met a value that this transaction had sent |

All of it takes O(n log n) time in the number of operations and records.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple

from kit.history import Op, Type
from kit.history_operations import Operations, Send, operations
from kit.history_starts import Highest, came_back, last_starts, removed_early


class Anomaly(StrEnum):
    INCONSISTENT_OFFSET = "inconsistent offset"
    DUPLICATE = "duplicate"
    LOST = "lost"
    ABORTED_READ = "aborted read"
    POLL_SKIP = "poll skip"
    NON_MONOTONIC_POLL = "non-monotonic poll"
    SEND_ORDER = "send order"
    REAL_TIME_ORDER = "real-time order"
    END_WENT_BACK = "end went back"
    PHANTOM = "phantom"
    WRONG_PARTITION = "wrong partition"
    REMOVED_EARLY = "removed early"
    CAME_BACK = "came back"
    OWN_UNCOMMITTED_READ = "own uncommitted read"


class Verdict(StrEnum):
    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"


class Finding(NamedTuple):
    anomaly: Anomaly
    text: str


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    findings: tuple[Finding, ...]
    """Every anomaly found, at most MOST_OF_A_KIND of a kind."""
    counts: Counter[Anomaly]
    acked: int
    read: int
    """Offsets that were read, of all partitions."""
    lost: int
    why_unknown: str = ""

    def __str__(self) -> str:
        found = ", ".join(f"{kind} {count}" for kind, count in sorted(self.counts.items())) or self.why_unknown
        return f"{self.verdict}: acked {self.acked}, read {self.read}" + (f": {found}" if found else "")


MOST_OF_A_KIND = 10


class _Findings:
    def __init__(self) -> None:
        self.counts: Counter[Anomaly] = Counter()
        self.kept: list[Finding] = []

    def add(self, anomaly: Anomaly, text: str) -> None:
        self.counts[anomaly] += 1
        if self.counts[anomaly] <= MOST_OF_A_KIND:
            self.kept.append(Finding(anomaly, text))


def check(
    history: Iterable[Op],
    *,
    least_acked: int = 1,
    least_read: float = 0.0,
    splits_batches: Container[str] = frozenset(),
) -> Judgement:
    """Judge a history. Unknown, if nothing is wrong: fewer than ``least_acked`` sends were acknowledged, a partition
    was not read as far as its sends were acknowledged, or less than ``least_read`` of what was acknowledged was read.

    ``splits_batches``: processes whose client gives up records that are too old out of a batch that may be stored, and
    sends the others again under new numbers (librdkafka): what was under way to a partition beside such a record may
    be there twice.
    """
    ops = operations(history)
    found = _Findings()
    log = _Log(ops, found, _may_be_twice(ops, splits_batches))
    _check_reads(ops, log, found)
    reach = _Reach(ops, log)
    lost = _check_lost(ops, log, reach, found)
    _check_polls(ops, log, found)
    _check_send_order(ops, found)
    _check_real_time(ops, found)
    _check_ends(ops, found)
    for text in removed_early(ops):
        found.add(Anomaly.REMOVED_EARLY, text)
    for text in came_back(ops):
        found.add(Anomaly.CAME_BACK, text)
    acked = sum(1 for _ in ops.acked())
    read = sum(map(len, log.read.values()))
    unread = _unread(ops, reach)
    why = ""
    if acked < least_acked:
        why = f"only {acked} sends were acknowledged, less than {least_acked} show nothing"
    elif unread:
        why = unread
    elif read < least_read * acked:
        why = f"only {read} offsets were read"
    verdict = Verdict.INVALID if found.counts else Verdict.UNKNOWN if why else Verdict.VALID
    return Judgement(verdict, tuple(found.kept), found.counts, acked, read, lost, why)


def _may_be_twice(ops: Operations, splits_batches: Container[str]) -> set[int]:
    """Values that were under way beside one that its client gave up."""
    of_splitters = [send for send in ops.sends if send.process in splits_batches]
    given_up: dict[tuple[str, int], list[Send]] = defaultdict(list)
    for send in of_splitters:
        if send.outcome is Type.INFO:
            given_up[send.process, send.partition].append(send)
    found = set()
    for send in of_splitters:
        beside = given_up[send.process, send.partition]
        if any(one.begun <= send.ended and send.begun <= one.ended for one in beside if one is not send):
            found.add(send.value)
    return found


class _Log:
    """The log as all of it was seen: by acknowledgements and by reads."""

    def __init__(self, ops: Operations, found: _Findings, may_be_twice: Container[int]) -> None:
        self.read: dict[int, dict[int, int | None]] = defaultdict(dict)
        """Partition → offset → the value read there first."""
        self.kept: dict[int, set[int]] = defaultdict(set)
        """Partition → the offsets that the final reads found; all that was read, if none are marked as final."""
        self.values: dict[int, tuple[int, int]] = {}
        """Value → where it was seen first."""
        self._found = found
        self._may_be_twice = may_be_twice
        self._processes = {send.value: send.process for send in ops.sends}
        self._seen: dict[tuple[int, int], int | None] = {}
        for send in ops.sends:
            if send.offset >= 0:
                self._see(send.partition, send.offset, send.value)
        has_final = any(poll.final for poll in ops.polls)
        for poll in ops.polls:
            for partition, offset, value in poll.records:
                self._see(partition, offset, value)
                self.read[partition].setdefault(offset, value)
                if poll.final or not has_final:
                    self.kept[partition].add(offset)

    def _see(self, partition: int, offset: int, value: int | None) -> None:
        before = self._seen.setdefault((partition, offset), value)
        if before != value:
            self._found.add(
                Anomaly.INCONSISTENT_OFFSET, f"partition {partition} offset {offset}: {before}, then {value}"
            )
        if value is None:
            return
        place = self.values.setdefault(value, (partition, offset))
        if place != (partition, offset) and value not in self._may_be_twice:
            self._found.add(Anomaly.DUPLICATE, self._twice(value, place, (partition, offset)))

    def _twice(self, value: int, *places: tuple[int, int]) -> str:
        return f"value {value} of {self._processes.get(value, 'nobody')} at {places[0]} and at {places[1]}"

    def known(self) -> dict[int, list[int]]:
        """Per partition the offsets that hold a record, ascending."""
        offsets: dict[int, list[int]] = defaultdict(list)
        for partition, offset in sorted(self._seen):
            offsets[partition].append(offset)
        return offsets


def _check_reads(ops: Operations, log: _Log, found: _Findings) -> None:
    sent = {send.value: send for send in ops.sends}
    for partition, read in log.read.items():
        for offset, value in read.items():
            if value is None:
                continue
            send = sent.get(value)
            where = f"value {value} at offset {offset} of partition {partition}"
            if send is None:
                found.add(Anomaly.PHANTOM, f"{where}: nobody sent it")
            elif send.partition != partition:
                found.add(Anomaly.WRONG_PARTITION, f"{where}: sent to partition {send.partition}")
            elif send.outcome is Type.FAIL or send.txn in ops.aborted:
                found.add(Anomaly.ABORTED_READ, f"{where}: its send failed or was aborted")
    for poll in ops.polls:
        if poll.txn is None:
            continue
        for partition, offset, value in poll.records:
            if value is not None and value in sent and sent[value].txn == poll.txn:
                text = f"transaction {poll.txn} read its own value {value} at {offset} of partition {partition}"
                found.add(Anomaly.OWN_UNCOMMITTED_READ, text)


class _Reach:
    """How far the final reads looked."""

    def __init__(self, ops: Operations, log: _Log) -> None:
        self._read_to = {partition: max(kept) + 1 for partition, kept in log.kept.items()}
        self._told = {partition: (end, answer.begun) for answer in ops.ends for partition, end in answer.ends}
        self._starts = last_starts(ops)
        self._dropped = ops.dropped
        self._values = log.values

    def place(self, send: Send) -> int:
        """The offset at which the send is known to be; -1: nobody saw it."""
        return send.offset if send.offset >= 0 else self._values.get(send.value, (0, -1))[1]

    def must_hold(self, send: Send) -> bool:
        """Whether its record has to be left: its topic is, and the log begins not after it, wherever it is."""
        start = self._starts.get(send.partition, 0)
        return send.partition not in self._dropped and (start == 0 or self.place(send) >= start)

    def includes(self, send: Send) -> bool:
        """Whether they would have found it: they went beyond it, or to the end that was told after it was acked."""
        read_to = self._read_to.get(send.partition, 0)
        end, asked = self._told.get(send.partition, (-1, -1))
        return send.offset < read_to or (end == read_to and send.ended < asked)


def _check_lost(ops: Operations, log: _Log, reach: _Reach, found: _Findings) -> int:
    lost = 0
    for send in ops.acked():
        if not reach.must_hold(send):
            continue
        if reach.includes(send) and reach.place(send) not in log.kept[send.partition]:
            lost += 1
            text = f"value {send.value}, acked at offset {send.offset} of partition {send.partition}"
            found.add(Anomaly.LOST, text)
    return lost


def _unread(ops: Operations, reach: _Reach) -> str:
    for send in ops.acked():
        if reach.must_hold(send) and not reach.includes(send):
            return f"partition {send.partition} was not read up to offset {send.offset}, which was acknowledged"
    return ""


def _check_polls(ops: Operations, log: _Log, found: _Findings) -> None:
    known = {partition: {offset: n for n, offset in enumerate(offsets)} for partition, offsets in log.known().items()}
    positions: dict[tuple[str, int, int], int] = {}
    for poll in ops.polls:
        for partition, offset, _ in poll.records:
            key = (poll.process, poll.assignment, partition)
            before = positions.get(key)
            positions[key] = offset
            if before is None:
                continue
            where = f"{poll.process}, partition {partition}: from offset {before} to {offset}"
            if offset <= before:
                found.add(Anomaly.NON_MONOTONIC_POLL, where)
            elif known[partition][offset] != known[partition][before] + 1:
                found.add(Anomaly.POLL_SKIP, where)


def _check_send_order(ops: Operations, found: _Findings) -> None:
    by_producer: dict[tuple[str, int], list[Send]] = defaultdict(list)
    for send in ops.sends:
        if send.offset >= 0:
            by_producer[send.process, send.partition].append(send)
    for (process, partition), sends in by_producer.items():
        sends.sort(key=lambda send: send.begun)
        for one, next_one in pairwise(sends):
            if next_one.offset <= one.offset:
                text = f"{process}, partition {partition}: {one.value} at {one.offset}, then {next_one.value} at "
                found.add(Anomaly.SEND_ORDER, f"{text}{next_one.offset}")


def _by_partition(ops: Operations) -> dict[int, list[Send]]:
    sends: dict[int, list[Send]] = defaultdict(list)
    for send in ops.sends:
        if send.offset >= 0:
            sends[send.partition].append(send)
    return sends


def _check_real_time(ops: Operations, found: _Findings) -> None:
    """Go through each partition's sends by the time they began, with the highest offset acknowledged before that."""
    for partition, sends in _by_partition(ops).items():
        acks = sorted(sends, key=lambda send: send.ended)
        highest = Highest((ack.ended, ack.offset) for ack in acks)
        for send in sorted(sends, key=lambda send: send.begun):
            if (before := highest.before(send.begun)) >= send.offset:
                text = f"partition {partition}: {send.value} at {send.offset} began after an ack at {before}"
                found.add(Anomaly.REAL_TIME_ORDER, text)


def _check_ends(ops: Operations, found: _Findings) -> None:
    told: dict[int, list[tuple[int, int]]] = defaultdict(list)
    asked: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for answer in ops.ends:
        for partition, end in answer.ends:
            told[partition].append((answer.ended, end))
            asked[partition].append((answer.begun, end))
    for began in ops.starts:
        for partition, start in began.starts:
            told[partition].append((began.ended, start))
    for partition, sends in _by_partition(ops).items():
        told[partition] += [(send.ended, send.offset + 1) for send in sends]
    for partition, questions in asked.items():
        highest = Highest(sorted(told[partition], key=_time))
        for begun, end in sorted(questions, key=_time):
            if (before := highest.before(begun)) > end:
                text = f"partition {partition}: end {end}, after {before} had been told or acknowledged"
                found.add(Anomaly.END_WENT_BACK, text)


_time: Callable[[tuple[int, int]], Any] = lambda item: item[0]  # noqa: E731
