"""The history checker is checked: it takes histories of a correct log for valid, and rejects each class of mutant.

Histories come from a model: a correct log, clients that wait differently long, timeouts of which some took effect,
transactions. Each mutation makes one anomaly and no promise about others.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kit import history
from kit.history import Op, Type
from kit.history_checker import Anomaly, Verdict, check

PARTITIONS = 3
SEEDS = range(40)
Ops = list[Op]


class Model:
    """A correct log under random clients; its history by the end."""

    def __init__(self, rng: random.Random, sends: int) -> None:
        self.ops: Ops = []
        self._rng = rng
        self._now = 0
        self._ids = 0
        self._logs: list[list[int | None]] = [[] for _ in range(PARTITIONS)]
        self._values = iter(range(sends))
        self._positions: dict[str, list[int]] = {}

    def invoke(self, process: str, f: str, **v: Any) -> int:
        self._now += 1
        self._ids += 1
        self.ops.append(Op(self._now, process, self._ids, Type.INVOKE, f, v))
        return self._ids

    def done(self, process: str, number: int, kind: Type, f: str, **v: Any) -> None:
        self._now += 1
        self.ops.append(Op(self._now, process, number, kind, f, v))

    def run(self) -> Ops:
        for value in self._values:
            match self._rng.randrange(8):
                case 0:
                    self.transaction(f"t{value}", value)
                case 1:
                    self.unsure(value)
                case 2:
                    self.refused(value)
                case 3:
                    self.send(value)
                    self.poll(self._rng.choice(["reader-0", "reader-1"]))
                case 4:
                    self.send(value)
                    self.ends()
                case _:
                    self.send(value)
        for _ in range(1 + len(self.ops)):
            self.poll("drain")
        self.ends()
        return self.ops

    def send(self, value: int, txn: str | None = None) -> None:
        process, partition = f"producer-{value % 2}", self._rng.randrange(PARTITIONS)
        more = {} if txn is None else {"txn": txn}
        number = self.invoke(process, "send", partition=partition, value=value, **more)
        self._logs[partition].append(value)
        self.done(process, number, Type.OK, "send", offset=len(self._logs[partition]) - 1)

    def unsure(self, value: int) -> None:
        number = self.invoke("producer-9", "send", partition=0, value=value)
        if self._rng.random() < 0.5:
            self._logs[0].append(value)
        if self._rng.random() < 0.5:
            self.done("producer-9", number, Type.INFO, "send")

    def refused(self, value: int) -> None:
        number = self.invoke("producer-8", "send", partition=1, value=value)
        self.done("producer-8", number, Type.FAIL, "send")

    def transaction(self, txn: str, value: int) -> None:
        """Sends one value, reads what is committed, and commits."""
        process = f"producer-{value % 2}"
        number = self.invoke(process, "send", partition=2, value=value, txn=txn)
        reading = self.invoke(process, "poll", assignment=value, txn=txn)
        self.done(process, reading, Type.OK, "poll", records=self._records(2, 0))
        self._logs[2] += [value, None]
        self.done(process, number, Type.OK, "send", offset=len(self._logs[2]) - 2)
        ending = self.invoke(process, "end", txn=txn, commit=True)
        self.done(process, ending, Type.OK, "end")

    def poll(self, process: str) -> None:
        positions = self._positions.setdefault(process, [0] * PARTITIONS)
        partition = self._rng.randrange(PARTITIONS)
        number = self.invoke(process, "poll", assignment=0, final=process == "drain")
        records = self._records(partition, positions[partition])[: self._rng.randrange(1, 20)]
        positions[partition] += len(records)
        self.done(process, number, Type.OK, "poll", records=records)

    def ends(self) -> None:
        number = self.invoke("asker", "ends")
        self.done("asker", number, Type.OK, "ends", ends=[[n, len(log)] for n, log in enumerate(self._logs)])

    def _records(self, partition: int, offset: int) -> list[list[int | None]]:
        log = self._logs[partition]
        return [[partition, at, log[at]] for at in range(offset, len(log))]


def valid_history(seed: int, sends: int = 120) -> Ops:
    return Model(random.Random(seed), sends).run()


# --- the mutations


def _is(op: Op, kind: Type, f: str) -> bool:
    return op.type is kind and op.f == f


def _acked(ops: Ops) -> list[tuple[Op, Op]]:
    """Acknowledged sends outside of transactions, with their beginnings."""
    begun = {op.id: op for op in ops if op.type is Type.INVOKE}
    done = [(begun[op.id], op) for op in ops if _is(op, Type.OK, "send")]
    return [(first, last) for first, last in done if "txn" not in first.v]


def _with_records(ops: Ops, change: Callable[[Op, list[Any]], list[Any]]) -> Ops:
    return [
        op._replace(v={"records": change(op, list(op.v["records"]))}) if _is(op, Type.OK, "poll") else op for op in ops
    ]


def _swapped_value(ops: Ops, victim: int, to: Callable[[list[int]], list[list[int]]], process: str = "") -> Ops:
    """What polls (of one process) saw of a value becomes what ``to`` makes of it."""

    def change(op: Op, records: list[Any]) -> list[Any]:
        if process and op.p != process:
            return records
        return [new for record in records for new in (to(record) if record[2] == victim else [record])]

    return _with_records(ops, change)


def inconsistent_offset(ops: Ops, rng: random.Random) -> Ops:
    """One reader sees another value at an offset than the others."""
    (first, _), (other, _) = rng.sample(_acked(ops), 2)
    return _swapped_value(ops, first.v["value"], lambda r: [[r[0], r[1], other.v["value"]]], "drain")


def duplicate(ops: Ops, rng: random.Random) -> Ops:
    """A value that is in the log twice: once more at its end."""
    first, _ = rng.choice(_acked(ops))
    partition = first.v["partition"]
    end = max(op.v["offset"] for begun, op in _acked(ops) if begun.v["partition"] == partition) + 10_000
    number = ops[-1].id + 1
    return [
        *ops,
        Op(ops[-1].t + 1, "late", number, Type.INVOKE, "poll", {"assignment": 0}),
        Op(ops[-1].t + 2, "late", number, Type.OK, "poll", {"records": [[partition, end, first.v["value"]]]}),
    ]


def _not_last(ops: Ops) -> set[int]:
    """Acknowledged values that others come after, in their partitions."""
    by_offset = sorted(_acked(ops), key=lambda pair: int(pair[1].v["offset"]))
    last = {first.v["partition"]: first.v["value"] for first, _ in by_offset}
    return {first.v["value"] for first, _ in by_offset} - set(last.values())


def lost(ops: Ops, rng: random.Random) -> Ops:
    """An acknowledged value that no reader ever sees, though all saw what comes after it."""
    return _swapped_value(ops, rng.choice(sorted(_not_last(ops))), lambda r: [])


def lost_after_it_was_read(ops: Ops, rng: random.Random) -> Ops:
    """An acknowledged value that was read once, and is not there in the end."""
    read = [op.v["records"] for op in ops if _is(op, Type.OK, "poll") and op.p.startswith("reader-")]
    victims = _not_last(ops) & {value for records in read for _, _, value in records}
    return _swapped_value(ops, rng.choice(sorted(victims)), lambda r: [], "drain")


def lost_tail(ops: Ops, rng: random.Random) -> Ops:
    """The acknowledged records at a log's end are gone, and the end that is told is before them."""
    _, last = max(
        (pair for pair in _acked(ops) if pair[0].v["partition"] == 1), key=lambda pair: int(pair[1].v["offset"])
    )
    cut: int = last.v["offset"]
    mutated = _with_records(ops, lambda _, records: [r for r in records if r[0] != 1 or r[1] < cut])
    return [
        op._replace(v={"ends": [[p, min(end, cut) if p == 1 else end] for p, end in op.v["ends"]]})
        if _is(op, Type.OK, "ends")
        else op
        for op in mutated
    ]


def lost_everything(ops: Ops, rng: random.Random) -> Ops:
    """A partition that was read by others is empty in the end."""
    gone = _with_records(ops, lambda op, records: [r for r in records if op.p != "drain" or r[0] != 1])
    *before, last = gone
    return [*before, last._replace(v={"ends": [[p, 0 if p == 1 else end] for p, end in last.v["ends"]]})]


def aborted_read(ops: Ops, rng: random.Random) -> Ops:
    """A send that was read turns out to have failed."""
    _, last = rng.choice(_acked(ops))
    return [op._replace(type=Type.FAIL, v={}) if op.id == last.id and op.type is Type.OK else op for op in ops]


def aborted_transaction_read(ops: Ops, rng: random.Random) -> Ops:
    """A transaction whose values were read turns out to have been aborted."""
    ends = [op for op in ops if _is(op, Type.INVOKE, "end")]
    victim = rng.choice(ends)
    return [op._replace(v={**op.v, "commit": False}) if op is victim else op for op in ops]


def poll_skip(ops: Ops, rng: random.Random) -> Ops:
    """One reader, and only it, jumps over a record."""
    inner = [
        r[2]
        for op in ops
        if _is(op, Type.OK, "poll") and op.p == "drain"
        for r in op.v["records"][1:-1]
        if r[2] is not None
    ]
    victim = rng.choice(inner)
    skipping = _swapped_value(ops, victim, lambda r: [], "drain")
    # somebody else has seen it, so that it is not lost
    record = next(r for op in ops if _is(op, Type.OK, "poll") for r in op.v["records"] if r[2] == victim)
    number = ops[-1].id + 1
    return [
        *skipping,
        Op(ops[-1].t + 1, "other", number, Type.INVOKE, "poll", {"assignment": 0}),
        Op(ops[-1].t + 2, "other", number, Type.OK, "poll", {"records": [record]}),
    ]


def non_monotonic_poll(ops: Ops, rng: random.Random) -> Ops:
    """A reader gets a batch twice within one assignment."""
    victim = rng.choice([op for op in ops if _is(op, Type.OK, "poll") and op.p == "drain" and op.v["records"]])
    return [op._replace(v={"records": op.v["records"] * 2}) if op is victim else op for op in ops]


def _with_offsets_swapped(ops: Ops, one: Op, other: Op) -> Ops:
    """As if the two acknowledged sends lay at each other's place, for everybody."""
    offsets = {one.id: other.v["offset"], other.id: one.v["offset"]}
    values = {op.id: op.v["value"] for op in ops if _is(op, Type.INVOKE, "send")}
    a, b = values[one.id], values[other.id]
    swapped = [op._replace(v={"offset": offsets[op.id]}) if op.id in offsets and "offset" in op.v else op for op in ops]
    exchange = {a: b, b: a}
    return _with_records(swapped, lambda _, records: [[p, o, exchange.get(v, v)] for p, o, v in records])


def _pairs(ops: Ops, *, same_process: bool) -> list[tuple[Op, Op]]:
    """Acknowledgements of the same partition, the later one begun after the earlier one ended."""
    acked = [pair for pair in _acked(ops) if pair[0].p.startswith("producer-")]
    return [
        (last, later)
        for (first, last), (then, later) in pairwise(acked)
        if first.v["partition"] == then.v["partition"] and (first.p == then.p) is same_process
    ]


def send_order(ops: Ops, rng: random.Random) -> Ops:
    """Two sends of one producer lie in the other order."""
    return _with_offsets_swapped(ops, *rng.choice(_pairs(ops, same_process=True)))


def real_time_order(ops: Ops, rng: random.Random) -> Ops:
    """Two sends of two producers lie in the other order, though one began after the other was acknowledged."""
    return _with_offsets_swapped(ops, *rng.choice(_pairs(ops, same_process=False)))


def end_went_back(ops: Ops, rng: random.Random) -> Ops:
    """List-offsets answers with an older end."""
    answers = [op for op in ops if _is(op, Type.OK, "ends") and op.v["ends"][0][1] > 1]
    victim = rng.choice(answers)
    older = [[partition, end - 1] for partition, end in victim.v["ends"]]
    return [op._replace(v={"ends": older}) if op is victim else op for op in ops]


def phantom(ops: Ops, rng: random.Random) -> Ops:
    """A value that nobody sent."""
    first, last = rng.choice(_acked(ops))
    gone = [op for op in ops if op.id not in (first.id, last.id)]
    assert first.v["value"] not in {op.v.get("value") for op in gone}
    return gone


def wrong_partition(ops: Ops, rng: random.Random) -> Ops:
    """A value is read in a partition that it was not sent to."""
    first, _ = rng.choice(_acked(ops))
    return [
        op._replace(v={**op.v, "partition": (op.v["partition"] + 1) % PARTITIONS})
        if op.id == first.id and op.type is Type.INVOKE
        else op
        for op in ops
    ]


def own_uncommitted_read(ops: Ops, rng: random.Random) -> Ops:
    """A transaction reads what it has written itself."""
    victim = rng.choice([op for op in ops if _is(op, Type.OK, "poll") and op.p.startswith("producer-")])
    begun = next(op for op in ops if op.id == victim.id and op.type is Type.INVOKE)
    txn = begun.v["txn"]
    number, value = next(
        (op.id, op.v["value"]) for op in ops if _is(op, Type.INVOKE, "send") and op.v.get("txn") == txn
    )
    offset = next(op.v["offset"] for op in ops if op.id == number and op.type is Type.OK)
    records = [*victim.v["records"], [2, offset, value]]
    return [op._replace(v={"records": records}) if op is victim else op for op in ops]


MUTATIONS: dict[Callable[[Ops, random.Random], Ops], Anomaly] = {
    inconsistent_offset: Anomaly.INCONSISTENT_OFFSET,
    duplicate: Anomaly.DUPLICATE,
    lost: Anomaly.LOST,
    lost_after_it_was_read: Anomaly.LOST,
    lost_tail: Anomaly.LOST,
    lost_everything: Anomaly.LOST,
    aborted_read: Anomaly.ABORTED_READ,
    aborted_transaction_read: Anomaly.ABORTED_READ,
    poll_skip: Anomaly.POLL_SKIP,
    non_monotonic_poll: Anomaly.NON_MONOTONIC_POLL,
    send_order: Anomaly.SEND_ORDER,
    real_time_order: Anomaly.REAL_TIME_ORDER,
    end_went_back: Anomaly.END_WENT_BACK,
    phantom: Anomaly.PHANTOM,
    wrong_partition: Anomaly.WRONG_PARTITION,
    own_uncommitted_read: Anomaly.OWN_UNCOMMITTED_READ,
}


def test_every_anomaly_has_a_mutation() -> None:
    assert set(MUTATIONS.values()) == set(Anomaly)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_correct_log_is_valid(seed: int) -> None:
    judgement = check(valid_history(seed), least_acked=20)
    assert judgement.verdict is Verdict.VALID, judgement.findings


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_every_mutant_is_rejected_for_what_it_is(mutate: Callable[[Ops, random.Random], Ops]) -> None:
    for seed in SEEDS:
        mutant = mutate(valid_history(seed), random.Random(seed))
        judgement = check(mutant)
        assert judgement.verdict is Verdict.INVALID
        assert MUTATIONS[mutate] in judgement.counts, judgement.findings
    print(f"\n{mutate.__name__}: {len(SEEDS)} of {len(SEEDS)} mutants rejected")


def test_too_little_is_unknown() -> None:
    ops = valid_history(1)
    assert check(ops, least_acked=1_000).verdict is Verdict.UNKNOWN
    assert check([]).verdict is Verdict.UNKNOWN
    unread = [op for op in ops if op.f in ("send", "end")]
    assert check(unread).verdict is Verdict.UNKNOWN
    stopped_early = [op for op in ops if op.f != "ends" and op.p != "drain"]
    assert check(stopped_early).verdict is Verdict.UNKNOWN


def test_a_timeout_may_have_happened_or_not() -> None:
    ops = valid_history(2)
    unsure = {op.id for op in ops if op.p == "producer-9"}
    assert unsure
    kinds = [op._replace(type=Type.INFO) if op.id in unsure and op.type is not Type.INVOKE else op for op in ops]
    assert check(kinds).verdict is Verdict.VALID


def test_it_takes_a_million_operations() -> None:
    begun = time.monotonic()
    ops: Ops = []
    for number in range(450_000):
        partition, offset = number % PARTITIONS, number // PARTITIONS
        ops.append(Op(3 * number, "p", number, Type.INVOKE, "send", {"partition": partition, "value": number}))
        ops.append(Op(3 * number + 1, "p", number, Type.OK, "send", {"offset": offset}))
    base = ops[-1].t
    for batch in range(50_000):
        number, first = 450_000 + batch, batch * 9
        records = [[n % PARTITIONS, n // PARTITIONS, n] for n in range(first, first + 9)]
        ops.append(Op(base + 2 * batch, "r", number, Type.INVOKE, "poll", {"assignment": 0}))
        ops.append(Op(base + 2 * batch + 1, "r", number, Type.OK, "poll", {"records": records}))
    assert len(ops) == 1_000_000
    judgement = check(ops)
    print(f"\n1,000,000 lines made and checked in {time.monotonic() - begun:.1f} s")
    assert judgement.verdict is Verdict.VALID


def test_histories_are_kept_as_json_lines(tmp_path: Path) -> None:
    ops = valid_history(3)
    history.save(ops, tmp_path / "history.jsonl")
    assert list(history.load(tmp_path / "history.jsonl")) == ops
