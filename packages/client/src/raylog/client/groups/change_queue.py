"""What a member of a group has to tell its user, who may be slow to hear it.

It is written by the member's thread and read by the user's. A partition that is lost before he has heard of it is none
of his business; and what he says about one that he has lost meanwhile does not count, though it be his again by then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from itertools import count

from raylog.client.groups.changes import Assigned, Change, Lost, Revoked
from raylog.protocol.ids import TopicPartition

__all__ = ["ChangeQueue"]


class ChangeQueue:
    """See the module. A *tenure* of a partition lasts from its claim to its loss or release; each has a number."""

    def __init__(self, woken: Callable[[], object]) -> None:
        """``woken`` is called when there is something to take; it must neither block nor raise."""
        self._woken = woken
        self._lock = threading.RLock()
        """The interpreter's own: an interrupt cannot come between taking it and what gives it back."""
        self._condition = threading.Condition(self._lock)
        self._numbers = count(1)
        self._untold: list[tuple[int, Change, int]] = []
        """The number of each, what happened, and in which tenure."""
        self._tenures: dict[TopicPartition, int] = {}
        """What the user has, as far as he knows."""
        self._revoked: set[TopicPartition] = set()
        """What he was told to be done with."""

    def tell(self, change: Change, tenure: int) -> None:
        """What has happened to the partition in this tenure of it."""
        tp = change.tp
        with self._lock:
            if isinstance(change, Lost):
                is_told_of_loss = any(told == change for _, told, _ in self._untold)
                self._untold = [item for item in self._untold if item[1].tp != tp]
                self._revoked.discard(tp)
                if tp not in self._tenures and not is_told_of_loss:
                    return
            self._untold.append((next(self._numbers), change, tenure))
            self._condition.notify_all()
        self._woken()

    def untold(self, heard: int) -> tuple[int, list[Change]]:
        """All that he has not heard yet, in order, and the number of the last of it, to be given as ``heard`` once he
        has it: so nothing is lost, and nothing told twice, where an interrupt comes between."""
        with self._lock:
            self._untold = [item for item in self._untold if item[0] > heard]
            for _, change, tenure in self._untold:
                match change:
                    case Assigned(tp):
                        self._tenures[tp] = tenure
                    case Revoked(tp):
                        self._revoked.add(tp)
                    case Lost(tp):
                        self._tenures.pop(tp, None)
            last = self._untold[-1][0] if self._untold else heard
            return last, [change for _, change, _ in self._untold]

    def take(self) -> list[Change]:
        """All that he was not told yet, in order, each once."""
        with self._lock:
            _, told = self.untold(0)
            self._untold = []
            return told

    def quiet(self, tp: TopicPartition) -> int | None:
        """He is done with what was revoked, in this tenure; None when he lost it meanwhile or was not told."""
        with self._lock:
            if tp not in self._revoked:
                return None
            self._revoked.remove(tp)
            return self._tenures.pop(tp, None)

    def tenures(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """In which tenure he read what he has of these; without those that he does not have, as far as he knows."""
        with self._lock:
            return {tp: self._tenures[tp] for tp in partitions if tp in self._tenures}

    def wait(self, timeout_s: float) -> bool:
        """Until there is something to take; False when there is nothing by then."""
        with self._lock:
            return self._condition.wait_for(lambda: bool(self._untold), timeout_s)
