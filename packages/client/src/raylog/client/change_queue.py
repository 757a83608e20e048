"""What a member of a group has to tell its user, who may be slow to hear it.

It is written by the member's thread and read by the user's. A partition that is lost before he has heard of it is none
of his business; and what he says about one that he has lost meanwhile does not count, though it be his again by then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from raylog.client.group_changes import Began, Ceased, Change, Dropped
from raylog.protocol.ids import TopicPartition

__all__ = ["ChangeQueue"]


class ChangeQueue:
    """See the module."""

    def __init__(self, woken: Callable[[], object]) -> None:
        """``woken`` is called when there is something to take; it must neither block nor raise."""
        self._woken = woken
        self._condition = threading.Condition()
        self._untold: list[tuple[Change, int]] = []
        self._begun: set[TopicPartition] = set()
        """What the user has, as far as he knows."""
        self._ceased: dict[TopicPartition, int] = {}
        """What he was told to be done with, and under which number."""

    def tell(self, change: Change, number: int = 0) -> None:
        """``number`` tells one Ceased from another of the same partition."""
        tp = change.tp
        with self._condition:
            if isinstance(change, Dropped):
                was_lost = any(told == change for told, _ in self._untold)
                self._untold = [item for item in self._untold if item[0].tp != tp]
                self._ceased.pop(tp, None)
                if tp not in self._begun and not was_lost:
                    return
            self._untold.append((change, number))
            self._condition.notify_all()
        self._woken()

    def take(self) -> list[Change]:
        """All that he was not told yet, in order."""
        with self._condition:
            told, self._untold = self._untold, []
            for change, number in told:
                match change:
                    case Began(tp):
                        self._begun.add(tp)
                    case Ceased(tp):
                        self._ceased[tp] = number
                    case Dropped(tp):
                        self._begun.discard(tp)
            return [change for change, _ in told]

    def quiet(self, tp: TopicPartition) -> int | None:
        """He is done with what he was told to cease; None when he lost it meanwhile, or was not told."""
        with self._condition:
            number = self._ceased.pop(tp, None)
            if number is not None:
                self._begun.discard(tp)
            return number

    def wait(self, timeout_s: float) -> bool:
        """Until there is something to take; False when there is nothing by then."""
        with self._condition:
            return self._condition.wait_for(lambda: bool(self._untold), timeout_s)
