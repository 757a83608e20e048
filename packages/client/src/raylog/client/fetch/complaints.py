"""◆ What the user of a consumer must be told, and was not yet."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from raylog.client.fetch.subscription import Place, Subscription
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import TopicPartition


class _Complaint(NamedTuple):
    """Of a place, as long as it is where it was."""

    error: RaylogError
    place: Place | None
    generation: int


class Complaints:
    """In the order in which they came; true while there may be some."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._found: deque[_Complaint] = deque()

    def add(self, tp: TopicPartition | None, error: RaylogError) -> None:
        """The user must be told; once until he was, and no more once he has read on elsewhere. None: of no one
        partition."""
        place = None if tp is None else self._subscription.get(tp)
        new = _Complaint(error, place, 0 if place is None else place.generation)
        if not any(str(known.error) == str(error) and known[1:] == new[1:] for known in self._found):
            self._found.append(new)

    def __bool__(self) -> bool:
        return bool(self._found)

    def next(self) -> RaylogError | None:
        """The oldest that the user was not told; None when there is none."""
        while self._found:
            error, place, generation = self._found.popleft()
            if place is None or place.generation == generation:
                return error
        return None
