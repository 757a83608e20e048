"""◆ All partitions that a producer sends to: which have something to send, and which it may forget.

A partition is forgotten with its topic, once nothing of it is under way. Its sequences go with it, and a broker would
take sequence 0 of the same epoch for a duplicate of the first batch. So partitions that come, or come back, begin in an
epoch above those of all that were forgotten, which a broker takes with sequence 0 (KIP-360); when the epochs of the
producer's id are used up, they wait for another id.

A producer that goes on as another one forgets none: its numbers are given.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from raylog.client.batches.accumulator import Batch
from raylog.client.delivery import BatchOutcome
from raylog.client.produce.producer_state import MAX_EPOCH, Continuation, Identity, PartitionState, RetryPolicy
from raylog.protocol.ids import TopicName, TopicPartition

__all__ = ["ProducerPartitions"]


class ProducerPartitions:
    """Not thread-safe."""

    def __init__(self, *, idempotent: bool, policy: RetryPolicy, continues: Continuation | None) -> None:
        self._idempotent = idempotent
        self._policy = policy
        self._continues = continues
        self._states: dict[TopicPartition, PartitionState] = {}
        self._identity: Identity | None = None
        """What new partitions send as; None while an idempotent producer has no id for them."""

    def __getitem__(self, tp: TopicPartition) -> PartitionState:
        return self._states[tp]

    def __len__(self) -> int:
        return len(self._states)

    def candidates(self, waiting: Iterable[TopicPartition]) -> list[PartitionState]:
        """Those with something to send, of which ``waiting`` have batches that were never sent, or to send again."""
        found = {tp: self._states.get(tp) or self._new(tp) for tp in waiting}
        return [
            *found.values(),
            *(state for tp, state in self._states.items() if state.retrying and tp not in found),
        ]

    def _new(self, tp: TopicPartition) -> PartitionState:
        state = PartitionState(tp, idempotent=self._idempotent, policy=self._policy, continues=self._continues)
        if self._identity is not None and self._continues is None:
            state.identify(self._identity)
        self._states[tp] = state
        return state

    def in_flight(self) -> list[Batch[BatchOutcome]]:
        """The batches whose answers are awaited."""
        return [batch for state in self._states.values() for batch in state.in_flight()]

    def identify(self, identity: Identity) -> None:
        """An id came: for those that have none, and those to come."""
        self._identity = identity
        for state in self._states.values():
            if state.identity is None:
                state.identify(identity)

    def forget(self, is_kept: Callable[[TopicName], bool], waiting: Container[TopicPartition]) -> None:
        """Forget the partitions of topics that are not kept, but for those that have something to send."""
        if self._continues is not None:
            return
        idle = [
            tp
            for tp, state in self._states.items()
            if not state.outstanding and tp not in waiting and not is_kept(tp.topic)
        ]
        for tp in idle:
            self._begin_above(self._states.pop(tp).identity)

    def _begin_above(self, forgotten: Identity | None) -> None:
        ours = self._identity
        if forgotten is None:
            self._identity = None  # its epochs are used up, and it waits for another id
        elif ours is None or forgotten.producer_id != ours.producer_id:
            return
        elif forgotten.epoch >= MAX_EPOCH:
            self._identity = None
        elif forgotten.epoch >= ours.epoch:
            self._identity = Identity(ours.producer_id, forgotten.epoch + 1)
