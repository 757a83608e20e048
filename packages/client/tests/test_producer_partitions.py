"""Which partitions a producer forgets, and that none that comes back is taken for what it was."""

from __future__ import annotations

from uuid import UUID

import pytest

from raylog.client.batches.accumulator import Batch
from raylog.client.delivery import BatchOutcome
from raylog.client.produce.producer_partitions import ProducerPartitions
from raylog.client.produce.producer_state import MAX_EPOCH, Continuation, Identity, PartitionState, RetryPolicy
from raylog.protocol.ids import LeaderEpoch, PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.protocol.records import Record

EPOCH = LeaderEpoch(0)
POLICY = RetryPolicy(retries=3, backoff_ms=0, backoff_max_ms=0, window=5)


def tp_of(number: int) -> TopicPartition:
    return TopicPartition(TopicName(f"t{number}"), PartitionIndex(0))


def partitions(*, idempotent: bool = True, continues: Continuation | None = None) -> ProducerPartitions:
    made = ProducerPartitions(idempotent=idempotent, policy=POLICY, continues=continues)
    if idempotent and continues is None:
        made.identify(Identity(7, 0))
    return made


def send(made: ProducerPartitions, tp: TopicPartition) -> tuple[PartitionState, Batch[BatchOutcome]]:
    """One record, on its way."""
    (state,) = [state for state in made.candidates([tp]) if state.tp == tp]
    batch = Batch(tp, BatchOutcome(tp.topic, tp.partition), 100, 0)
    batch.records.append(Record(b"v"))
    assert state.sendable(batch, 0, EPOCH) is batch
    state.sent(batch, EPOCH)
    return state, batch


def deliver(made: ProducerPartitions, tp: TopicPartition) -> tuple[int, int, int]:
    """One record; producer id, epoch and sequence that it went with."""
    state, batch = send(made, tp)
    state.succeeded(batch)
    assert state.identity is not None
    return (*state.identity, batch.sequence)


def forget(made: ProducerPartitions, *kept: TopicPartition, waiting: tuple[TopicPartition, ...] = ()) -> None:
    made.forget({tp.topic for tp in kept}.__contains__, waiting)


@pytest.mark.parametrize("idempotent", [True, False])
def test_ten_thousand_short_lived_topics_leave_nothing(idempotent: bool) -> None:
    made = partitions(idempotent=idempotent)
    most = 0
    for number in range(10_000):
        deliver(made, tp_of(number))
        if number % 100 == 99:
            most = max(most, len(made))
            forget(made, tp_of(number))
    assert (most, len(made)) == (101, 1)


def test_partition_that_comes_back_begins_in_a_higher_epoch() -> None:
    """Else its first record would be taken for a duplicate of the first that it ever sent."""
    made = partitions()
    assert [deliver(made, tp_of(0)) for _ in range(2)] == [(7, 0, 0), (7, 0, 1)]
    assert deliver(made, tp_of(1)) == (7, 0, 0)
    forget(made, tp_of(1))
    assert deliver(made, tp_of(0)) == (7, 1, 0)
    assert deliver(made, tp_of(1)) == (7, 0, 1), "which was kept"
    assert deliver(made, tp_of(2)) == (7, 1, 0)
    forget(made)
    assert [deliver(made, tp_of(number)) for number in range(3)] == [(7, 2, 0)] * 3


def test_partition_with_something_to_send_is_kept() -> None:
    made = partitions()
    state, batch = send(made, tp_of(0))
    deliver(made, tp_of(1))
    forget(made, waiting=(tp_of(1),))
    assert (made[tp_of(0)], len(made), made.in_flight()) == (state, 2, [batch])
    state.succeeded(batch)
    forget(made)
    assert len(made) == 0


def test_producer_that_goes_on_as_another_forgets_no_number() -> None:
    made = partitions(continues=Continuation(Identity(7, 3), {tp_of(0): 40}))
    assert deliver(made, tp_of(0)) == (7, 3, 40)
    forget(made)
    assert deliver(made, tp_of(0)) == (7, 3, 41)


def test_new_id_is_waited_for_when_epochs_are_used_up() -> None:
    made = partitions()
    for epoch in range(MAX_EPOCH + 1):
        assert deliver(made, tp_of(0)) == (7, epoch, 0)
        forget(made)
    (state,) = made.candidates([tp_of(0)])
    assert state.identity is None
    made.identify(Identity(8, 0))
    assert deliver(made, tp_of(0)) == (8, 0, 0)
    assert deliver(made, tp_of(1)) == (8, 0, 0)


def test_partition_of_a_former_id_raises_no_epoch_of_the_present() -> None:
    made = partitions()
    deliver(made, tp_of(0))
    made[tp_of(0)].turn_to(TopicId(UUID(int=1)))
    made[tp_of(0)].turn_to(TopicId(UUID(int=2)))
    assert deliver(made, tp_of(0)) == (7, 1, 0)
    made.identify(Identity(8, 0))
    forget(made)
    assert deliver(made, tp_of(0)) == (8, 0, 0)


def test_partition_forgotten_without_epochs_waits_for_new_id() -> None:
    """The epochs of the id that is here are used up for it: a broker would take its first record for a duplicate."""
    made = partitions()
    deliver(made, tp_of(0))
    state = made[tp_of(0)]
    for number in range(MAX_EPOCH + 1):
        state.turn_to(TopicId(UUID(int=number + 1)))
        deliver(made, tp_of(0))
    state.turn_to(TopicId(UUID(int=MAX_EPOCH + 2)))
    assert state.identity is None
    forget(made)
    (fresh,) = made.candidates([tp_of(0)])
    assert fresh is not state
    assert fresh.identity is None
    made.identify(Identity(8, 0))
    assert deliver(made, tp_of(0)) == (8, 0, 0)
