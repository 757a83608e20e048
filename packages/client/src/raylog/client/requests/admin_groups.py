"""◆ Consumer groups and their offsets, as requests and read from answers.

A ``read_…`` function of what a group's coordinator answers takes the coordinator's id and its decoded response, and
answers per group what was asked for, or why the group as a whole was refused: :meth:`Calls.ask_coordinators` looks for
the coordinator anew where that may help. Errors of single partitions are part of what it returns, except those that
speak of the coordinator: they are the group's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeleteGroupsResponse
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.describe_groups.v5.response import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v4.response import FindCoordinatorResponse
from kio.schema.leave_group.v4.request import LeaveGroupRequest, MemberIdentity
from kio.schema.leave_group.v4.response import LeaveGroupResponse
from kio.schema.list_groups.v4.request import ListGroupsRequest
from kio.schema.list_groups.v4.response import ListGroupsResponse
from kio.schema.offset_commit.v8.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_commit.v8.response import OffsetCommitResponse, OffsetCommitResponseTopic
from kio.schema.offset_delete.v0.request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kio.schema.offset_delete.v0.response import OffsetDeleteResponse, OffsetDeleteResponseTopic
from kio.schema.offset_fetch.v8.request import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kio.schema.offset_fetch.v8.response import OffsetFetchResponse
from kio.schema.types import GroupId as KioGroupId
from kio.schema.types import TopicName as KioTopicName
from kio.static.primitive import i8, i32, i64

from raylog.client.requests.admin_requests import error_of
from raylog.client.requests.offset_queries import by_topic
from raylog.client.results import BrokerDescription, GroupDescription, GroupListing, MemberDescription
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.protocol.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    InvalidRequest,
    NotCoordinator,
    RaylogError,
)
from raylog.protocol.ids import (
    NO_GENERATION,
    NO_MEMBER,
    BrokerId,
    GroupId,
    InstanceId,
    LeaderEpoch,
    MemberId,
    Offset,
    PartitionIndex,
    TopicName,
    TopicPartition,
)
from raylog.protocol.wire.consumer_protocol import PROTOCOL_TYPE, assigned_partitions, subscribed_topics

T = TypeVar("T")
Results = dict[TopicPartition, RaylogError | None]

COORDINATOR_ERRORS = (NotCoordinator, CoordinatorNotAvailable, CoordinatorLoadInProgress)
"""Another broker is the coordinator, or there is none for a moment."""

_GROUP = 0  # the other kind of coordinator is that of transactions
_REMEDIES = {
    ErrorCode.group_id_not_found: "there is none of that name",
    ErrorCode.group_subscribed_to_topic: "a member reads the topic, so stop the group's members first",
    ErrorCode.non_empty_group: "it has members, so stop them first",
    ErrorCode.unknown_member_id: "the group has members, who would commit over it, so stop them first",
}
"""What to do about a refusal, which brokers tell by its code alone."""
_DEAD = "Dead"  # what a broker says of the state of a group that is not there


# --- who is asked ----------------------------------------------------------------------------------------------------


def find_coordinators(groups: Iterable[str]) -> FindCoordinatorRequest:
    """Which brokers coordinate the groups; any broker knows."""
    return FindCoordinatorRequest(key_type=i8(_GROUP), coordinator_keys=tuple(groups))


def read_find_coordinators(response: FindCoordinatorResponse) -> dict[str, BrokerDescription | RaylogError]:
    """Per group its coordinator, or why there is none."""
    return {
        found.key: error_of(
            found.error_code.value, found.error_message, f"group {found.key!r}: finding its coordinator"
        )
        or BrokerDescription(BrokerId(found.node_id), found.host, found.port, None)
        for found in response.coordinators
    }


# --- groups ----------------------------------------------------------------------------------------------------------


def list_groups(states: Iterable[str]) -> ListGroupsRequest:
    """The groups that the asked broker coordinates, of these states; of all without any."""
    return ListGroupsRequest(states_filter=tuple(states))


def read_list_groups(response: ListGroupsResponse) -> list[GroupListing]:
    """The groups. Raises what hits the request as a whole."""
    error = error_of(response.error_code.value, None, "listing groups")
    if error is not None:
        raise error
    return [GroupListing(GroupId(group.group_id), group.group_state, group.protocol_type) for group in response.groups]


def describe_groups(groups: Iterable[str]) -> DescribeGroupsRequest:
    """Groups of one coordinator, with their members."""
    return DescribeGroupsRequest(groups=tuple(map(KioGroupId, groups)), include_authorized_operations=False)


def read_describe_groups(
    coordinator: BrokerId, response: DescribeGroupsResponse
) -> dict[str, GroupDescription | RaylogError]:
    """Per group, its description, or its error; GroupIdNotFound where there is none."""
    return {str(group.group_id): _group(coordinator, group) for group in response.groups}


def _group(coordinator: BrokerId, group: DescribedGroup) -> GroupDescription | RaylogError:
    error = error_of(group.error_code.value, None, f"group {group.group_id!r}: describing it")
    if error is not None:
        return error
    if group.group_state == _DEAD:
        return GroupIdNotFound(f"there is no group {group.group_id!r}; `raylog groups list` shows those that are")
    is_known = group.protocol_type == PROTOCOL_TYPE
    members = [_member(member, is_known=is_known) for member in group.members]
    return GroupDescription(
        group_id=GroupId(group.group_id),
        state=group.group_state,
        protocol_type=group.protocol_type,
        protocol=group.protocol_data,
        coordinator=coordinator,
        members=tuple(sorted(members, key=lambda member: member.member_id)),
    )


def _member(member: DescribedGroupMember, *, is_known: bool) -> MemberDescription:
    """What other protocol types mean by their bytes only their own members know."""
    topics: frozenset[TopicName] = frozenset()
    partitions: frozenset[TopicPartition] = frozenset()
    if is_known:
        try:
            topics = subscribed_topics(member.member_metadata) if member.member_metadata else topics
            partitions = assigned_partitions(member.member_assignment)
        except InvalidRequest:
            pass  # a member that says what nobody understands is a member all the same
    return MemberDescription(
        member_id=MemberId(member.member_id),
        group_instance_id=None if member.group_instance_id is None else InstanceId(member.group_instance_id),
        client_id=member.client_id,
        host=member.client_host,
        topics=tuple(sorted(topics)),
        assignment=tuple(sorted(partitions)),
    )


def delete_groups(groups: Iterable[str]) -> DeleteGroupsRequest:
    """Delete groups of one coordinator, and their offsets."""
    return DeleteGroupsRequest(groups_names=tuple(map(KioGroupId, groups)))


def read_delete_groups(_: BrokerId, response: DeleteGroupsResponse) -> dict[str, RaylogError | None]:
    """Per group, None or why it stays."""
    return {
        str(result.group_id): _refusal(result.error_code, f"group {result.group_id!r}: deleting it")
        for result in response.results
    }


def remove_members(group: str, members: Iterable[str], instances: Iterable[str]) -> LeaveGroupRequest:
    """Members by their ids, and static ones by their instances' names (KIP-345), leave the group."""
    by_id = [MemberIdentity(member_id=member, group_instance_id=None) for member in members]
    by_name = [MemberIdentity(member_id=NO_MEMBER, group_instance_id=name) for name in instances]
    return LeaveGroupRequest(group_id=KioGroupId(group), members=(*by_id, *by_name))


def read_remove_members(
    group: str, response: LeaveGroupResponse
) -> dict[str, dict[str, RaylogError | None] | RaylogError]:
    """Per member id or instance's name, None or why it stays; or the group's error."""
    what = f"group {group!r}: removing"
    error = error_of(response.error_code.value, None, f"{what} members")
    if error is not None:
        return {group: error}
    hint = f"it is no member; `raylog groups describe {group} --members` shows who is"
    answers: dict[str, RaylogError | None] = {}
    for member in response.members:
        name, code = member.member_id or member.group_instance_id or "", member.error_code
        remedy = f": {hint}" if code is ErrorCode.unknown_member_id else ""
        answers[name] = error_of(code.value, None, f"{what} {name!r}{remedy}")
    return {group: answers}


# --- offsets ---------------------------------------------------------------------------------------------------------


def fetch_offsets(group: str, partitions: Iterable[TopicPartition] | None) -> OffsetFetchRequest:
    """What the group has committed of these partitions, or of all (None)."""
    topics = by_topic(dict.fromkeys(partitions or ()), lambda tp, _: i32(tp.partition))
    named = tuple(
        OffsetFetchRequestTopics(name=KioTopicName(name), partition_indexes=tuple(found))
        for name, found in topics.items()
    )
    asked = OffsetFetchRequestGroup(group_id=KioGroupId(group), topics=None if partitions is None else named)
    return OffsetFetchRequest(groups=(asked,), require_stable=True)


def read_fetch_offsets(
    _: BrokerId, response: OffsetFetchResponse
) -> dict[str, dict[TopicPartition, CommittedOffset | RaylogError] | RaylogError]:
    """Per group, the committed offsets, without partitions that have none, or the group's error."""
    answers: dict[str, dict[TopicPartition, CommittedOffset | RaylogError] | RaylogError] = {}
    for group in response.groups:
        found: dict[TopicPartition, CommittedOffset | RaylogError] = {}
        for topic in group.topics:
            for part in topic.partitions:
                tp = _tp(topic.name, part.partition_index)
                error = error_of(part.error_code.value, None, f"{tp}: asking for its committed offset")
                if error is not None:
                    found[tp] = error
                elif part.committed_offset >= 0:
                    epoch = LeaderEpoch(part.committed_leader_epoch)
                    found[tp] = CommittedOffset(Offset(part.committed_offset), epoch, part.metadata or "")
        error = error_of(group.error_code.value, None, f"group {group.group_id!r}: asking for its offsets")
        answers[str(group.group_id)] = error or _of_group(found)
    return answers


def commit_offsets(group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> OffsetCommitRequest:
    """Commit for a group without members, as none of them."""
    topics = by_topic(
        offsets,
        lambda tp, committed: OffsetCommitRequestPartition(
            partition_index=i32(tp.partition),
            committed_offset=i64(committed.offset),
            committed_leader_epoch=i32(committed.leader_epoch),
            committed_metadata=committed.metadata,
        ),
    )
    return OffsetCommitRequest(
        group_id=KioGroupId(group),
        generation_id_or_member_epoch=i32(NO_GENERATION),
        member_id=NO_MEMBER,
        group_instance_id=None,
        topics=tuple(
            OffsetCommitRequestTopic(name=KioTopicName(name), partitions=tuple(found)) for name, found in topics.items()
        ),
    )


def read_commit_offsets(group: str, response: OffsetCommitResponse) -> dict[str, Results | RaylogError]:
    """Per partition of the group, None or why it was refused."""
    return {group: _results(response.topics, f"committing an offset for group {group!r}")}


def delete_offsets(group: str, partitions: Iterable[TopicPartition]) -> OffsetDeleteRequest:
    """Forget what the group has committed of these partitions."""
    topics = by_topic(
        dict.fromkeys(partitions), lambda tp, _: OffsetDeleteRequestPartition(partition_index=i32(tp.partition))
    )
    return OffsetDeleteRequest(
        group_id=KioGroupId(group),
        topics=tuple(
            OffsetDeleteRequestTopic(name=KioTopicName(name), partitions=tuple(found)) for name, found in topics.items()
        ),
    )


def read_delete_offsets(group: str, response: OffsetDeleteResponse) -> dict[str, Results | RaylogError]:
    """Per partition of the group, None or why its offset stays; or the group's error."""
    error = _refusal(response.error_code, f"group {group!r}: deleting offsets")
    if error is not None:
        return {group: error}
    return {group: _results(response.topics, f"deleting the offset of group {group!r}")}


def _results(
    topics: Iterable[OffsetCommitResponseTopic | OffsetDeleteResponseTopic], what: str
) -> Results | RaylogError:
    """Per partition, None or why it was refused; or why all have to be asked of another broker."""
    return _of_group(
        {
            (tp := _tp(topic.name, part.partition_index)): _refusal(part.error_code, f"{tp}: {what}")
            for topic in topics
            for part in topic.partitions
        }
    )


def _refusal(code: ErrorCode, what: str) -> RaylogError | None:
    """As :func:`error_of`, with what to do."""
    remedy = _REMEDIES.get(code)
    return error_of(code.value, None, f"{what}: {remedy}" if remedy else what)


def _of_group(partitions: dict[TopicPartition, T]) -> dict[TopicPartition, T] | RaylogError:
    """The answers, or the first that says that the wrong broker was asked: then the right one is asked for all."""
    for answer in partitions.values():
        if isinstance(answer, COORDINATOR_ERRORS):
            return answer
    return partitions


def _tp(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), PartitionIndex(partition))
