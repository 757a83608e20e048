from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.client.fetch.subscription import Subscription
from raylog.client.groups.changes import Assigned, Change, Lost, Revoked
from raylog.client.groups.group_consumer_core import GroupCore, Step
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.protocol.errors import InvalidRequest, OffsetMetadataTooLarge
from raylog.protocol.ids import EARLIEST, LeaderEpoch, MonotonicMs, Offset, PartitionIndex, TopicName, TopicPartition

A, B = (TopicPartition(TopicName("t"), PartitionIndex(index)) for index in (0, 1))


def core_of(subscription: Subscription, *, auto_commit: bool = True, auto_store: bool = True) -> GroupCore:
    return GroupCore(
        subscription,
        auto_commit=auto_commit,
        auto_store=auto_store,
        auto_commit_interval_ms=1_000,
        max_metadata_bytes=10,
    )


@pytest.fixture
def subscription() -> Subscription:
    return Subscription(EARLIEST)


@pytest.fixture
def core(subscription: Subscription) -> GroupCore:
    return core_of(subscription)


def at(offset: int, epoch: int = -1) -> CommittedOffset:
    return CommittedOffset(Offset(offset), LeaderEpoch(epoch))


def all_steps(core: GroupCore) -> list[Step]:
    steps = []
    while (step := core.next_step()) is not None:
        steps.append(step)
        core.done()
    return steps


def test_what_begins_is_read_from_the_committed_offset_or_from_where_the_reset_says(
    core: GroupCore, subscription: Subscription
) -> None:
    core.hear(0, [Assigned(A, at(7, 3)), Assigned(B, None)])
    assert core.next_step() == Step(Assigned, (A, B))
    assert (subscription[A].position, subscription[A].epoch) == (7, 3)
    assert subscription[B].questions() == (EARLIEST,)


def test_what_is_stored_is_committed_in_place_of_positions(subscription: Subscription) -> None:
    core = core_of(subscription, auto_store=False)
    core.hear(0, [Assigned(A, at(7)), Assigned(B, at(7))])
    all_steps(core)
    subscription[A].seek(20)
    assert core.positions() == {}
    core.store({A: at(9), B: at(7)})
    assert core.positions() == {A: at(9)}, "what B has is committed already"
    assert core.positions([B]) == {}
    assert core.due(MonotonicMs(0)) == {}
    assert core.due(MonotonicMs(1_000)) == {A: at(9)}
    core.committed({A: at(9)})
    assert core.positions() == {}
    core.store({A: at(10)})
    core.hear(0, [Lost(A), Assigned(A, at(9))])
    all_steps(core)
    assert core.positions() == {}, "it was lost, and read again from what was committed"


def test_what_cannot_be_stored_is_refused(core: GroupCore, subscription: Subscription) -> None:
    core.hear(0, [Assigned(A, at(7))])
    all_steps(core)
    with pytest.raises(InvalidRequest, match=r"set enable\.auto\.offset\.store=false"):
        core.store({A: at(9)})
    core = core_of(subscription, auto_store=False)
    with pytest.raises(InvalidRequest, match="t-0: offset -1 is negative"):
        core.store({A: at(-1)})
    with pytest.raises(InvalidRequest, match="t-1 is not this consumer's"):
        core.store({A: at(9), B: at(9)})
    assert core.positions() == {}


def test_a_step_is_told_until_it_is_done(core: GroupCore, subscription: Subscription) -> None:
    core.hear(0, [Assigned(A, at(7))])
    assert core.next_step() == core.next_step() == Step(Assigned, (A,))
    core.hear(0, [Revoked(A)])
    assert core.next_step() == Step(Assigned, (A,))
    core.done()
    assert core.next_step() == Step(Revoked, (A,))
    assert A in subscription  # its position may still be committed
    core.done()
    assert A not in subscription
    assert core.next_step() is None


def test_what_was_lost_was_not_revoked_in_good_order(core: GroupCore) -> None:
    core.hear(0, [Assigned(A, at(7))])
    all_steps(core)
    core.hear(0, [Revoked(A), Lost(A), Assigned(A, at(9))])
    assert all_steps(core) == [Step(Lost, (A,)), Step(Assigned, (A,))]


def test_nobody_hears_of_what_came_and_went(core: GroupCore) -> None:
    core.hear(0, [Assigned(A, None), Revoked(A)])
    core.hear(0, [Lost(A), Assigned(B, None)])
    assert all_steps(core) == [Step(Assigned, (B,))]


def test_only_what_changed_is_to_be_committed(core: GroupCore, subscription: Subscription) -> None:
    core.hear(0, [Assigned(A, at(7)), Assigned(B, None)])
    all_steps(core)
    assert core.positions() == {}  # A is where it was committed, B has no position yet
    subscription[A].seek(9, 4)
    assert core.positions() == {A: at(9, 4)}
    core.committed({A: at(9, 4)})
    assert core.positions() == {}
    subscription[A].seek(3)  # a rewind
    assert core.positions([A, B]) == {A: at(3)}


def test_positions_are_due_once_an_interval(core: GroupCore, subscription: Subscription) -> None:
    core.hear(0, [Assigned(A, at(7))])
    all_steps(core)
    subscription[A].seek(9)
    assert core.due(MonotonicMs(500)) == {}
    assert core.due_in_ms(MonotonicMs(600)) == 900
    assert core.due(MonotonicMs(1_500)) == {A: at(9)}
    assert core.due(MonotonicMs(1_501)) == {}
    assert core.due(MonotonicMs(2_500)) == {A: at(9)}, "nobody has said that it was committed"


def test_without_auto_commit_nothing_is_ever_due(subscription: Subscription) -> None:
    core = core_of(subscription, auto_commit=False)
    core.hear(0, [Assigned(A, at(7))])
    all_steps(core)
    subscription[A].seek(9)
    assert core.due(MonotonicMs(0)) == core.due(MonotonicMs(1_000_000)) == {}
    assert core.due_in_ms(MonotonicMs(0)) is None


def test_what_cannot_be_committed_is_refused_by_name(core: GroupCore) -> None:
    with pytest.raises(InvalidRequest, match="t-0: offset -5 is negative"):
        core.check({A: at(-5)})
    with pytest.raises(OffsetMetadataTooLarge, match=r"t-1: 12 bytes .* allows 10"):
        core.check({A: at(1), B: CommittedOffset(Offset(1), metadata="é" * 6)})
    core.check({A: CommittedOffset(Offset(0), metadata="é" * 5)})


def possible(state: dict[TopicPartition, str], kind: int, tp: TopicPartition) -> Change:
    """What a membership may tell next of ``tp``."""
    now = state.get(tp, "gone")
    if now == "gone":
        state[tp] = "begun"
        return Assigned(tp, None)
    if now == "begun" and kind:
        state[tp] = "revoked"
        return Revoked(tp)
    state[tp] = "gone"
    return Lost(tp)


@given(
    st.lists(
        st.tuples(st.sampled_from((A, B)), st.integers(0, 1), st.booleans()),
        max_size=30,
    )
)
def test_the_user_hears_a_life_of_each_partition_in_order(script: list[tuple[TopicPartition, int, bool]]) -> None:
    """However changes come and whenever they are taken up: assigned, then revoked or lost, and so on; in the end he has
    what the membership has."""
    subscription = Subscription(EARLIEST)
    core = core_of(subscription)
    state: dict[TopicPartition, str] = {}
    has: set[TopicPartition] = set()

    def take_up() -> None:
        while (step := core.next_step()) is not None:
            told = set(step.partitions)
            assert len(told) == len(step.partitions) > 0
            if step.kind is Assigned:
                assert not told & has
                has.update(told)
            else:
                assert told <= has
                has.difference_update(told)
                for tp in told if step.kind is Revoked else ():
                    if state.get(tp) == "revoked":
                        state[tp] = "gone"  # the consumer says that it is quiet
            assert told <= {place.tp for place in subscription}
            core.done()
            assert {place.tp for place in subscription} >= has

    for tp, kind, polls in script:
        core.hear(0, [possible(state, kind, tp)])
        if polls:
            take_up()
            assert has == {tp for tp, now in state.items() if now == "begun"}
    take_up()
    assert has == set(core.owned()) == {tp for tp, now in state.items() if now == "begun"}
