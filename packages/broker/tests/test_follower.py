"""A partition's follower: what it makes of a leader's answers, against two logs held side by side."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.partitions import batch
from raylog.broker.replication.follower import Append, Follower, StartAnew, Truncate, missing_batches
from raylog.broker.storage.state.epochs import LeaderEpochs
from raylog.protocol.errors import NotLeaderOrFollower, OffsetOutOfRange
from raylog.protocol.ids import LeaderEpoch, Offset
from raylog.protocol.wire.fetch import EpochEndOffset, FetchedPartition

NOTHING_COMMITTED = Offset(0)


@dataclass
class ModelLog:
    """A log of one-record batches: the epoch of each record, from ``start`` on."""

    records: list[int] = field(default_factory=list)
    start: int = 0
    high_watermark: Offset = NOTHING_COMMITTED

    @property
    def log_start_offset(self) -> Offset:
        return Offset(self.start)

    @property
    def log_end_offset(self) -> Offset:
        return Offset(self.start + len(self.records))

    @property
    def epochs(self) -> LeaderEpochs:
        epochs = LeaderEpochs()
        for number, epoch in enumerate(self.records):
            epochs.assign(LeaderEpoch(epoch), Offset(self.start + number))
        return epochs

    def end_offset(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        return self.epochs.end_offset(epoch, self.log_end_offset)

    def divergence(self, offset: int, epoch: int) -> tuple[int, int] | None:
        """As the leader answers a fetch."""
        known, end = self.epochs.end_offset(LeaderEpoch(min(epoch, self.epochs.latest)), self.log_end_offset)
        return (known, end) if known < epoch or end < offset else None


def diverging(epoch: int, end: int) -> FetchedPartition[memoryview]:
    return FetchedPartition(0, diverging_epoch=EpochEndOffset(epoch, end))


def test_the_example_of_the_module() -> None:
    log = ModelLog([1] * 10 + [4] * 5)
    assert Follower().steps(diverging(3, 14), log) == [Truncate(Offset(10))]


def test_the_same_epoch_ends_where_the_shorter_log_does() -> None:
    log = ModelLog([1] * 10 + [4] * 5)
    assert Follower().steps(diverging(4, 12), log) == [Truncate(Offset(12))]
    assert Follower().steps(diverging(1, 20), log) == [Truncate(Offset(10))]


def test_nothing_in_common_leaves_nothing() -> None:
    log = ModelLog([4] * 5, start=7)
    assert Follower().steps(diverging(2, 9), log) == [Truncate(Offset(7))]


def test_following_begins_at_the_own_end_and_never_at_the_high_watermark() -> None:
    assert Follower().first_offset(ModelLog([1] * 10, high_watermark=Offset(4))) == 10


def test_the_high_watermark_follows_up_to_the_own_end_and_never_back() -> None:
    log = ModelLog([1] * 10, high_watermark=Offset(4))
    follower = Follower()
    assert follower.high_watermark(Offset(7), log) == 7
    assert follower.high_watermark(Offset(70), log) == 10
    assert follower.high_watermark(Offset(2), log) == 4


def test_out_of_range_below_the_leaders_start_begins_anew() -> None:
    log, error = ModelLog([1] * 10), OffsetOutOfRange("t-0")
    assert Follower().after_failure(error, FetchedPartition(0, log_start_offset=50), log) == StartAnew(Offset(50))


def test_an_empty_log_begins_anew_where_the_leader_does() -> None:
    log, error = ModelLog(start=50), OffsetOutOfRange("t-0")
    for start in (3, 0):
        found = FetchedPartition[memoryview](0, log_start_offset=start)
        assert Follower().after_failure(error, found, log) == StartAnew(Offset(start))


@pytest.mark.parametrize(
    ("error", "start"), [(OffsetOutOfRange("x"), 5), (OffsetOutOfRange("x"), -1), (NotLeaderOrFollower("x"), 50)]
)
def test_other_errors_are_waited_out(error: Exception, start: int) -> None:
    with pytest.raises(type(error)):
        Follower().after_failure(error, FetchedPartition(0, log_start_offset=start), ModelLog([1] * 10))  # type: ignore[arg-type]


def records(*bases: int) -> memoryview:
    """Batches of two records each."""
    return memoryview(bytearray(b"".join(bytes(batch(b"a", b"b", base_offset=base, leader_epoch=1)) for base in bases)))


def test_whole_and_new_batches_are_appended() -> None:
    three = records(0, 2, 4)
    size = len(three) // 3
    assert missing_batches(three, Offset(0)) == three
    assert missing_batches(three[: 3 * size - 1], Offset(0)) == three[: 2 * size]
    assert missing_batches(three, Offset(2)) == three[size:]
    assert missing_batches(three, Offset(6)) is None
    assert missing_batches(three[: size - 1], Offset(0)) is None
    assert missing_batches(None, Offset(0)) is None
    assert missing_batches(three[:20], Offset(0)) is None


def test_a_log_that_begins_inside_a_batch_takes_it_whole() -> None:
    data = records(4)
    found = FetchedPartition(0, records=data)
    assert Follower().steps(found, ModelLog(start=5)) == [StartAnew(Offset(4)), Append(data)]
    assert Follower().steps(found, ModelLog(start=4)) == [Append(data)]


def agreement(one: list[int], other: list[int]) -> int:
    """How many records both have in common."""
    differing = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """What two replicas can have: each epoch has one leader, which goes on from a prefix that one of them has."""
    leader: list[int] = []
    follower: list[int] = []
    for epoch in range(draw(st.integers(1, 6))):
        base = draw(st.sampled_from([leader, follower]))
        new = base + [epoch] * draw(st.integers(0, 4))
        # each copies a prefix of the epoch's log after having found where it differs, or misses the epoch altogether
        for own in (leader, follower):
            if draw(st.booleans()):
                own[:] = new[: draw(st.integers(agreement(own, new), len(new)))]
    leader += [9] * draw(st.integers(1, 3))
    return leader, follower


@given(histories())
def test_after_the_answers_both_logs_agree(logs: tuple[list[int], list[int]]) -> None:
    leader, log = ModelLog(logs[0]), ModelLog(list(logs[1]))
    common = agreement(*logs)
    answers = 0
    while log.records and (found := leader.divergence(log.log_end_offset, log.records[-1])) is not None:
        (step,) = Follower().steps(diverging(*found), log)
        assert isinstance(step, Truncate)
        assert step.offset < log.log_end_offset, "each answer takes something away"
        del log.records[step.offset :]
        answers += 1
    assert log.records == leader.records[: len(log.records)]
    assert len(log.records) == common, "and nothing that both have"
    assert answers <= len(set(logs[1])) + 1
