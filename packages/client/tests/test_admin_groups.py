"""What the admin client makes of coordinators' answers; the requests themselves are tested against brokers."""

from __future__ import annotations

from datetime import timedelta

import pytest
from kio.schema.delete_groups.v2.response import DeletableGroupResult, DeleteGroupsResponse
from kio.schema.describe_groups.v5.response import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.response import Coordinator, FindCoordinatorResponse
from kio.schema.leave_group.v4.response import LeaveGroupResponse, MemberResponse
from kio.schema.list_groups.v4.response import ListGroupsResponse
from kio.schema.offset_commit.v8.response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kio.schema.offset_delete.v0.response import OffsetDeleteResponse
from kio.schema.offset_fetch.v8.response import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from kio.schema.types import BrokerId as KioBrokerId
from kio.schema.types import GroupId as KioGroupId
from kio.schema.types import TopicName as KioTopicName
from kio.static.primitive import i32, i32Timedelta, i64

from raylog.client.requests import admin_groups as ask
from raylog.client.results import GroupDescription, MemberDescription
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.protocol.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupIdNotFound,
    NonEmptyGroup,
    NotCoordinator,
    OffsetMetadataTooLarge,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import BrokerId, LeaderEpoch, Offset, PartitionIndex, TopicName, TopicPartition
from raylog.protocol.wire.consumer_protocol import encode_assignment, encode_subscription

NOW = i32Timedelta.parse(timedelta(0))
BROKER = BrokerId(2)


def tp(partition: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))


def member(name: str, subscription: bytes, assignment: bytes) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=name, group_instance_id=None, client_id="c", client_host="/10.0.0.1", member_metadata=subscription,
        member_assignment=assignment,
    )  # fmt: skip


def described(
    *members: DescribedGroupMember,
    state: str = "Stable",
    protocol_type: str = "consumer",
    error: ErrorCode = ErrorCode.none,
) -> object:
    group = DescribedGroup(
        error_code=error, group_id=KioGroupId("g"), group_state=state, protocol_type=protocol_type,
        protocol_data="range", members=members,
    )  # fmt: skip
    return ask.read_describe_groups(BROKER, DescribeGroupsResponse(throttle_time=NOW, groups=(group,)))["g"]


def members_of(description: object) -> tuple[MemberDescription, ...]:
    assert isinstance(description, GroupDescription)
    return description.members


def test_coordinators_are_told_by_group() -> None:
    def found(group: str, error: ErrorCode) -> Coordinator:
        return Coordinator(
            key=group, node_id=KioBrokerId(1), host="h", port=i32(9), error_code=error, error_message=None
        )

    response = FindCoordinatorResponse(
        throttle_time=NOW,
        coordinators=(found("a", ErrorCode.none), found("b", ErrorCode.coordinator_not_available)),
    )
    answers = ask.read_find_coordinators(response)
    assert answers["a"] == (1, "h", 9, None)
    assert isinstance(answers["b"], CoordinatorNotAvailable)
    assert "'b'" in str(answers["b"])


def test_a_group_is_described_with_what_its_members_read() -> None:
    found = described(
        member("b", encode_subscription(["t"]), b""),
        member("a", encode_subscription(["u", "t"]), encode_assignment([tp(1), tp(0)])),
    )
    assert isinstance(found, GroupDescription)
    assert (found.state, found.protocol, found.coordinator) == ("Stable", "range", BROKER)
    assert [(each.member_id, each.topics, each.assignment) for each in found.members] == [
        ("a", ("t", "u"), (tp(0), tp(1))),
        ("b", ("t",), ()),
    ]


def test_a_member_whose_bytes_nobody_understands_is_described_without_them() -> None:
    (broken,) = members_of(described(member("a", b"\x00\x01\x7f", b"\x00")))
    assert (broken.topics, broken.assignment) == ((), ())
    (worker,) = members_of(
        described(member("w", encode_subscription(["t"]), encode_assignment([tp(0)])), protocol_type="connect")
    )
    assert (worker.member_id, worker.topics, worker.assignment) == ("w", (), ())


def test_a_dead_group_is_not_there() -> None:
    assert isinstance(described(state="Dead"), GroupIdNotFound)
    assert isinstance(described(error=ErrorCode.not_coordinator), NotCoordinator)


def test_each_member_that_is_removed_has_its_own_fate() -> None:
    request = ask.remove_members("g", ["m", "n"], ["i"])
    assert [(each.member_id, each.group_instance_id) for each in request.members] == [
        ("m", None), ("n", None), ("", "i"),
    ]  # fmt: skip

    def told(error: ErrorCode, member: str, instance: str | None = None) -> MemberResponse:
        return MemberResponse(member_id=member, group_instance_id=instance, error_code=error)

    members = (
        told(ErrorCode.none, "m"), told(ErrorCode.unknown_member_id, "n"), told(ErrorCode.fenced_instance_id, "", "i"),
    )  # fmt: skip
    response = LeaveGroupResponse(throttle_time=NOW, error_code=ErrorCode.none, members=members)
    answers = ask.read_remove_members("g", response)["g"]
    assert isinstance(answers, dict)
    assert {name: type(error) for name, error in answers.items()} == {
        "m": type(None), "n": UnknownMemberId, "i": FencedInstanceId,
    }  # fmt: skip
    assert "'n': it is no member; `raylog groups describe g --members` shows who is" in str(answers["n"])
    refused = LeaveGroupResponse(throttle_time=NOW, error_code=ErrorCode.not_coordinator, members=())
    assert isinstance(ask.read_remove_members("g", refused)["g"], NotCoordinator)


def test_a_list_that_a_coordinator_refuses_is_an_error() -> None:
    with pytest.raises(CoordinatorNotAvailable, match="listing groups"):
        ask.read_list_groups(
            ListGroupsResponse(throttle_time=NOW, error_code=ErrorCode.coordinator_not_available, groups=())
        )


def test_offsets_are_told_without_partitions_that_have_none() -> None:
    def part(partition: int, offset: int, error: ErrorCode = ErrorCode.none) -> OffsetFetchResponsePartitions:
        return OffsetFetchResponsePartitions(
            partition_index=i32(partition), committed_offset=i64(offset), committed_leader_epoch=i32(3),
            metadata=None, error_code=error,
        )  # fmt: skip

    def answer(*parts: OffsetFetchResponsePartitions, error: ErrorCode = ErrorCode.none) -> object:
        topics = (OffsetFetchResponseTopics(name=KioTopicName("t"), partitions=parts),)
        group = OffsetFetchResponseGroup(group_id=KioGroupId("g"), topics=topics, error_code=error)
        return ask.read_fetch_offsets(BROKER, OffsetFetchResponse(throttle_time=NOW, groups=(group,)))["g"]

    found = answer(part(0, 7), part(1, -1), part(2, -1, ErrorCode.unknown_topic_or_partition))
    assert isinstance(found, dict)
    assert found[tp(0)] == CommittedOffset(Offset(7), LeaderEpoch(3), "")
    assert isinstance(found.pop(tp(2)), UnknownTopicOrPartition)
    assert found.keys() == {tp(0)}
    assert isinstance(answer(error=ErrorCode.not_coordinator), NotCoordinator)


def test_each_offset_is_committed_or_refused_but_the_wrong_coordinator_refuses_all() -> None:
    def answer(*errors: ErrorCode) -> object:
        parts = tuple(
            OffsetCommitResponsePartition(partition_index=i32(number), error_code=error)
            for number, error in enumerate(errors)
        )
        topic = OffsetCommitResponseTopic(name=KioTopicName("t"), partitions=parts)
        return ask.read_commit_offsets("g", OffsetCommitResponse(throttle_time=NOW, topics=(topic,)))["g"]

    found = answer(ErrorCode.none, ErrorCode.offset_metadata_too_large)
    assert isinstance(found, dict)
    assert found[tp(0)] is None
    assert isinstance(found[tp(1)], OffsetMetadataTooLarge)
    assert isinstance(answer(ErrorCode.none, ErrorCode.not_coordinator), NotCoordinator)


def test_deletions_are_answered_by_group_and_partition() -> None:
    results = tuple(
        DeletableGroupResult(group_id=KioGroupId(group), error_code=error)
        for group, error in (("a", ErrorCode.none), ("b", ErrorCode.non_empty_group))
    )
    found = ask.read_delete_groups(BROKER, DeleteGroupsResponse(throttle_time=NOW, results=results))
    assert found["a"] is None
    assert isinstance(found["b"], NonEmptyGroup)
    refused = OffsetDeleteResponse(error_code=ErrorCode.group_id_not_found, throttle_time=NOW, topics=())
    assert isinstance(ask.read_delete_offsets("g", refused)["g"], GroupIdNotFound)


def test_offsets_are_committed_as_none_of_the_members() -> None:
    whole = CommittedOffset(Offset(5), LeaderEpoch(2), "m")
    request = ask.commit_offsets("g", {tp(0): whole, tp(3, "u"): CommittedOffset(Offset(0))})
    assert (request.generation_id_or_member_epoch, request.member_id, request.group_instance_id) == (-1, "", None)
    assert [(topic.name, [tuple(_fields(part)) for part in topic.partitions]) for topic in request.topics] == [
        ("t", [(0, 5, 2, "m")]),
        ("u", [(3, 0, -1, "")]),
    ]


def _fields(part: object) -> list[object]:
    names = ("partition_index", "committed_offset", "committed_leader_epoch", "committed_metadata")
    return [getattr(part, name) for name in names]


def test_all_offsets_are_asked_for_by_no_list_of_partitions() -> None:
    assert ask.fetch_offsets("g", None).groups[0].topics is None
    assert ask.fetch_offsets("g", []).groups[0].topics == ()
