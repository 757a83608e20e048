"""The history checker is checked: it takes histories of a correct log for valid, and rejects each class of mutant.

Histories come from a model: a correct log, clients that wait differently long, timeouts of which some took effect,
transactions. Each mutation makes one anomaly and no promise about others.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit import history
from kit.forms import NIGHTLY
from kit.history import Op, Recorder, Type
from kit.history_checker import Anomaly, Verdict, check
from kit.history_mutations import MUTATIONS, PARTITIONS, Ops

SEEDS = range(40)
LINE_NS = 1_000_000
"""Between two lines of a model's history."""
RETENTION: list[dict[str, int]] = [{"keeps_records": 6}, {"keeps_ms": 60}, {}]
"""By partition, in histories with deletion."""


class Model:
    """A correct log under random clients; its history by the end."""

    def __init__(self, rng: random.Random, sends: int, *, deletes: bool = False) -> None:
        self.ops: Ops = []
        self._rng = rng
        self._deletes = deletes
        self._starts = [0] * PARTITIONS
        self._begun: list[list[int]] = [[] for _ in range(PARTITIONS)]
        """When the send of each record began."""
        self._assignments: dict[tuple[str, int], int] = {}
        self._now = 0
        self._ids = 0
        self._logs: list[list[int | None]] = [[] for _ in range(PARTITIONS)]
        self._values = iter(range(sends))
        self._positions: dict[str, list[int]] = {}

    def invoke(self, process: str, f: str, **v: Any) -> int:
        self._now += LINE_NS
        self._ids += 1
        self.ops.append(Op(self._now, process, self._ids, Type.INVOKE, f, v))
        return self._ids

    def done(self, process: str, number: int, kind: Type, f: str, **v: Any) -> None:
        self._now += LINE_NS
        self.ops.append(Op(self._now, process, number, kind, f, v))

    def run(self) -> Ops:
        if self._deletes:
            for partition, retention in enumerate(RETENTION):
                self.done(
                    "keeper", self.invoke("keeper", "retention", partition=partition, **retention), Type.OK, "retention"
                )
        for value in self._values:
            if self._deletes:
                self._rng.choice([self.delete, self.retain, self.retain, self.starts])()
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
        if self._deletes:
            self.starts()
        self.ends()
        return self.ops

    # --- what goes from the front

    def delete(self) -> None:
        """DeleteRecords, sometimes without an answer; then it may have happened, or not."""
        partition = self._rng.randrange(PARTITIONS)
        start, end = self._starts[partition], len(self._logs[partition])
        offset = self._rng.randint(start, min(start + 5, end))
        is_all = offset == end
        number = self.invoke("deleter", "delete", partition=partition, offset=-1 if is_all else offset)
        is_answered = self._rng.random() < 0.8
        if is_answered or self._rng.random() < 0.5:
            self._starts[partition] = offset
        if is_answered:
            self.done("deleter", number, Type.OK, "delete", start=offset)

    def retain(self) -> None:
        """Retention, as it is set for the partition."""
        partition = self._rng.randrange(PARTITIONS)
        retention, start = RETENTION[partition], self._starts[partition]
        if "keeps_records" in retention:
            start = max(start, len(self._logs[partition]) - retention["keeps_records"])
        elif "keeps_ms" in retention:
            old = self._now - retention["keeps_ms"] * 1_000_000
            start = max([start, *(n + 1 for n, begun in enumerate(self._begun[partition]) if begun < old)])
        self._starts[partition] = start

    def starts(self) -> None:
        number = self.invoke("asker", "starts")
        self.done("asker", number, Type.OK, "starts", starts=[list(each) for each in enumerate(self._starts)])
        self.ends()

    def _append(self, partition: int, *values: int | None) -> None:
        self._logs[partition] += values
        self._begun[partition] += [self._now] * len(values)

    def send(self, value: int, txn: str | None = None) -> None:
        process, partition = f"producer-{value % 2}", self._rng.randrange(PARTITIONS)
        more = {} if txn is None else {"txn": txn}
        number = self.invoke(process, "send", partition=partition, value=value, **more)
        self._append(partition, value)
        self.done(process, number, Type.OK, "send", offset=len(self._logs[partition]) - 1)

    def unsure(self, value: int) -> None:
        number = self.invoke("producer-9", "send", partition=0, value=value)
        if self._rng.random() < 0.5:
            self._append(0, value)
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
        self.done(process, reading, Type.OK, "poll", records=self._records(2, self._starts[2]))
        self._append(2, value, None)
        self.done(process, number, Type.OK, "send", offset=len(self._logs[2]) - 2)
        ending = self.invoke(process, "end", txn=txn, commit=True)
        self.done(process, ending, Type.OK, "end")

    def poll(self, process: str) -> None:
        positions = self._positions.setdefault(process, [0] * PARTITIONS)
        partition = self._rng.randrange(PARTITIONS)
        if positions[partition] < self._starts[partition]:
            positions[partition] = self._starts[partition]
            self._assignments[process, partition] = self._assignments.get((process, partition), 0) + 1
        assignment = self._assignments.get((process, partition), 0)
        number = self.invoke(process, "poll", assignment=assignment, final=process == "drain")
        records = self._records(partition, positions[partition])[: self._rng.randrange(1, 20)]
        positions[partition] += len(records)
        self.done(process, number, Type.OK, "poll", records=records)

    def ends(self) -> None:
        number = self.invoke("asker", "ends")
        self.done("asker", number, Type.OK, "ends", ends=[[n, len(log)] for n, log in enumerate(self._logs)])

    def _records(self, partition: int, offset: int) -> list[list[int | None]]:
        log = self._logs[partition]
        return [[partition, at, log[at]] for at in range(offset, len(log))]


def valid_history(seed: int, sends: int = 120, *, deletes: bool = False) -> Ops:
    return Model(random.Random(seed), sends, deletes=deletes).run()


def test_every_anomaly_has_a_mutation() -> None:
    assert set(MUTATIONS.values()) == set(Anomaly)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_correct_log_is_valid(seed: int) -> None:
    judgement = check(valid_history(seed), least_acked=20)
    assert judgement.verdict is Verdict.VALID, judgement.findings


@pytest.mark.parametrize("seed", SEEDS)
def test_a_log_whose_records_go_from_the_front_is_valid(seed: int) -> None:
    history = valid_history(seed, deletes=True)
    judgement = check(history, least_acked=20)
    assert judgement.verdict is Verdict.VALID, judgement.findings
    assert sum(op.f == "delete" for op in history) > 20
    assert any(start > 0 for op in history if op.f == "starts" for _, start in op.v.get("starts", ()))


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_every_mutant_is_rejected_for_what_it_is(mutate: Callable[[Ops, random.Random], Ops]) -> None:
    for seed in SEEDS:
        mutant = mutate(valid_history(seed), random.Random(seed))
        judgement = check(mutant)
        assert judgement.verdict is Verdict.INVALID
        assert MUTATIONS[mutate] in judgement.counts, judgement.findings
    print(f"\n{mutate.__name__}: {len(SEEDS)} of {len(SEEDS)} mutants rejected")


def test_an_acked_record_of_a_dropped_topic_may_be_gone() -> None:
    """And of no other: the number of its log tells it from the topic that is made anew."""
    ops = valid_history(4)
    acked = next(op for op in ops if op.f == "send" and op.type is Type.INVOKE and op.p.startswith("producer-"))
    partition = acked.v["partition"]
    gone = [
        op._replace(v={"records": [r for r in op.v["records"] if r[0] != partition]})
        if op.f == "poll" and op.type is Type.OK and op.p == "drain"
        else op
        for op in ops
    ]
    gone = [op for op in gone if op.f != "ends"]
    assert check(gone).verdict is not Verdict.VALID
    dropped = Op(ops[-1].t + 1, "keeper", ops[-1].id + 1, Type.INVOKE, "drop", {"partition": partition})
    assert check([*gone, dropped]).verdict is Verdict.VALID, check([*gone, dropped]).findings


def test_what_was_under_way_beside_a_record_that_was_given_up_may_be_there_twice() -> None:
    recorder = Recorder()
    for value, outcome in ((1, Type.INFO), (2, Type.OK)):
        recorder.add("splitter", value, "send", {"partition": 0, "value": value}, {}, outcome, 10)
    recorder.add("splitter", 11, "send", {"partition": 0, "value": 3}, {}, Type.OK, 12)
    recorder.add("reader", 20, "poll", {"assignment": 0}, {"records": [[0, 0, 1], [0, 1, 2], [0, 2, 2], [0, 3, 3]]})
    assert check(recorder.ops()).counts == {Anomaly.DUPLICATE: 1}
    assert check(recorder.ops(), splits_batches={"splitter"}).verdict is Verdict.VALID
    recorder.add("reader", 21, "poll", {"assignment": 1}, {"records": [[0, 4, 3]]})
    assert check(recorder.ops(), splits_batches={"splitter"}).counts == {Anomaly.DUPLICATE: 1}


def test_order_is_that_of_sending_however_late_it_is_told() -> None:
    recorder = Recorder()
    recorder.add("one", 2, "send", {"partition": 0, "value": 2}, {"offset": 1}, Type.OK, 3)
    recorder.add("one", 1, "send", {"partition": 0, "value": 1}, {"offset": 0}, Type.OK, 4)
    recorder.add("reader", 20, "poll", {"assignment": 0}, {"records": [[0, 0, 1], [0, 1, 2]]})
    assert check(recorder.ops()).verdict is Verdict.VALID


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
    """For a change a tenth."""
    sent = 450_000 if NIGHTLY else 45_000
    begun = time.monotonic()
    ops: Ops = []
    for number in range(sent):
        partition, offset = number % PARTITIONS, number // PARTITIONS
        ops.append(Op(3 * number, "p", number, Type.INVOKE, "send", {"partition": partition, "value": number}))
        ops.append(Op(3 * number + 1, "p", number, Type.OK, "send", {"offset": offset}))
    base = ops[-1].t
    for batch in range(sent // 9):
        number, first = sent + batch, batch * 9
        records = [[n % PARTITIONS, n // PARTITIONS, n] for n in range(first, first + 9)]
        ops.append(Op(base + 2 * batch, "r", number, Type.INVOKE, "poll", {"assignment": 0}))
        ops.append(Op(base + 2 * batch + 1, "r", number, Type.OK, "poll", {"records": records}))
    assert len(ops) == 20 * sent // 9
    judgement = check(ops)
    print(f"\n{len(ops):,} lines made and checked in {time.monotonic() - begun:.1f} s")
    assert judgement.verdict is Verdict.VALID


def test_histories_are_kept_as_json_lines(tmp_path: Path) -> None:
    ops = valid_history(3)
    history.save(ops, tmp_path / "history.jsonl")
    assert list(history.load(tmp_path / "history.jsonl")) == ops
