"""A history by operations: the lines of each joined to what was asked, when, and what was told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kit.history import Op, Type


@dataclass(slots=True)
class Send:
    """One send, from its first line to its last."""

    process: str
    partition: int
    value: int
    begun: int
    txn: str | None
    outcome: Type = Type.INFO
    ended: int = -1
    offset: int = -1
    """-1: not acknowledged, or without an offset, as a retry is that the broker had already."""


@dataclass(slots=True)
class Poll:
    process: str
    assignment: int
    begun: int
    txn: str | None
    final: bool
    records: Sequence[tuple[int, int, int | None]] = ()


@dataclass(slots=True)
class Ends:
    begun: int
    ended: int
    ends: Sequence[tuple[int, int]]


@dataclass(slots=True)
class Starts:
    begun: int
    ended: int
    starts: Sequence[tuple[int, int]]


@dataclass(slots=True)
class Delete:
    """One DeleteRecords of a partition."""

    partition: int
    offset: int
    """-1: all that is committed."""
    begun: int
    ended: int = -1
    start: int = -1
    """What was told; -1 while nobody knows whether it took effect."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What retention leaves of a log."""

    keeps_ns: int | None = None
    """Only records that are older may go; None: all records stay."""
    keeps_records: int | None = None
    """So many committed records are left, whatever goes; None: all stay."""


@dataclass(slots=True)
class Operations:
    """The history by kind."""

    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    ends: list[Ends] = field(default_factory=list)
    starts: list[Starts] = field(default_factory=list)
    deletes: list[Delete] = field(default_factory=list)
    retention: dict[int, Retention] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    """Partitions whose topic somebody asked to delete: nothing has to be left in them."""
    aborted: set[str] = field(default_factory=set)
    """Transactions that were certainly aborted."""
    uncertain: set[str] = field(default_factory=set)
    """Transactions of which nobody knows whether they were committed."""

    def acked(self) -> Iterator[Send]:
        """Sends that are certainly in the log for readers of committed records."""
        kept = self.aborted | self.uncertain
        return (send for send in self.sends if send.outcome is Type.OK and send.txn not in kept)


def operations(history: Iterable[Op]) -> Operations:
    """Join the lines of each operation. ValueError when a line has no beginning."""
    ops = Operations()
    begun: dict[int, Op] = {}
    sends: dict[int, Send] = {}
    deletes: dict[int, Delete] = {}
    commits: dict[str, bool | None] = {}
    for op in history:
        if op.type is Type.INVOKE:
            begun[op.id] = op
            if op.f == "send":
                send = Send(op.p, op.v["partition"], op.v["value"], op.t, op.v.get("txn"))
                sends[op.id] = send
                ops.sends.append(send)
                if send.txn is not None:
                    commits.setdefault(send.txn, None)
            elif op.f == "delete":
                deletes[op.id] = Delete(op.v["partition"], op.v["offset"], op.t)
                ops.deletes.append(deletes[op.id])
            elif op.f == "drop":
                ops.dropped.add(op.v["partition"])
            continue
        first = begun.pop(op.id, None)
        if first is None or first.f != op.f:
            raise ValueError(f"operation {op.id} ends without a beginning")
        if op.f == "delete":
            delete = deletes.pop(op.id)
            delete.ended, delete.start = op.t, op.v.get("start", -1)
        else:
            _end(ops, op, first, sends, commits)
    ops.aborted = {txn for txn, committed in commits.items() if committed is False}
    ops.uncertain = {txn for txn, committed in commits.items() if committed is None}
    return ops


def _end(ops: Operations, op: Op, first: Op, sends: dict[int, Send], commits: dict[str, bool | None]) -> None:
    match op.f:
        case "send":
            send = sends.pop(op.id)
            send.outcome, send.ended = op.type, op.t
            send.offset = op.v.get("offset", -1)
        case "end":
            if op.type is Type.OK:
                commits[first.v["txn"]] = first.v["commit"]
            elif op.type is Type.FAIL:
                commits[first.v["txn"]] = False
        case "poll":
            if op.type is Type.OK:
                records = [(partition, offset, value) for partition, offset, value in op.v["records"]]
                ops.polls.append(
                    Poll(op.p, first.v["assignment"], first.t, first.v.get("txn"), first.v.get("final", False), records)
                )
        case "ends":
            if op.type is Type.OK:
                ops.ends.append(Ends(first.t, op.t, [(partition, end) for partition, end in op.v["ends"]]))
        case "starts":
            if op.type is Type.OK:
                ops.starts.append(Starts(first.t, op.t, [(partition, start) for partition, start in op.v["starts"]]))
        case "retention":
            keeps_ms = first.v.get("keeps_ms")
            keeps_ns = None if keeps_ms is None else keeps_ms * 1_000_000
            ops.retention[first.v["partition"]] = Retention(keeps_ns, first.v.get("keeps_records"))
        case "drop":
            pass  # from its beginning on, whatever its outcome
        case unknown:
            raise ValueError(f"no such function: {unknown}")
