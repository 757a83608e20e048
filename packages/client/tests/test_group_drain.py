"""When a group of actors is drained, over brokers that fail and topics that go."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self, cast
from uuid import UUID

import pytest

from raylog.client.admin import Admin
from raylog.client.handlers.drain import LOOK_S, GroupDrain
from raylog.client.results import OffsetAndTimestamp, PartitionDescription, TopicDescription
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.protocol.errors import (
    BrokerNotAvailable,
    GroupAuthorizationFailed,
    LeaderNotAvailable,
    NetworkException,
    RaylogError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import (
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)

TOPIC = TopicName("t")
TPS = [TopicPartition(TOPIC, PartitionIndex(index)) for index in range(2)]


class Cluster:
    """What an admin client asks, with one topic of two partitions."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timeouts: list[float] = []
        """Of the admin clients."""
        self.topic_id: TopicId | None = TopicId(UUID(int=1))
        """None: the broker that is asked knows no topic."""
        self.ends = [5, 0]
        self.committed: dict[TopicPartition, int] = {}
        self.calls: list[str] = []
        self.errors: dict[str, RaylogError] = {}
        """What each call raises."""

    def open_admin(self, timeout_s: float) -> Admin:
        self.timeouts.append(timeout_s)
        return cast(Admin, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.errors:
            self.now_s += self.timeouts[-1]
            raise self.errors[name]

    def list_topics(self) -> list[TopicDescription]:
        self._call("topics")
        if self.topic_id is None:
            return []
        broker, epoch = BrokerId(1), LeaderEpoch(0)
        partitions = tuple(PartitionDescription(tp.partition, broker, epoch, (broker,), (broker,)) for tp in TPS)
        others = TopicDescription(TopicName("other"), TopicId(UUID(int=9)), partitions)
        return [TopicDescription(TOPIC, self.topic_id, partitions), others]

    def list_offsets(self, at: Any) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._call("ends")
        assert {topic for topic, _ in at} <= {TOPIC}
        ends = {tp: self.ends[tp.partition] for tp in map(TopicPartition._make, at)}
        return {tp: OffsetAndTimestamp(Offset(end), TimestampMs(-1), LeaderEpoch(0)) for tp, end in ends.items()}

    def list_group_offsets(self, group: str) -> dict[TopicPartition, CommittedOffset]:
        self._call("committed")
        return {tp: CommittedOffset(Offset(offset)) for tp, offset in self.committed.items()}


def drain_of(cluster: Cluster, timeout_s: float | None = None) -> GroupDrain:
    return GroupDrain("g", TOPIC.__eq__, cluster.open_admin, timeout_s, lambda: cluster.now_s)


def look(cluster: Cluster, drain: GroupDrain) -> bool:
    """The next look, of members that own all and have handled one record."""
    done = drain.is_done(TPS, {TPS[0]: 1})
    cluster.now_s += LOOK_S
    return done


def look_often(cluster: Cluster, drain: GroupDrain) -> None:
    """Of members that own nothing."""
    for _ in range(100):
        assert not drain.is_done((), {})
        cluster.now_s += LOOK_S


def test_group_is_drained_at_ends_of_begin() -> None:
    cluster = Cluster()
    drain = drain_of(cluster)
    assert not drain.is_done(TPS, {TPS[0]: 4})
    cluster.ends = [9, 9]
    cluster.now_s += LOOK_S
    assert not drain.is_done(TPS, {TPS[0]: 4})
    assert drain.is_done(TPS, {TPS[0]: 5})


def test_drain_is_done_at_shorter_end_of_cut_log() -> None:
    cluster = Cluster()
    drain = drain_of(cluster)
    assert not look(cluster, drain)
    cluster.ends = [1, 0]
    assert look(cluster, drain)


def test_commits_of_others_count() -> None:
    cluster = Cluster()
    drain = drain_of(cluster)
    assert not drain.is_done((), {})
    cluster.committed = {TPS[0]: 5}
    cluster.now_s += LOOK_S
    assert drain.is_done((), {})


def test_empty_partition_without_owner_asks_for_no_commits() -> None:
    cluster = Cluster()
    drain = drain_of(cluster)
    for _ in range(5):
        assert not drain.is_done(TPS[:1], {TPS[0]: 1})
        cluster.now_s += LOOK_S
    assert "committed" not in cluster.calls


def test_between_looks_nothing_is_asked() -> None:
    cluster = Cluster()
    drain = drain_of(cluster)
    for _ in range(20):
        assert not drain.is_done((), {})
        cluster.now_s += LOOK_S / 40
    assert cluster.calls == ["topics", "ends", "committed"]


@pytest.mark.parametrize("call", ["topics", "ends", "committed"])
def test_calls_end_with_the_drains_timeout(call: str) -> None:
    cluster = Cluster()
    cluster.errors[call] = BrokerNotAvailable("no broker answers")
    drain = drain_of(cluster, 7)
    with pytest.raises(RequestTimedOut, match="group g is not drained within 7 s: "):
        look_often(cluster, drain)
    assert cluster.timeouts == [5, 1]
    assert cluster.now_s == 7


def test_first_look_is_taken_though_members_answer_late() -> None:
    """It says what is left."""
    cluster = Cluster()
    drain = drain_of(cluster, 0.5)
    cluster.now_s += 3
    with pytest.raises(RequestTimedOut, match=r"not drained within 0.5 s: t-0 at no position of 5"):
        drain.is_done((), {})
    assert cluster.timeouts == [LOOK_S]


@pytest.mark.parametrize("call", ["topics", "ends", "committed"])
@pytest.mark.parametrize("kind", [NetworkException, LeaderNotAvailable, BrokerNotAvailable, UnknownTopicOrPartition])
def test_passing_error_of_a_look_ends_no_drain(kind: type[RaylogError], call: str) -> None:
    cluster = Cluster()
    drain = drain_of(cluster)
    assert not drain.is_done((), {})
    cluster.errors[call] = kind("for now")
    for _ in range(3):
        cluster.now_s += LOOK_S
        assert not drain.is_done((), {})
    cluster.errors.clear()
    assert drain.is_done(TPS, {TPS[0]: 5})


def test_error_that_does_not_pass_ends_the_drain() -> None:
    cluster = Cluster()
    cluster.errors["committed"] = GroupAuthorizationFailed("not you")
    with pytest.raises(GroupAuthorizationFailed):
        drain_of(cluster).is_done((), {})


def test_first_look_without_timeout_is_tried_for_a_minute() -> None:
    cluster = Cluster()
    cluster.errors["topics"] = BrokerNotAvailable("no broker answers")
    drain = drain_of(cluster)
    with pytest.raises(BrokerNotAvailable):
        look_often(cluster, drain)
    assert 60 <= cluster.now_s <= 70


@pytest.mark.parametrize("now", [None, TopicId(UUID(int=2))])
def test_topic_is_gone_after_two_looks_in_a_row(now: TopicId | None) -> None:
    cluster = Cluster()
    drain = drain_of(cluster)
    first = cluster.topic_id
    for known in (first, now, first, now):  # a broker that lags answers now and then
        cluster.topic_id = known
        assert not look(cluster, drain)
    with pytest.raises(UnknownTopicOrPartition, match="topic t was deleted while it was drained"):
        look(cluster, drain)
