"""What clients asked and were told, operation by operation: the history that ``kit.history_checker`` judges.

A line is a JSON object ``{t, p, id, type, f, v}``: monotonic nanoseconds, the process (a client), the operation's
number, ``invoke``, ``ok``, ``fail`` (it did certainly not happen) or ``info`` (nobody knows, as after a timeout), the
function and its value:

| f | v of invoke | v of ok |
|---|---|---|
| send | {partition, value, txn?} | {offset?} |
| end (of a transaction) | {txn, commit} | {} |
| poll | {assignment, txn?, final?} | {records: [[partition, offset, value], …]} |
| ends | {} | {ends: [[partition, offset], …]} |
| starts | {} | {starts: [[partition, start], …]} |
| delete (of records) | {partition, offset} | {start} |
| retention | {partition, keeps_ms?, keeps_records?} | {} |
| drop (of a topic) | {partition} | {} |

``assignment`` is another number with each assignment or seek; ``final`` reads are those after everything, from the
log's start to the end. A record without value is an offset that holds none for clients (a transaction's marker). A
send without offset was acknowledged as a repetition, without one. A delete at offset -1 is one of all that is
committed. ``retention`` says what may go by itself: records older than ``keeps_ms``, or all but ``keeps_records``
committed ones. Values are unique numbers; partitions are those of one topic, or a number for each log of many topics.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple


class Type(StrEnum):
    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Op(NamedTuple):
    """One line."""

    t: int
    p: str
    id: int
    type: Type
    f: str
    v: dict[str, Any]


class Recorder:
    """Takes lines from many threads."""

    def __init__(self) -> None:
        self._ops: list[Op] = []
        self._ids = itertools.count()
        self._lock = threading.Lock()

    def invoke(self, process: str, f: str, **v: Any) -> int:
        """An operation begins; its number, for :meth:`done`."""
        with self._lock:
            number = next(self._ids)
            self._ops.append(Op(time.monotonic_ns(), process, number, Type.INVOKE, f, v))
        return number

    def done(self, process: str, number: int, kind: Type, f: str, **v: Any) -> None:
        """The operation ended so."""
        with self._lock:
            self._ops.append(Op(time.monotonic_ns(), process, number, kind, f, v))

    def add(
        self,
        process: str,
        begun: int,
        f: str,
        invoked: dict[str, Any],
        told: dict[str, Any],
        kind: Type = Type.OK,
        ended: int | None = None,
    ) -> None:
        """An operation that began at ``begun`` has ended, now if nothing else is said: both lines at once."""
        with self._lock:
            number = next(self._ids)
            self._ops.append(Op(begun, process, number, Type.INVOKE, f, invoked))
            self._ops.append(Op(time.monotonic_ns() if ended is None else ended, process, number, kind, f, told))

    def ops(self) -> list[Op]:
        """The lines so far."""
        with self._lock:
            return self._ops.copy()


def save(ops: Iterable[Op], path: Path) -> None:
    with path.open("w") as lines:
        lines.writelines(json.dumps(op._asdict(), separators=(",", ":")) + "\n" for op in ops)


def load(path: Path) -> Iterator[Op]:
    with path.open() as lines:
        for line in lines:
            fields = json.loads(line)
            yield Op(**{**fields, "type": Type(fields["type"])})
