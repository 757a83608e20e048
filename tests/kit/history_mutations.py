"""Mutations of a valid history, one for each class of anomaly, to check the checker with.

Each makes one anomaly and no promise about others. Histories end with a ``drain`` that reads all, and with its ends.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kit.history import Op, Type
from kit.history_checker import Anomaly

__all__ = ["MUTATIONS", "OF_TRANSACTIONS", "PARTITIONS", "Ops"]

PARTITIONS = 3
Ops = list[Op]


def _is(op: Op, kind: Type, f: str) -> bool:
    return op.type is kind and op.f == f


def _acked(ops: Ops) -> list[tuple[Op, Op]]:
    """Sends outside of transactions that were acknowledged with an offset, with their beginnings."""
    begun = {op.id: op for op in ops if op.type is Type.INVOKE}
    done = [(begun[op.id], op) for op in ops if _is(op, Type.OK, "send")]
    return [(first, last) for first, last in done if "txn" not in first.v and "offset" in last.v]


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
    read = [op.v["records"] for op in ops if _is(op, Type.OK, "poll") and op.p.startswith("reader")]
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
    *_, (empty, _) = ops[-1].v["ends"]
    gone = _with_records(ops, lambda op, records: [r for r in records if op.p != "drain" or r[0] != empty])
    *before, last = gone
    return [*before, last._replace(v={"ends": [[p, 0 if p == empty else end] for p, end in last.v["ends"]]})]


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


NEAR = 100
"""Acknowledgements of other producers and partitions that may lie between the two of a pair."""


def _pairs(ops: Ops, *, same_process: bool) -> list[tuple[Op, Op]]:
    """Acknowledgements of the same partition, the later one begun after the earlier one ended."""
    acked = [pair for pair in _acked(ops) if pair[0].p.startswith("producer-")]
    return [
        (last, later)
        for number, (first, last) in enumerate(acked)
        for then, later in acked[number + 1 : number + NEAR]
        if first.v["partition"] == then.v["partition"] and (first.p == then.p) is same_process and last.t < then.t
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
    victim = answers[-1]  # everything was told and acknowledged before it was asked
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


def _with(ops: Ops, f: str, invoked: dict[str, Any], told: dict[str, Any], process: str = "late") -> Ops:
    """One operation more, after all the others."""
    number, now = ops[-1].id + 1, ops[-1].t
    return [*ops, Op(now + 1, process, number, Type.INVOKE, f, invoked), Op(now + 2, process, number, Type.OK, f, told)]


def _end(ops: Ops, partition: int) -> int:
    """An offset that everything acknowledged is before."""
    return 1 + max(last.v["offset"] for first, last in _acked(ops) if first.v["partition"] == partition)


def removed_early(ops: Ops, rng: random.Random) -> Ops:
    """A log without retention begins later, and nobody deleted anything."""
    partition = rng.choice(_acked(ops))[0].v["partition"]
    return _with(ops, "starts", {}, {"starts": [[partition, _end(ops, partition)]]})


def removed_beyond_what_was_deleted(ops: Ops, rng: random.Random) -> Ops:
    """DeleteRecords was asked for one record less than is gone."""
    partition = rng.choice(_acked(ops))[0].v["partition"]
    end = _end(ops, partition)
    deleted = _with(ops, "delete", {"partition": partition, "offset": end - 1}, {"start": end - 1})
    return _with(deleted, "starts", {}, {"starts": [[partition, end]]})


def removed_too_young(ops: Ops, rng: random.Random) -> Ops:
    """Retention by age took a record that it keeps for longer."""
    partition = rng.choice(_acked(ops))[0].v["partition"]
    kept = _with(ops, "retention", {"partition": partition, "keeps_ms": 1_000_000_000}, {})
    return _with(kept, "starts", {}, {"starts": [[partition, _end(ops, partition)]]})


def removed_too_many(ops: Ops, rng: random.Random) -> Ops:
    """Retention by size left less than it keeps."""
    partition = rng.choice(_acked(ops))[0].v["partition"]
    last = max(end for op in ops if _is(op, Type.OK, "ends") for number, end in op.v["ends"] if number == partition)
    kept = _with(ops, "retention", {"partition": partition, "keeps_records": 2}, {})
    began = _with(kept, "starts", {}, {"starts": [[partition, last - 1]]})
    return _with(began, "ends", {}, {"ends": [[partition, last]]})


def deleted_record_read(ops: Ops, rng: random.Random) -> Ops:
    """A record is read after a DeleteRecords told that it is gone."""
    first, last = rng.choice(_acked(ops))
    partition, offset = first.v["partition"], last.v["offset"]
    deleted = _with(ops, "delete", {"partition": partition, "offset": offset + 1}, {"start": offset + 1})
    return _with(deleted, "poll", {"assignment": 0}, {"records": [[partition, offset, first.v["value"]]]})


def deleted_start_went_back(ops: Ops, rng: random.Random) -> Ops:
    """A log begins earlier than a DeleteRecords told."""
    first, last = rng.choice(_acked(ops))
    partition, offset = first.v["partition"], last.v["offset"]
    deleted = _with(ops, "delete", {"partition": partition, "offset": offset + 1}, {"start": offset + 1})
    return _with(deleted, "starts", {}, {"starts": [[partition, offset]]})


def lost_above_the_start(ops: Ops, rng: random.Random) -> Ops:
    """What lies before an acknowledged record was deleted, and that record is gone with it."""
    victims = _not_last(ops)
    first, last = rng.choice([pair for pair in _acked(ops) if pair[0].v["value"] in victims])
    partition, offset = first.v["partition"], last.v["offset"]
    gone = _swapped_value(ops, first.v["value"], lambda r: [], "drain")
    deleted = _with(gone, "delete", {"partition": partition, "offset": offset}, {"start": offset})
    return _with(deleted, "starts", {}, {"starts": [[partition, offset]]})


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
    removed_early: Anomaly.REMOVED_EARLY,
    removed_beyond_what_was_deleted: Anomaly.REMOVED_EARLY,
    removed_too_young: Anomaly.REMOVED_EARLY,
    removed_too_many: Anomaly.REMOVED_EARLY,
    deleted_record_read: Anomaly.CAME_BACK,
    deleted_start_went_back: Anomaly.CAME_BACK,
    lost_above_the_start: Anomaly.LOST,
    own_uncommitted_read: Anomaly.OWN_UNCOMMITTED_READ,
}

OF_TRANSACTIONS = frozenset({aborted_transaction_read, own_uncommitted_read})
"""Those that need a history with transactions."""
