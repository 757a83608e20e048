from __future__ import annotations

import pytest

from raylog.client.fetch.subscription import Place, Subscription
from raylog.client.read_errors import PositionLost
from raylog.protocol.errors import OffsetOutOfRange
from raylog.protocol.ids import EARLIEST, LATEST, PartitionIndex, TopicName, TopicPartition

A = TopicPartition(TopicName("t"), PartitionIndex(0))
B = TopicPartition(TopicName("t"), PartitionIndex(1))


def test_partitions_that_stay_keep_their_positions() -> None:
    subscription = Subscription(EARLIEST)
    subscription.assign([A])
    subscription[A].seek(7)
    subscription.assign([A, B])
    assert subscription[A].position == 7
    assert subscription[B].position is None
    assert subscription[B].questions() == (EARLIEST,)
    subscription.assign([B])
    assert A not in subscription


def test_kept_partition_is_there_throughout_assign() -> None:
    """Another thread looks at what changed while an assignment is made: it never takes a kept partition for gone."""
    seen: list[bool] = []

    def reset() -> int:
        subscription.changed.clear()
        seen.append(A in subscription)
        return EARLIEST

    subscription = Subscription(reset)
    subscription.assign([A])
    seen.clear()
    subscription.assign([B, A])
    assert seen == [True]
    assert subscription.changed.keys() == {A, B}


def test_interrupted_assign_leaves_assignment_before() -> None:
    interrupts = [False]

    def reset() -> int:
        if interrupts[0]:
            raise KeyboardInterrupt
        return EARLIEST

    subscription = Subscription(reset)
    subscription.assign([A])
    subscription[A].seek(7)
    place, generation = subscription[A], subscription[A].generation
    interrupts[0] = True
    with pytest.raises(KeyboardInterrupt):
        subscription.assign([B, A])
    assert [*subscription] == [place]
    assert (place.position, place.generation) == (7, generation)


def test_a_place_finds_its_position() -> None:
    place = Place(A)
    place.seek_to(LATEST)
    assert place.questions() == (LATEST,)
    assert place.answer(LATEST, 42) is None
    assert (place.position, place.questions()) == (42, ())


def test_a_reset_to_a_time_is_asked_when_the_position_is_lost() -> None:
    now = [1_000]
    subscription = Subscription(lambda: now[0])
    place = subscription.add(A)
    assert place.questions() == (LATEST,)  # before the time is asked for
    place.seek(17)
    now[0] = 2_000
    place.lose(subscription.reset)
    assert place.answer(EARLIEST, 20) is None
    jump = place.answer(LATEST, 50)
    assert jump is not None
    assert (jump.position, str(jump.lost).startswith("t-0: offset 17 is out of range")) == (None, True)
    assert place.questions() == (LATEST,)
    assert place.answer(LATEST, 50) is None
    assert place.questions() == (2_000,)
    assert place.answer(2_000, 31) is None
    assert place.position == 31


def test_without_a_reset_there_is_no_position_to_begin_with() -> None:
    subscription = Subscription(None)
    subscription.assign([A])
    with pytest.raises(OffsetOutOfRange, match="no position"):
        subscription[A].questions()


def lost(target: int | None) -> Place:
    place = Place(A)
    place.seek(17)
    place.lose(target)
    return place


def test_a_lost_position_is_told_with_both_ends_before_reading_on() -> None:
    place = lost(EARLIEST)
    assert place.questions() == (EARLIEST, LATEST)
    assert place.answer(LATEST, 50) is None
    assert place.questions() == (EARLIEST,)
    jump = place.answer(EARLIEST, 20)
    assert jump is not None
    assert (jump.lost.position, jump.lost.earliest, jump.lost.end, jump.position) == (17, 20, 50, 20)
    assert place.position == 20


def test_a_lost_position_with_nowhere_to_go_is_an_error_each_time() -> None:
    place = lost(None)
    for _ in range(2):
        assert place.answer(EARLIEST, 20) is None
        with pytest.raises(PositionLost, match="offset 17 is out of range, the broker has 20 to 50"):
            place.answer(LATEST, 50)
        assert place.position is None
    place.seek(20)
    assert place.questions() == ()


def test_a_position_that_is_there_after_all_is_kept() -> None:
    place = lost(LATEST)
    place.answer(EARLIEST, 0)
    assert place.answer(LATEST, 99) is None
    assert place.position == 17


def test_every_jump_voids_what_was_asked_before() -> None:
    place = Place(A)
    generations = [place.generation]
    place.seek(3)
    generations.append(place.generation)
    place.lose(LATEST)
    generations.append(place.generation)
    place.seek_to(EARLIEST)
    generations.append(place.generation)
    assert len(set(generations)) == 4


def test_a_time_is_looked_up_after_the_end() -> None:
    """Else a record written between the two answers, young enough, would be left out."""
    place = Place(TopicPartition(TopicName("t"), PartitionIndex(0)))
    place.seek_to(1_000)
    assert place.questions() == (LATEST,)
    assert place.answer(LATEST, 40) is None
    assert place.position is None
    assert place.questions() == (1_000,)
    place.answer(1_000, 17)
    assert place.position == 17
    place.seek_to(2_000)
    place.answer(LATEST, 40)
    place.answer(2_000, -1)
    assert place.position == 40
