"""What of a member's partitions its user has, as the member's thread knows it.

A *tenure* of a partition lasts from its claim to its loss or release; each has a number. What the user says of another
tenure of the same partition does not count: it was another's in between.
"""

from __future__ import annotations

from raylog.client.groups.change_queue import ChangeQueue
from raylog.client.groups.changes import Assigned, Lost, Revoked
from raylog.coordination.groups.offset_store import Claim
from raylog.protocol.ids import TopicPartition

__all__ = ["Tenures"]


class Tenures:
    """See the module. The member's thread changes it; what others may read is said to be so."""

    def __init__(self, changes: ChangeQueue) -> None:
        """``changes``: where the user is told."""
        self.working: set[TopicPartition] = set()
        """What may be handed out, under the lease. Any thread may read it."""
        self.revoked: set[TopicPartition] = set()
        """What the user has to be done with."""
        self.count = 0
        """How many there were. Any thread may read it."""
        self._numbers: dict[TopicPartition, int] = {}
        self._changes = changes

    def get(self, tp: TopicPartition) -> int:
        """The number of the present one; 0 when there is none."""
        return self._numbers.get(tp, 0)

    def assign(self, tp: TopicPartition, claim: Claim | None) -> None:
        self.count += 1
        self._numbers[tp] = self.count
        self.working.add(tp)
        assigned = Assigned(tp, None) if claim is None else Assigned(tp, claim.committed, claim.topic_id)
        self._changes.tell(assigned, self.count)

    def revoke(self, tp: TopicPartition, *, is_told: bool) -> None:
        """It is handed out no more. ``is_told``: the user is, and has to be done with it."""
        self.working.discard(tp)
        self.revoked.add(tp)
        if is_told:
            self._changes.tell(Revoked(tp), self._numbers[tp])

    def end(self, tp: TopicPartition) -> int:
        """It is over, in good order; which one it was."""
        self.revoked.discard(tp)
        return self._numbers.pop(tp)

    def lose(self, tp: TopicPartition) -> None:
        """It is over, and the user is told that he has lost it."""
        self.working.discard(tp)
        self._changes.tell(Lost(tp), self.end(tp))

    def lose_all(self) -> None:
        for tp in tuple(self._numbers):
            self.lose(tp)
