from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import NamedTuple

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.metadata.v12.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32, i32Timedelta

from raylog.client.network.metadata import Metadata, backoff_ms
from raylog.client.results import BrokerDescription
from raylog.protocol import ids
from raylog.protocol.errors import InvalidTopic, UnknownTopicOrPartition

ID = uuid.UUID(int=7)
NO_THROTTLE = i32Timedelta.parse(timedelta(0))


def answer(*leaders: tuple[int, int], topic_id: uuid.UUID = ID, error: ErrorCode = ErrorCode.none) -> MetadataResponse:
    """One topic ``t``; per partition its leader and leader epoch."""
    return answer_of("t", *leaders, topic_id=topic_id, error=error)


def answer_of(
    topic_name: str, *leaders: tuple[int, int], topic_id: uuid.UUID = ID, error: ErrorCode = ErrorCode.none
) -> MetadataResponse:
    partitions = tuple(
        MetadataResponsePartition(
            error_code=ErrorCode.none,
            partition_index=i32(index),
            leader_id=BrokerId(leader),
            leader_epoch=i32(epoch),
            replica_nodes=(BrokerId(1),),
            isr_nodes=(BrokerId(1),),
        )
        for index, (leader, epoch) in enumerate(leaders)
    )
    topic = MetadataResponseTopic(
        error_code=error, name=TopicName(topic_name), topic_id=topic_id, partitions=partitions
    )
    broker = MetadataResponseBroker(node_id=BrokerId(1), host="h", port=i32(9), rack="r")
    return MetadataResponse(throttle_time=NO_THROTTLE, brokers=(broker,), cluster_id="c", topics=(topic,))


def tp(partition: int) -> ids.TopicPartition:
    return ids.TopicPartition(ids.TopicName("t"), ids.PartitionIndex(partition))


def test_it_is_asked_for_at_once_then_by_age() -> None:
    metadata = Metadata(["t"].copy, max_age_ms=1_000)
    assert metadata.due_in_ms(0) == 0
    request = metadata.request()
    assert [topic.name for topic in request.topics or ()] == ["t"]
    assert metadata.due_in_ms(0) > 0  # one at a time
    metadata.on_response(answer((1, 0)), 10)
    assert metadata.due_in_ms(10) == 1_000
    metadata.need_update()
    assert metadata.due_in_ms(10) == 100  # what is as fresh as that is not asked for again
    assert metadata.due_in_ms(110) == 0
    metadata.want(["t"])
    assert metadata.due_in_ms(10) == 100
    metadata.want(["another"])
    assert metadata.due_in_ms(10) == 0


def test_failures_are_followed_by_growing_pauses() -> None:
    metadata = Metadata(["t"].copy, backoff_ms=100, backoff_max_ms=300)
    waits = []
    for _ in range(4):
        metadata.request()
        metadata.on_failure(0)
        waits.append(metadata.due_in_ms(0))
    assert waits == [100, 200, 300, 300]
    assert backoff_ms(10_000, 1, 50) == 50


def test_a_partition_without_a_leader_is_asked_about_again_after_a_pause() -> None:
    metadata = Metadata(["t"].copy, backoff_ms=100)
    metadata.request()
    metadata.on_response(answer((1, 0), (-1, 3)), 0)
    assert metadata.view.led["t"] == (0,)
    assert metadata.due_in_ms(0) == 100
    metadata.need_update()
    assert metadata.due_in_ms(0) == 100  # needing it does not hurry it


def test_an_older_leader_epoch_is_not_taken_but_that_of_a_new_topic_is() -> None:
    metadata = Metadata(["t"].copy)
    metadata.on_response(answer((1, 5)), 0)
    metadata.on_response(answer((2, 4)), 1)
    assert metadata.view.leader_of(tp(0)) == (1, 5)
    metadata.on_response(answer((2, 0), topic_id=uuid.UUID(int=8)), 2)
    assert metadata.view.leader_of(tp(0)) == (2, 0)


def test_errors_of_topics_are_kept_and_only_passing_ones_are_asked_about_again() -> None:
    metadata = Metadata(["t"].copy, max_age_ms=9_000, backoff_ms=100)
    metadata.request()
    metadata.on_response(answer(error=ErrorCode.unknown_topic_or_partition), 0)
    assert isinstance(metadata.view.errors["t"], UnknownTopicOrPartition)
    assert metadata.due_in_ms(0) == 100
    metadata.request()
    metadata.on_response(answer(error=ErrorCode.invalid_topic_exception), 0)
    assert isinstance(metadata.view.errors["t"], InvalidTopic)
    assert metadata.due_in_ms(0) == 9_000


def named(request: MetadataRequest) -> list[str]:
    return [topic.name or "" for topic in request.topics or ()]


def test_a_producer_creates_what_is_waited_for_and_nothing_else() -> None:
    metadata = Metadata(max_age_ms=1_000, max_idle_ms=60_000, backoff_ms=100, allow_auto_create=True)
    metadata.want(["t"], 0)
    request = metadata.request(0)
    assert (named(request), request.allow_auto_topic_creation) == (["t"], True)
    metadata.on_response(answer((1, 0)), 0)
    assert metadata.due_in_ms(10) == 990
    metadata.want(["t"], 10)
    assert metadata.due_in_ms(10) == 990, "it is there"
    metadata.want(["other"], 10)
    request = metadata.request(10)
    assert (named(request), request.allow_auto_topic_creation) == (["other"], True)
    metadata.on_failure(20)
    assert metadata.due_in_ms(20) == 100
    assert named(metadata.request(120)) == ["other"]
    metadata.on_response(answer_of("other", (1, 0)), 120)
    assert set(metadata.view.topics) == {"t", "other"}, "an answer about one leaves the others"
    request = metadata.request(1_000)
    assert (named(request), request.allow_auto_topic_creation) == (["other", "t"], False)


def test_a_producer_forgets_a_deleted_topic_until_it_is_sent_to() -> None:
    metadata = Metadata(max_age_ms=1_000, max_idle_ms=60_000, backoff_ms=100, allow_auto_create=True)
    metadata.want(["t"], 0)
    metadata.request(0)
    metadata.on_response(answer((1, 0)), 0)
    metadata.request(1_000)
    metadata.on_response(answer(error=ErrorCode.unknown_topic_or_partition), 1_000)
    assert isinstance(metadata.view.errors["t"], UnknownTopicOrPartition)
    assert metadata.due_in_ms(1_000) == 1_000, "nobody waits for it"
    metadata.need_update("t")
    request = metadata.request(1_100)
    assert (named(request), request.allow_auto_topic_creation) == (["t"], False), "a batch waits for its leader"
    metadata.on_response(answer(error=ErrorCode.unknown_topic_or_partition), 1_100)
    metadata.want(["t"], 1_200)
    assert 0 < metadata.due_in_ms(1_100) <= 400
    assert metadata.request(1_500).allow_auto_topic_creation


def test_a_producer_forgets_topics_that_it_does_not_use() -> None:
    metadata = Metadata(max_age_ms=1_000, max_idle_ms=5_000, allow_auto_create=True)
    for name in ("t", "other"):
        metadata.want([name], 0)
    metadata.request(0)
    metadata.on_response(answer((1, 0)), 0)
    metadata.used("t", 3_000)
    assert named(metadata.request(6_000)) == ["t"]


def test_stream_of_new_topics_leaves_only_those_of_late() -> None:
    """Somebody waits for a topic at each moment, so that each request could be about that one alone."""
    metadata = Metadata(max_age_ms=1_000, max_idle_ms=5_000, allow_auto_create=True)
    most = 0
    for number in range(2_000):
        now_ms = 10 * number
        metadata.want([f"t{number}"], now_ms)
        names = named(metadata.request(now_ms))
        metadata.want([f"t{number + 1}"], now_ms)
        topics = tuple(topic for name in names for topic in answer_of(name, (1, 0)).topics)
        metadata.on_response(dataclasses.replace(answer(), topics=topics), now_ms)
        most = max(most, len(metadata.view.topics), len(metadata._ids._told))
    assert 500 <= most < 700, "those of six seconds"
    assert metadata.is_kept("t1999")
    assert not metadata.is_kept("t0")


def test_views_are_replaced_and_counted() -> None:
    metadata = Metadata(["t"].copy)
    before = metadata.view
    metadata.on_response(answer((1, 0)), 0)
    assert before.version == 0
    assert not before.topics
    assert metadata.view.version == 1
    assert metadata.view.brokers[1].rack == "r"
    assert metadata.view.leader_of(tp(9)) == (-1, -1)


def hint(metadata: Metadata, leader: int, epoch: int, *addresses: int) -> bool:
    """Take a hint for partition 0 that gives the addresses of these brokers, too."""
    brokers = {n: BrokerDescription(ids.BrokerId(n), f"h{n}", 9, None) for n in addresses}
    return metadata.take_hint(tp(0), ids.TopicId(ID), ids.BrokerId(leader), ids.LeaderEpoch(epoch), brokers)


def test_a_hint_moves_the_leader_when_it_is_newer_and_somewhere() -> None:
    """KIP-951."""
    metadata = Metadata(["t"].copy)
    assert not hint(metadata, 2, 9, 2)
    metadata.on_response(answer((1, 5), (-1, 5)), 0)
    before = metadata.view
    assert not hint(metadata, 2, 5, 2), "no newer epoch"
    assert not hint(metadata, 2, 6), "no address"
    assert not hint(metadata, -1, 6), "no leader"
    assert metadata.view is before
    assert hint(metadata, 2, 6, 2)
    assert metadata.view.leader_of(tp(0)) == (2, 6)
    assert metadata.view.brokers[2].host == "h2"
    assert metadata.view.version > before.version
    assert metadata.view.led["t"] == (0,)
    metadata.on_response(answer((1, 5), (1, 5)), 0)
    assert metadata.view.leader_of(tp(0)) == (2, 6), "a broker that lags does not take it back"


def told(metadata: Metadata, *topic_ids: int) -> list[int]:
    """What the topic's id is after each of these answers; 0: no broker knows the topic."""
    held = []
    for number in topic_ids:
        gone = ErrorCode.unknown_topic_or_partition
        metadata.on_response(answer((1, 0), topic_id=uuid.UUID(int=number)) if number else answer(error=gone), 0)
        held.append(metadata.view.topic_id("t").int)
    return held


def test_a_former_id_of_a_broker_that_lags_is_passed_over() -> None:
    metadata = Metadata(["t"].copy)
    assert told(metadata, 1, 2, 1, 2, 1, 1, 3, 2, 1) == [1, 2, 2, 2, 2, 2, 3, 3, 3]
    assert metadata.due_in_ms(1_000) == 0  # the broker that lags is asked again
    assert told(metadata, 0, 2, 3) == [0, 0, 3]
    assert told(Metadata(["t"].copy), 1, 0, 2, 1) == [1, 0, 2, 2]


def test_what_a_broker_that_lags_told_last_is_not_kept() -> None:
    """The first answer may have been the right one."""
    assert told(Metadata(["t"].copy), 2, 1, 2, 2, 2, 2, 2) == [2, 1, 1, 1, 1, 1, 2]
    metadata = Metadata(["t"].copy)
    assert told(metadata, 2, 1, 2) == [2, 1, 1]
    metadata.refused("t", ids.TopicId(uuid.UUID(int=2)))
    assert told(metadata, 2) == [1]
    metadata.refused("t", ids.TopicId(uuid.UUID(int=1)))
    assert told(metadata, 2) == [2]


def test_a_hint_about_the_topic_before_is_none_about_this_one() -> None:
    metadata, newer = Metadata(["t"].copy), uuid.UUID(int=8)
    metadata.on_response(answer((1, 7)), 0)
    metadata.on_response(answer((1, 0), topic_id=newer), 0)
    assert not metadata.take_hint(tp(0), ids.TopicId(ID), ids.BrokerId(1), ids.LeaderEpoch(8), {})
    assert metadata.view.leader_of(tp(0)) == (1, 0)
    assert metadata.take_hint(tp(0), ids.TopicId(newer), ids.BrokerId(1), ids.LeaderEpoch(1), {})


class Line(NamedTuple):
    """A metadata request: when, about which topics, and whether it creates them."""

    at_ms: int
    topics: tuple[str, ...]
    creates: bool


def asked(
    metadata: Metadata, there: Collection[str], begin_ms: int, end_ms: int, each: Callable[[int], object] = int
) -> list[Line]:
    """What is asked from one time to another, every ms a look; ``there`` has the topics that brokers know. ``each`` is
    called with the time before."""
    lines = []
    for now_ms in range(begin_ms, end_ms):
        each(now_ms)
        if metadata.due_in_ms(now_ms) == 0:
            request = metadata.request(now_ms)
            lines.append(Line(now_ms, tuple(named(request)), request.allow_auto_topic_creation))
            gone = ErrorCode.unknown_topic_or_partition
            answers = [answer_of(t, (1, 0)) if t in there else answer_of(t, error=gone) for t in named(request)]
            entries = tuple(topic for each_answer in answers for topic in each_answer.topics)
            metadata.on_response(dataclasses.replace(answer((1, 0)), topics=entries), now_ms)
    return lines


@pytest.mark.parametrize("creates", [False, True])
def test_a_consumer_asks_for_what_it_reads_now(creates: bool) -> None:
    reads = ["a", "b"]
    metadata = Metadata(lambda: reads, max_age_ms=1_000, backoff_ms=100, allow_auto_create=creates)
    metadata.want(reads)
    assert asked(metadata, {"a", "b", "c"}, 0, 2_500) == [
        Line(0, ("a", "b"), creates), Line(1_000, ("a", "b"), False), Line(2_000, ("a", "b"), False),
    ]  # fmt: skip
    reads[:] = ["b", "c"]
    metadata.want(reads)
    first, *later = asked(metadata, {"b", "c"}, 2_500, 5_000)
    assert (first.at_ms, "a" in first.topics, first.creates) == (2_500, False, creates)
    assert [line[1:] for line in later] == [(("b", "c"), False)] * 2
    assert "a" not in metadata.view.topics
    reads.clear()
    assert {line.topics for line in asked(metadata, set(), 5_000, 9_000)} == {()}


@pytest.mark.parametrize("creates", [False, True])
def test_a_deleted_topic_is_asked_for_while_it_is_read(creates: bool) -> None:
    reads = ["t"]
    metadata = Metadata(
        lambda: reads, max_age_ms=60_000, backoff_ms=100, backoff_max_ms=1_000, allow_auto_create=creates
    )
    metadata.want(reads)
    asked(metadata, {"t"}, 0, 1_000)
    metadata.need_update("t")  # a fetch was refused
    lines = asked(metadata, set(), 1_000, 10_000, lambda _: metadata.need_update("t"))
    assert 10 < len(lines) < 15, "at the pace of retry.backoff.max.ms"
    assert {line[1:] for line in lines} == {(("t",), False)}, "it is not made anew"
    reads.clear()
    assert [line.topics for line in asked(metadata, set(), 10_000, 60_000)] == [()]


def test_a_lookup_of_a_topic_that_is_not_read_ends() -> None:
    """As partitions_for, which waits until a topic is there."""
    metadata = Metadata(max_age_ms=1_000, backoff_ms=100, backoff_max_ms=100)
    lines = asked(metadata, set(), 0, 1_000, lambda _: metadata.want(["t"]))
    assert 10 <= len(lines) <= 11
    assert {line.topics for line in lines} == {("t",)}
    last, *later = asked(metadata, set(), 1_000, 9_000)
    assert (last.topics, {line.topics for line in later}) == (("t",), {()})
    metadata.want(["u"])
    assert asked(metadata, {"u"}, 9_000, 9_001)[0].topics == ("u",)
    assert "u" in metadata.view.topics


def test_a_lookup_that_got_no_answer_is_tried_again() -> None:
    metadata = Metadata(["t"].copy, backoff_ms=100)
    metadata.want(["t", "u"])
    assert named(metadata.request(0)) == ["t", "u"]
    metadata.on_failure(10)
    assert metadata.due_in_ms(10) == 100
    assert named(metadata.request(110)) == ["t", "u"]


def test_a_producer_asks_for_a_topic_until_it_was_idle() -> None:
    metadata = Metadata(max_age_ms=1_000, max_idle_ms=5_000, allow_auto_create=True)

    def send(now_ms: int) -> None:
        metadata.used("busy", now_ms)
        if now_ms == 0:
            metadata.want(["busy", "once"], now_ms)

    lines = asked(metadata, {"busy", "once"}, 0, 9_500, send)
    assert lines[0] == (0, ("busy", "once"), True)
    assert [line.at_ms for line in lines] == [*range(0, 10_000, 1_000)]
    assert [line.at_ms for line in lines if "once" in line.topics] == [*range(0, 6_000, 1_000)]
    assert not any(line.creates for line in lines[1:])


def test_a_producer_that_sends_to_a_deleted_topic_asks_by_backoff() -> None:
    metadata = Metadata(
        max_age_ms=60_000, max_idle_ms=5_000, backoff_ms=100, backoff_max_ms=1_000, allow_auto_create=True
    )
    lines = asked(metadata, set(), 0, 10_000, lambda now_ms: metadata.want(["t"], now_ms))
    assert 10 < len(lines) < 16
    assert len(asked(metadata, set(), 10_000, 50_000)) == 1, "nobody waits for it"
