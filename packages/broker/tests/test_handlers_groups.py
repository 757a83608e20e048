"""The APIs about groups and their offsets, without sockets: what is refused, and what is not on its account."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kio.schema.errors import ErrorCode

from kit.machine import scaled
from kit.node import Node
from kit.topics import drop_topic, put_topic
from kit.waiting import wait_until
from kit.wire import request
from raylog.broker.groups.classic.claims import decode_group
from raylog.broker.groups.classic.messages import Identity as Who
from raylog.broker.groups.classic.messages import Join, Joined, Protocol, Sync
from raylog.broker.handlers import TABLE
from raylog.broker.handlers.context import Connection, DelayedReply, Operation, Resource
from raylog.coordination.groups.kinds import GroupKind, settle_kind
from raylog.coordination.groups.offsets import CommittedOffset, RegistryOffsetStore
from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_model import Registered, Shares
from raylog.protocol.ids import (
    NO_MEMBER,
    Generation,
    GroupId,
    MemberId,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicName,
    TopicPartition,
)
from raylog.protocol.wire import consumer_protocol
from raylog.protocol.wire.messages import decode_response

KEYS = {row.name: row.key for row in TABLE}
GROUP, ACTORS = GroupId("readers"), GroupId("actors")
FLIGHTS = TopicName("flights")
TP = TopicPartition(FLIGHTS, PartitionIndex(0))
TIMEOUT_S = 10.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    config = {"group.initial.rebalance.delay.ms": "0", "offset.metadata.max.bytes": "8"}
    with Node(tmp_path, config=config) as node:
        node.create_topic(FLIGHTS, partitions=2)
        yield node


def ask(node: Node, api: str, version: int, **values: Any) -> Any:
    reply = node.answer(request(KEYS[api], version, **values)[4:], Connection("PLAINTEXT"))
    if isinstance(reply, DelayedReply):
        assert reply.wait(scaled(TIMEOUT_S))
        reply = reply.finish()
    assert isinstance(reply, bytes)
    return decode_response(KEYS[api], version, reply)[1]


def commit(
    node: Node, offset: int = 5, metadata: str | None = "", *, topic: str = FLIGHTS, partition: int = 0, **values: Any
) -> ErrorCode:
    """Without being a member, unless ``values`` say otherwise."""
    part = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
    values = {"group_id": GROUP, "generation_id_or_member_epoch": -1, **values}
    answer = ask(node, "OffsetCommit", 8, topics=[{"name": topic, "partitions": [part]}], **values)
    [[code]] = [[each.error_code for each in topic.partitions] for topic in answer.topics]
    return code  # type: ignore[no-any-return]


def fetched(node: Node, group: str = GROUP, topic: str = FLIGHTS) -> list[tuple[ErrorCode, int, str]]:
    asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0, 1]}]}
    [answer] = ask(node, "OffsetFetch", 8, groups=[asked]).groups
    if answer.error_code:
        return [(answer.error_code, -1, "")]
    return [(each.error_code, each.committed_offset, each.metadata) for each in answer.topics[0].partitions]


def join(node: Node, *topics: str, group: GroupId = GROUP) -> Who:
    """One member, which has its assignment."""
    wants = (Protocol("range", consumer_protocol.encode_subscription(topics)),)
    joining = Join(NO_MEMBER, None, "client", "/host", 60_000, 60_000, "consumer", wants, needs_id=False)
    joined = node.groups.join(group, joining).result(scaled(TIMEOUT_S))
    assert isinstance(joined, Joined)
    who = Who(joined.member_id, joined.generation)
    node.groups.sync(group, Sync(who, ((who.member_id, b"all"),))).result(scaled(TIMEOUT_S))
    return who


def register_actor(node: Node, name: str, *owned: TopicPartition, pattern: str | None = None) -> None:
    """As a member of the group of actors does, with what it owns already."""
    settle_kind(node.store, ACTORS, GroupKind.ACTORS)
    about = Registered(frozenset() if pattern else frozenset({FLIGHTS}), pattern, "node-3", 9)
    member = group_paths.member(ACTORS, MemberId(name))
    node.store.create(member, group_paths.encode_member(about, TimestampMs(5)), ephemeral=True)
    for tp in owned:
        RegistryOffsetStore(node.store).claim(ACTORS, tp, MemberId(name))


class Denies:
    """Nobody may touch what is named so."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def allows(self, ctx: object, operation: Operation, resource: Resource, name: str) -> bool:
        return name not in self._names


# --- OffsetCommit, OffsetFetch

_PART = {"committed_offset": 5, "committed_metadata": "x" * 8}
SOME_WRONG = [
    {"name": FLIGHTS, "partitions": [
        _PART,
        {**_PART, "partition_index": 1, "committed_metadata": "x" * 9},
        {**_PART, "partition_index": 2},
    ]},
    {"name": "none", "partitions": [_PART]},
]  # fmt: skip
"""Commits to a partition that takes it, to one whose metadata are too large, and to two that there are not."""


def test_what_is_wrong_with_one_partition_is_no_reason_to_refuse_the_others(node: Node) -> None:
    answer = ask(node, "OffsetCommit", 8, group_id=GROUP, generation_id_or_member_epoch=-1, topics=SOME_WRONG)
    assert [[each.error_code for each in topic.partitions] for topic in answer.topics] == [
        [ErrorCode.none, ErrorCode.offset_metadata_too_large, ErrorCode.unknown_topic_or_partition],
        [ErrorCode.unknown_topic_or_partition],
    ]
    assert fetched(node) == [(0, 5, "x" * 8), (0, -1, "")]


@pytest.mark.parametrize("version", [8, 9])
def test_who_may_not_commit_hears_what_is_not_there(node: Node, version: int) -> None:
    """What is there is refused for the member's sake, whatever else is wrong with its commit."""

    def codes(**who: Any) -> list[list[ErrorCode]]:
        answer = ask(node, "OffsetCommit", version, group_id=GROUP, topics=SOME_WRONG, **who)
        return [[each.error_code for each in topic.partitions] for topic in answer.topics]

    def expected(code: ErrorCode) -> list[list[ErrorCode]]:
        return [[code, code, ErrorCode.unknown_topic_or_partition], [ErrorCode.unknown_topic_or_partition]]

    absent = ErrorCode.group_id_not_found if version == 9 else ErrorCode.illegal_generation
    assert codes(generation_id_or_member_epoch=1, member_id="m") == expected(absent)
    who = join(node, FLIGHTS)
    assert codes(generation_id_or_member_epoch=1, member_id="m") == expected(ErrorCode.unknown_member_id)
    odd = {"generation_id_or_member_epoch": who.generation + 1, "member_id": who.member_id}
    assert codes(**odd) == expected(ErrorCode.illegal_generation)


def test_commit_of_nothing_that_can_be_stored_makes_a_group(node: Node) -> None:
    """As in Kafka: who commits has been heard, and is refused for the partition's sake alone."""
    assert commit(node, metadata="x" * 9) is ErrorCode.offset_metadata_too_large
    assert node.groups.describe(GROUP).state == "Empty"
    assert commit(node, topic="none") is ErrorCode.unknown_topic_or_partition


def test_topics_without_partitions_are_left_out_of_answers(node: Node) -> None:
    assert commit(node) is ErrorCode.none
    named = {"group_id": GROUP, "topics": [{"name": "none", "partitions": []}, {"name": FLIGHTS, "partitions": []}]}
    assert ask(node, "OffsetCommit", 8, generation_id_or_member_epoch=-1, **named).topics == ()
    assert ask(node, "OffsetDelete", 0, **named).topics == ()


def test_offsets_are_committed_and_fetched_by_topic_id(node: Node) -> None:
    known, unknown = node.table.state().topics[FLIGHTS].id, uuid4()
    part = {"committed_offset": 5, "committed_metadata": ""}
    topics = [{"topic_id": topic_id, "partitions": [part]} for topic_id in (known, unknown, None)]
    answer = ask(node, "OffsetCommit", 10, group_id=GROUP, generation_id_or_member_epoch=-1, topics=topics)
    assert [(topic.topic_id, topic.partitions[0].error_code) for topic in answer.topics] == [
        (known, ErrorCode.none),
        (unknown, ErrorCode.unknown_topic_id),
        (None, ErrorCode.unknown_topic_id),
    ]
    asked = [{"topic_id": topic_id, "partition_indexes": [0]} for topic_id in (known, unknown)]
    [group] = ask(node, "OffsetFetch", 10, groups=[{"group_id": GROUP, "topics": asked}]).groups
    assert [(topic.partitions[0].committed_offset, topic.partitions[0].error_code) for topic in group.topics] == [
        (5, ErrorCode.none),
        (-1, ErrorCode.unknown_topic_id),
    ]


def test_the_limit_of_what_stands_beside_an_offset_is_in_bytes(node: Node) -> None:
    assert commit(node, metadata="ä" * 4) is ErrorCode.none
    assert commit(node, metadata="ä" * 5) is ErrorCode.offset_metadata_too_large
    assert commit(node, metadata=None) is ErrorCode.none
    assert fetched(node)[0] == (0, 5, "")


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"group_id": ""}, ErrorCode.invalid_group_id),
        ({"group_id": "g" * 1_025}, ErrorCode.invalid_group_id),
        ({"group_id": "ü" * 171}, ErrorCode.invalid_group_id),
        ({"member_id": "nobody", "generation_id_or_member_epoch": 1}, ErrorCode.illegal_generation),
        ({"offset": -1}, ErrorCode.invalid_request),
        ({"partition": -1}, ErrorCode.unknown_topic_or_partition),
    ],
)
def test_a_commit_that_makes_no_sense_is_refused(node: Node, values: dict[str, Any], code: ErrorCode) -> None:
    assert commit(node, **values) is code
    assert fetched(node)[0] == (0, -1, "")


def test_only_members_of_the_generation_commit_for_a_group_that_has_some(node: Node) -> None:
    assert commit(node, 1) is ErrorCode.none
    who = join(node, FLIGHTS)
    assert commit(node, 2) is ErrorCode.unknown_member_id
    identity = {"member_id": who.member_id, "generation_id_or_member_epoch": who.generation}
    assert commit(node, 3, **{**identity, "generation_id_or_member_epoch": who.generation - 1}) is (
        ErrorCode.illegal_generation
    )
    assert fetched(node)[0] == (0, 1, "")
    assert commit(node, 4, **identity) is ErrorCode.none
    assert fetched(node)[0] == (0, 4, "")


@pytest.mark.parametrize("named", [{"group_instance_id": "one"}, {"member_id": "former"}])
def test_commit_from_outside_may_name_a_member_while_group_is_empty(node: Node, named: dict[str, str]) -> None:
    """KAFKA-14201: a consumer that assigns its partitions by hand names its group.instance.id all the same."""
    assert commit(node, 1, **named) is ErrorCode.none
    assert fetched(node)[0] == (0, 1, "")
    join(node, FLIGHTS)
    assert commit(node, 2, **named) is ErrorCode.unknown_member_id
    assert fetched(node)[0] == (0, 1, "")


def test_commit_of_a_member_to_an_empty_group_is_refused(node: Node) -> None:
    assert commit(node, 1) is ErrorCode.none
    gone = {"member_id": "gone", "group_instance_id": "one", "generation_id_or_member_epoch": 0}
    assert commit(node, 2, **gone) is ErrorCode.unknown_member_id


def test_a_broker_without_its_lease_neither_commits_nor_fetches(node: Node) -> None:
    assert commit(node) is ErrorCode.none
    node.lease_held = False
    assert commit(node, 9) is ErrorCode.not_coordinator
    assert fetched(node) == [(ErrorCode.not_coordinator, -1, "")]
    assert ask(node, "ListGroups", 5).error_code is ErrorCode.not_coordinator
    node.lease_held = True
    assert fetched(node)[0] == (0, 5, "")


def test_one_group_that_cannot_be_answered_leaves_the_others_alone(node: Node) -> None:
    assert commit(node) is ErrorCode.none
    node.store.create(group_paths.claim(GroupId("odd")), b"no claim", parents=True)
    node.store.create(group_paths.offset(GroupId("damaged"), TP), b"no number", parents=True)
    asked = [{"group_id": name, "topics": None} for name in ("odd", "", "damaged", GROUP)]
    odd, nameless, damaged, good = ask(node, "OffsetFetch", 8, groups=asked).groups
    assert (odd.error_code, odd.topics) == (ErrorCode.unknown_server_error, ())
    assert damaged.error_code is ErrorCode.none
    assert [each.error_code for each in damaged.topics[0].partitions] == [ErrorCode.unknown_server_error]
    assert nameless.error_code is ErrorCode.invalid_group_id
    assert [each.committed_offset for each in good.topics[0].partitions] == [5]


def test_who_may_not_read_a_topic_neither_commits_nor_sees_its_offset(node: Node) -> None:
    assert commit(node) is ErrorCode.none
    node.ports.authorizer = Denies(FLIGHTS)
    assert commit(node, 6) is ErrorCode.topic_authorization_failed
    assert fetched(node)[0] == (ErrorCode.topic_authorization_failed, -1, "")
    [everything] = ask(node, "OffsetFetch", 8, groups=[{"group_id": GROUP, "topics": None}]).groups
    assert everything.topics == ()
    node.ports.authorizer = Denies(GROUP)
    assert commit(node, 6) is ErrorCode.group_authorization_failed
    assert fetched(node) == [(ErrorCode.group_authorization_failed, -1, "")]
    [described] = ask(node, "DescribeGroups", 5, groups=[GROUP]).groups
    assert described.error_code is ErrorCode.group_authorization_failed
    [deleted] = ask(node, "DeleteGroups", 2, groups_names=[GROUP]).results
    assert deleted.error_code is ErrorCode.group_authorization_failed
    assert ask(node, "OffsetDelete", 0, group_id=GROUP, topics=[]).error_code is ErrorCode.group_authorization_failed
    node.ports.authorizer = Denies(GROUP, "kafka-cluster")
    assert ask(node, "ListGroups", 5).groups == ()


def test_offsets_of_deleted_and_replaced_topics_count_as_none(node: Node) -> None:
    node.create_topic("other")
    for topic in (FLIGHTS, "other"):
        assert commit(node, topic=topic) is ErrorCode.none
    assert [fetched(node, topic=topic)[0][1] for topic in (FLIGHTS, "other")] == [5, 5]
    node.replace_topic("other")
    for version in (9, 10):
        [group] = ask(node, "OffsetFetch", version, groups=[{"group_id": GROUP, "topics": None}]).groups
        assert len(group.topics) == 1
    assert fetched(node, topic="other")[0] == (0, -1, "")
    assert commit(node, 1, topic="other") is ErrorCode.none
    assert fetched(node, topic="other")[0] == (0, 1, "")


def test_commit_of_topic_that_is_replaced_at_that_moment_is_refused(node: Node) -> None:
    """The broker has not heard of the deletion when the request comes."""
    topic_id = node.table.state().topics[FLIGHTS].id
    drop_topic(node.store, FLIGHTS)
    again = put_topic(node.store, FLIGHTS, 2)
    assert commit(node, 7) is ErrorCode.unknown_topic_or_partition
    part = {"partition_index": 0, "committed_offset": 7}
    topics = [{"topic_id": topic_id, "partitions": [part]}]
    answer = ask(node, "OffsetCommit", 10, group_id=GROUP, generation_id_or_member_epoch=-1, topics=topics)
    assert answer.topics[0].partitions[0].error_code is ErrorCode.unknown_topic_id
    assert fetched(node)[0] == (0, -1, "")
    RegistryOffsetStore(node.store).write(GROUP, {TP: CommittedOffset(Offset(3))}, [], {FLIGHTS: again})
    assert fetched(node)[0] == (0, 3, "")
    asked = [{"group_id": GROUP, "topics": [{"topic_id": topic_id, "partition_indexes": [0]}]}]
    [group] = ask(node, "OffsetFetch", 10, groups=asked).groups
    assert group.topics[0].partitions[0].committed_offset == -1


def test_the_longest_group_id_works_with_as_much_as_a_commit_may_hold(node: Node) -> None:
    longest = "ü" * 170
    assert commit(node, metadata="x" * 8, group_id=longest) is ErrorCode.none
    assert fetched(node, longest)[0] == (0, 5, "x" * 8)
    [group] = ask(node, "DescribeGroups", 6, groups=[longest]).groups
    assert group.error_code is ErrorCode.none
    for name in ("g" * 1_025, ""):
        [found] = ask(node, "FindCoordinator", 4, coordinator_keys=[name]).coordinators
        [described] = ask(node, "DescribeGroups", 6, groups=[name]).groups
        assert found.error_code == described.error_code == ErrorCode.invalid_group_id


# --- OffsetDelete


def test_offsets_that_members_read_are_not_forgotten(node: Node) -> None:
    node.create_topic("other")
    who = join(node, FLIGHTS)
    identity = {"member_id": who.member_id, "generation_id_or_member_epoch": who.generation}
    for topic in (FLIGHTS, "other"):
        assert commit(node, topic=topic, **identity) is ErrorCode.none
    topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in (FLIGHTS, "other")]
    answer = ask(node, "OffsetDelete", 0, group_id=GROUP, topics=topics)
    assert [topic.partitions[0].error_code for topic in answer.topics] == [ErrorCode.group_subscribed_to_topic, 0]
    assert [fetched(node, topic=topic)[0][1] for topic in (FLIGHTS, "other")] == [5, -1]


# --- groups of actors, as Kafka's tools see them


def test_a_group_of_actors_is_shown_with_what_each_member_owns(node: Node) -> None:
    register_actor(node, "one", TP)
    register_actor(node, "two", pattern="fl.*")
    other = TP._replace(partition=PartitionIndex(1))
    shares = Shares(Generation(3), {MemberId("one"): (TP,), MemberId("two"): (other,)})
    node.store.create(group_paths.assignment(ACTORS), group_paths.encode_assignment(shares))
    node.store.create(group_paths.share(ACTORS, MemberId("one")), group_paths.encode_share(Generation(3), (TP,)))
    [group] = ask(node, "DescribeGroups", 6, groups=[ACTORS]).groups
    assert (group.error_code, group.group_state, group.protocol_type) == (0, "PreparingRebalance", "consumer")
    assert [(each.member_id, each.client_host) for each in group.members] == [("one", "/node-3"), ("two", "/node-3")]
    assert [consumer_protocol.subscribed_topics(each.member_metadata) for each in group.members] == [{FLIGHTS}] * 2
    owned = [consumer_protocol.assigned_partitions(each.member_assignment) for each in group.members]
    assert owned == [{TP}, set()]
    RegistryOffsetStore(node.store).claim(ACTORS, other, MemberId("two"))
    [group] = ask(node, "DescribeGroups", 6, groups=[ACTORS]).groups
    assert group.group_state == "Stable"
    [listed] = ask(node, "ListGroups", 5).groups
    assert (listed.group_id, listed.group_state, listed.protocol_type) == (ACTORS, "Stable", "consumer")


def test_offsets_of_actors_are_set_by_tools_only_while_no_actor_is_there(node: Node) -> None:
    settle_kind(node.store, ACTORS, GroupKind.ACTORS)
    assert commit(node, 7, group_id=ACTORS) is ErrorCode.none
    assert fetched(node, ACTORS)[0] == (0, 7, "")
    register_actor(node, "one")
    assert commit(node, 8, group_id=ACTORS) is ErrorCode.unknown_member_id
    [deleted] = ask(node, "DeleteGroups", 2, groups_names=[ACTORS]).results
    assert deleted.error_code is ErrorCode.non_empty_group
    assert fetched(node, ACTORS)[0] == (0, 7, "")


def test_empty_group_of_actors_is_deleted_with_its_shares(node: Node) -> None:
    settle_kind(node.store, ACTORS, GroupKind.ACTORS)
    shares = Shares(Generation(3), {MemberId("one"): (TP,)})
    node.store.create(group_paths.assignment(ACTORS), group_paths.encode_assignment(shares))
    node.store.create(group_paths.share(ACTORS, MemberId("one")), group_paths.encode_share(Generation(3), (TP,)))
    [deleted] = ask(node, "DeleteGroups", 2, groups_names=[ACTORS]).results
    assert deleted.error_code is ErrorCode.none
    assert node.store.exists(group_paths.group(ACTORS)) is None


def test_a_client_is_kept_out_of_a_living_group_of_actors(node: Node) -> None:
    register_actor(node, "one")
    joining = {"session_timeout": timedelta(seconds=10), "protocol_type": "consumer", "protocols": [{"name": "range"}]}
    assert ask(node, "JoinGroup", 0, group_id=ACTORS, **joining).error_code is ErrorCode.inconsistent_group_protocol
    node.store.delete(group_paths.member(ACTORS, MemberId("one")))
    assert ask(node, "JoinGroup", 0, group_id=ACTORS, **joining).error_code is ErrorCode.none


# --- whatever a request brings can be read again by the next coordinator


@pytest.mark.parametrize("wait_ms", [-(2**31), -5, -1, 0, 2**31 - 1])
def test_any_rebalance_timeout_is_stored_so_that_it_can_be_read(node: Node, wait_ms: int) -> None:
    """Beside a member that waits longer, for the generation waits for the longest."""

    def joins(version: int, member_id: str = "", **values: Any) -> Any:
        wishes = {"session_timeout": timedelta(seconds=10), "protocol_type": "consumer", "member_id": member_id}
        return ask(node, "JoinGroup", version, group_id=GROUP, protocols=[{"name": "range"}], **wishes, **values)

    patient = joins(0).member_id
    with ThreadPoolExecutor() as pool:
        other = pool.submit(joins, 3, rebalance_timeout=timedelta(milliseconds=wait_ms))
        wait_until(lambda: node.groups.describe(GROUP).state == "PreparingRebalance", TIMEOUT_S, "the other joins")
        leader = joins(0, patient)
        assert other.result(scaled(TIMEOUT_S)).error_code == 0
    assignments = [{"member_id": each.member_id, "assignment": b"share"} for each in leader.members]
    me = {"generation_id": leader.generation_id, "member_id": leader.member_id}
    assert ask(node, "SyncGroup", 3, group_id=GROUP, assignments=assignments, **me).error_code == 0
    stored = node.store.get(group_paths.state(GROUP))
    assert stored is not None
    waits = {each.id: each.rebalance_timeout_ms for each in decode_group(group_paths.state(GROUP), stored.data).members}
    assert waits == {patient: 10_000, other.result().member_id: max(0, wait_ms)}


@pytest.mark.parametrize("epoch", [-(2**31), -2, -1, 0, 2**31 - 1])
def test_any_leader_epoch_is_committed_so_that_it_can_be_read(node: Node, epoch: int) -> None:
    part = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": epoch}
    topics = [{"name": FLIGHTS, "partitions": [part]}]
    ask(node, "OffsetCommit", 8, group_id=GROUP, generation_id_or_member_epoch=-1, topics=topics)
    [group] = ask(node, "OffsetFetch", 8, groups=[{"group_id": GROUP, "topics": None}]).groups
    [[found]] = [topic.partitions for topic in group.topics]
    assert (found.error_code, found.committed_offset, found.committed_leader_epoch) == (0, 5, max(-1, epoch))


def test_a_group_that_only_a_tool_of_the_zookeeper_era_knows_is_there(node: Node) -> None:
    node.store.create(group_paths.offset(GROUP, TP), b"3", parents=True)
    [group] = ask(node, "DescribeGroups", 6, groups=[GROUP]).groups
    assert (group.error_code, group.group_state, group.members) == (0, "Empty", ())
    assert [each.group_id for each in ask(node, "ListGroups", 0).groups] == [GROUP]
    assert fetched(node)[0] == (0, 3, "")
    [deleted] = ask(node, "DeleteGroups", 2, groups_names=[GROUP]).results
    assert deleted.error_code is ErrorCode.none
    assert ask(node, "ListGroups", 0).groups == ()
