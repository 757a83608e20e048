"""The decisions of a consumer actor: what is handled, committed, tried again, put aside, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.client.handlers.batches import Rows
from raylog.client.handlers.config import split_config
from raylog.client.handlers.core import (
    COMMIT_RETRY_MS,
    POLL_EVERY_MS,
    POLL_MOST_MS,
    RETRY_FIRST_MS,
    Bury,
    Commit,
    Counts,
    Decision,
    Handle,
    HandlerCore,
    Poll,
    Stop,
    Verdict,
)
from raylog.client.read_errors import RecordDeserializationError
from raylog.client.results import ConsumerRecord
from raylog.protocol.ids import MonotonicMs, PartitionIndex, TopicName, TopicPartition

A, B = (TopicPartition(TopicName("t"), PartitionIndex(index)) for index in range(2))
REFUSED = ValueError("no such carrier")


def undecodable(tp: TopicPartition, offset: int) -> RecordDeserializationError:
    record = ConsumerRecord(*tp, offset, 0, 0, None, b"{", ())
    return RecordDeserializationError(record, "value", ValueError("not JSON"))


def rows(tp: TopicPartition, first: int, count: int) -> Rows:
    return Rows(tp, [ConsumerRecord(*tp, offset, 0, 0, None, b"", ()) for offset in range(first, first + count)])


class World:
    """A core, and a clock that the test moves."""

    def __init__(self, **config: object) -> None:
        self.now = MonotonicMs(0)
        self.core = HandlerCore(split_config(config)[0], self.now, Counts())
        self.withheld: set[TopicPartition] = set()

    def next(self) -> Decision:
        return self.core.next(self.now, lambda tp: tp not in self.withheld)

    def poll(self, *batches: Rows) -> Poll:
        """It polls, and gets these."""
        decision = self.next()
        assert isinstance(decision, Poll), decision
        self.core.polled(batches, self.now)
        return decision

    def handle(self, *, error: Exception | None = None) -> list[int]:
        """It has a batch handled; the batch's offsets."""
        decision = self.next()
        assert isinstance(decision, Handle), decision
        if error is None:
            self.core.handled()
        else:
            self.core.failed(error, self.now)
        return offsets_of(decision)

    def fail(self) -> Verdict:
        assert isinstance(self.next(), Handle)
        return self.core.failed(REFUSED, self.now)

    def later(self, ms: int) -> None:
        self.now = MonotonicMs(self.now + ms)


def offsets_of(decision: Handle | Bury) -> list[int]:
    return [record.offset for record in decision.batch.raw()]


def test_what_is_polled_is_handled_then_committed_after_the_interval() -> None:
    world = World(auto_commit_interval_ms=300)
    assert world.poll(rows(A, 5, 2), rows(B, 0, 1)) == Poll(POLL_MOST_MS, frozenset())
    assert world.handle() == [5, 6]
    assert world.handle() == [0]
    assert world.poll() == Poll(POLL_MOST_MS, frozenset())
    world.later(POLL_MOST_MS)
    assert world.poll() == Poll(100, frozenset())  # the commit is due before its end
    world.later(100)
    assert world.next() == Commit({A: 7, B: 1})
    world.core.committed(world.now)
    assert isinstance(world.next(), Poll)
    assert world.core.positions() == {A: 7, B: 1}
    assert world.core.counts == Counts(handled=3)


def test_at_most_once_commits_before_the_handler_and_never_calls_it_again() -> None:
    world = World(processing_guarantee="at_most_once", errors_tolerance="all")
    world.poll(rows(A, 0, 4), rows(B, 0, 1))
    assert world.next() == Commit({A: 4})
    world.later(POLL_EVERY_MS)  # the commit took long; it must not be polled now, or A might go unhandled
    world.core.committed(world.now)
    assert world.fail() is Verdict.SKIP
    world.poll()
    assert world.next() == Commit({B: 1})
    world.core.committed(world.now)
    assert world.handle() == [0]
    assert isinstance(world.next(), Poll)
    assert world.core.counts == Counts(handled=1, failures=1, skipped=4)


def test_at_most_once_hands_out_nothing_whose_commit_is_in_doubt() -> None:
    world = World(processing_guarantee="at_most_once")
    world.poll(rows(A, 0, 4))
    assert world.next() == Commit({A: 4})
    world.core.commit_failed(world.now)
    assert world.poll() == Poll(POLL_MOST_MS, frozenset({A}))
    world.later(COMMIT_RETRY_MS)
    assert world.next() == Commit({A: 4})
    world.core.committed(world.now)
    assert world.handle() == [0, 1, 2, 3]


def test_a_failed_batch_waits_while_other_partitions_go_on() -> None:
    world = World(errors_retry_timeout=1_000)
    world.poll(rows(A, 0, 3))
    assert world.fail() is Verdict.RETRY
    assert world.poll(rows(B, 0, 1)) == Poll(RETRY_FIRST_MS, frozenset({A}))
    assert world.handle() == [0]
    world.later(RETRY_FIRST_MS)
    assert world.fail() is Verdict.RETRY
    assert world.poll() == Poll(2 * RETRY_FIRST_MS, frozenset({A}))  # the pause has doubled
    world.later(2 * RETRY_FIRST_MS)
    assert world.handle() == [0, 1, 2]


def test_a_pause_has_a_bound_and_the_last_try_comes_when_the_retries_end() -> None:
    world = World(errors_retry_timeout=1_000, errors_retry_delay_max_ms=150)
    world.poll(rows(A, 0, 1))
    tries = [0]
    while world.fail() is Verdict.RETRY:
        poll = world.poll()
        while poll.timeout_ms and not isinstance(world.next(), Handle):
            world.later(1)
        tries.append(world.now)
    assert tries == [0, 100, 250, 400, 550, 700, 850, 1_000]


def test_retries_may_go_on_for_ever() -> None:
    world = World(errors_retry_timeout=-1, errors_retry_delay_max_ms=10)
    world.poll(rows(A, 0, 1))
    for _ in range(100):
        assert world.fail() is Verdict.RETRY
        world.poll()
        world.later(10)


def test_a_member_that_stops_for_an_error_commits_what_was_done_before() -> None:
    world = World(errors_retry_timeout=0)
    world.poll(rows(A, 0, 3), rows(A, 3, 3), rows(B, 9, 1))
    world.handle()
    world.handle(error=REFUSED)
    assert world.next() == Commit({A: 3})
    world.core.committed(world.now)
    assert world.next() == Stop(REFUSED)
    assert world.core.counts == Counts(handled=3, failures=1)


def test_only_the_records_that_are_refused_alone_are_left_out() -> None:
    world = World(errors_retry_timeout=0, errors_tolerance="all")
    world.poll(rows(A, 0, 100))
    poison = {17, 18, 90}
    handled: list[int] = []
    refused = 0
    while isinstance(decision := world.next(), Handle):
        offsets = offsets_of(decision)
        if poison.intersection(offsets):
            world.core.failed(REFUSED, world.now)
            refused += 1
        else:
            handled += offsets
            world.core.handled()
    assert handled == [offset for offset in range(100) if offset not in poison]
    assert world.core.counts == Counts(handled=97, failures=refused, skipped=3)
    assert refused < 25  # halving, not one by one
    assert world.core.positions() == {A: 100}


@pytest.mark.parametrize("poison", [0, 2, 4])
@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
@pytest.mark.parametrize("tolerance", ["none", "all"])
def test_a_record_that_cannot_be_deserialized_is_failed_alone(poison: int, guarantee: str, tolerance: str) -> None:
    world = World(errors_retry_timeout=0, errors_tolerance=tolerance, processing_guarantee=guarantee)
    world.poll(rows(A, 0, 5))
    handled: list[int] = []
    while not isinstance(decision := world.next(), Poll | Stop):
        if isinstance(decision, Commit):
            world.core.committed(world.now)
        elif poison in (offsets := offsets_of(decision)):
            world.core.failed(undecodable(A, poison), world.now)
        else:
            handled += offsets
            world.core.handled()
    others = [offset for offset in range(5) if offset != poison]
    assert handled == (others if tolerance == "all" else others[:poison])
    if tolerance == "all":
        assert (world.core.positions(), world.core.counts.skipped) == ({A: 5}, 1)
    else:
        assert isinstance(decision, Stop)
        assert world.core.positions() == ({A: poison} if poison else {})


def test_a_refused_record_is_buried_before_the_partition_goes_on() -> None:
    world = World(errors_retry_timeout=0, errors_tolerance="all", errors_deadletterqueue_topic_name="dead")
    world.poll(rows(A, 7, 1), rows(A, 8, 1))
    assert world.fail() is Verdict.BURY
    decision = world.next()
    assert isinstance(decision, Bury)
    assert offsets_of(decision) == [7]
    assert decision.error is REFUSED
    assert world.core.positions() == {}
    world.core.buried()
    assert world.core.positions() == {A: 8}
    assert world.handle() == [8]
    assert world.core.counts == Counts(handled=1, failures=1, dead_lettered=1)


def test_a_member_that_cannot_bury_stops_in_front_of_the_record() -> None:
    world = World(errors_retry_timeout=0, errors_tolerance="all", errors_deadletterqueue_topic_name="dead")
    world.poll(rows(A, 6, 1), rows(A, 7, 1))
    world.handle()
    world.fail()
    assert isinstance(world.next(), Bury)
    lost = TimeoutError("no answer")
    world.core.bury_failed(lost)
    assert world.next() == Commit({A: 7})
    world.core.committed(world.now)
    assert world.next() == Stop(lost)


def test_what_is_given_up_is_committed_and_what_was_not_handled_of_it_is_forgotten() -> None:
    world = World()
    world.poll(rows(A, 0, 2), rows(A, 2, 2), rows(B, 0, 2))
    world.handle()
    assert world.core.revoked([A]) == {A: 2}
    assert world.handle() == [0, 1]  # of B
    assert isinstance(world.next(), Poll)
    assert world.core.revoked([A, B]) == {B: 2}


def test_what_is_lost_is_not_committed() -> None:
    world = World(auto_commit_interval_ms=0)
    world.poll(rows(A, 0, 2), rows(A, 2, 2), rows(B, 0, 2))
    world.handle()
    world.core.lost([A])
    assert world.handle() == [0, 1]  # of B
    assert world.next() == Commit({B: 2})
    world.core.lost([B])  # while it is under way
    world.core.committed(world.now)
    assert world.core.positions() == {}
    assert isinstance(world.next(), Poll)


def test_without_the_lease_nothing_is_handed_out_and_nobody_spins() -> None:
    world = World()
    world.poll(rows(A, 0, 2))
    world.withheld.add(A)
    assert world.poll() == Poll(POLL_MOST_MS, frozenset({A}))
    world.withheld.clear()
    assert world.handle() == [0, 1]


def test_it_polls_every_second_though_there_is_something_to_handle() -> None:
    world = World()
    world.poll(rows(A, 0, 1), rows(B, 0, 1))
    world.handle()
    world.later(POLL_EVERY_MS)
    assert world.poll(rows(A, 1, 1)) == Poll(0, frozenset({B}))
    assert isinstance(decision := world.next(), Handle)
    assert decision.batch.tp == B  # which has waited longer than what just came
    world.core.handled()
    assert world.handle() == [1]


def test_a_refused_commit_is_tried_again_behind_a_poll() -> None:
    world = World(auto_commit_interval_ms=0)
    world.poll(rows(A, 0, 2), rows(B, 0, 1))
    world.handle()
    assert world.next() == Commit({A: 2})
    world.core.commit_failed(world.now)
    assert world.poll() == Poll(0, frozenset({B}))
    world.handle()
    world.later(COMMIT_RETRY_MS)
    assert world.next() == Commit({A: 2, B: 1})


@pytest.mark.parametrize("fails", [False, True])
def test_it_commits_before_it_stops_and_stops_even_if_that_fails(fails: bool) -> None:
    world = World()
    world.poll(rows(A, 0, 2), rows(A, 2, 2))
    world.handle()
    world.core.stop()
    assert world.next() == Commit({A: 2})
    if fails:
        world.core.commit_failed(world.now)
    else:
        world.core.committed(world.now)
    assert world.next() == Stop(None)


def test_an_earlier_refused_commit_does_not_spare_the_last_one() -> None:
    world = World(auto_commit_interval_ms=0)
    world.poll(rows(A, 0, 2))
    world.handle()
    world.next()
    world.core.commit_failed(world.now)
    world.core.fail(REFUSED)
    assert world.next() == Commit({A: 2})
    world.core.committed(world.now)
    assert world.next() == Stop(REFUSED)


class Log:
    """Partitions that hold 40 records each, read and handled by one core whose every chance is drawn from a seed."""

    def __init__(self, seed: int, config: dict[str, object]) -> None:
        self.chance = Random(seed)
        self.world = World(**config)
        self.positions = {A: 0, B: 0}
        self.committed = {A: 0, B: 0}
        self.calls: Counter[tuple[TopicPartition, int]] = Counter()
        self.handled: set[tuple[TopicPartition, int]] = set()
        self.most = 0 if config["processing_guarantee"] != "at_most_once" else 1

    def step(self) -> None:
        chance, core, world = self.chance, self.world.core, self.world
        decision = world.next()
        world.later(chance.choice((0, 1, 50, 400)))
        match decision:
            case Poll(_, paused):
                self.come_and_go()
                core.polled(list(self.read(paused)), world.now)
            case Handle(batch):
                records = [(batch.tp, record.offset) for record in batch.raw()]
                self.calls.update(records)
                if self.most:
                    assert max(self.calls[record] for record in records) == 1
                    assert self.committed[batch.tp] >= batch.next_offset
                if chance.random() < 0.3:
                    core.failed(REFUSED, world.now)
                else:
                    self.handled.update(records)
                    core.handled()
            case Bury(batch):
                self.handled.update((batch.tp, record.offset) for record in batch.raw())
                core.buried()
            case Commit(offsets):
                if chance.random() < 0.2:
                    core.commit_failed(world.now)
                else:
                    self.commit(offsets)
                    core.committed(world.now)
            case Stop():
                raise AssertionError("nobody wished it")

    def come_and_go(self) -> None:
        """Between polls a partition may go to another member and come back, with its committed offset."""
        for tp in (A, B):
            moved = self.chance.random()
            if moved < 0.05:
                self.commit(self.world.core.revoked([tp]))
            elif moved < 0.1:
                self.world.core.lost([tp])
            if moved < 0.1:
                self.positions[tp] = self.committed[tp]

    def read(self, paused: frozenset[TopicPartition]) -> Iterable[Rows]:
        for tp, position in self.positions.items():
            count = min(self.chance.choice((0, 1, 5)), 40 - position)
            if count and tp not in paused:
                self.positions[tp] += count
                yield rows(tp, position, count)

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        for tp, offset in offsets.items():
            assert offset >= self.committed[tp]
            self.committed[tp] = offset
            if not self.most:
                assert all((tp, before) in self.handled for before in range(offset))

    @property
    def is_read(self) -> bool:
        return self.committed == {A: 40, B: 40}


@given(
    seed=st.integers(0, 2**32),
    guarantee=st.sampled_from(["at_most_once", "at_least_once", "exactly_once"]),
    tolerance=st.sampled_from(["none", "all"]),
    interval=st.sampled_from([0, 1_000]),
)
def test_no_order_of_events_breaks_the_guarantee(seed: int, guarantee: str, tolerance: str, interval: int) -> None:
    config: dict[str, object] = {
        "processing_guarantee": guarantee,
        "auto_commit_interval_ms": interval,
        "errors_retry_timeout": -1 if tolerance == "none" else 200,
        "errors_tolerance": "all",
        "errors_deadletterqueue_topic_name": "" if guarantee == "at_most_once" else "dead",
    }
    log = Log(seed, config)
    for _ in range(5_000):
        if log.is_read:
            break
        log.step()
    assert log.is_read, "it made no progress"
