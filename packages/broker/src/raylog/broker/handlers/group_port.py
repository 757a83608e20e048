"""The port to consumer groups: all that handlers of group APIs may ask, whoever coordinates the group.

Every call names one group. It raises InvalidGroupId for an empty name, NotCoordinator when another broker coordinates
the group or this one may not act as an owner (clients then look for the coordinator anew), and CoordinatorNotAvailable
while the metadata store does not answer. Calls that wait for other members or for a batch answer a Future, which ends
with a result or one of those errors; nobody may block in its callbacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

from raylog.broker.groups.classic.described import DescribedGroup, ListedGroup
from raylog.broker.groups.classic.messages import Identity, Join, Joined, Leaver, MemberIdIs, Sync, Synced
from raylog.coordination.groups.offset_store import BY_NAME, Topics
from raylog.coordination.groups.offsets import CommittedOffset
from raylog.coordination.metadata.model import BrokerInfo
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import GroupId, TopicId, TopicName, TopicPartition

__all__ = ["Groups"]


class Groups(Protocol):
    """The groups that this broker coordinates. See the module's docstring for what every call raises."""

    def find_coordinator(self, group: GroupId) -> BrokerInfo:
        """Who coordinates the group, or will; asked of any broker, whether or not there is such a group yet."""

    def join(self, group: GroupId, join: Join) -> Future[Joined | MemberIdIs]:
        """Take part in the next generation, which may begin minutes later.

        Errors: InconsistentGroupProtocol (also where the group is one of actors), UnknownMemberId, FencedInstanceId,
        InvalidSessionTimeout, GroupMaxSizeReached, RebalanceInProgress.
        """

    def sync(self, group: GroupId, sync: Sync) -> Future[Synced]:
        """Learn what one was assigned, once the leader has said so.

        Errors: UnknownMemberId, FencedInstanceId, IllegalGeneration, RebalanceInProgress, InconsistentGroupProtocol.
        """

    def heartbeat(self, group: GroupId, who: Identity) -> None:
        """The member lives. Raises RebalanceInProgress when it has to join again, and as :meth:`sync`."""

    def leave(self, group: GroupId, leavers: Sequence[Leaver]) -> Sequence[RaylogError | None]:
        """One result for each leaver, in order."""

    def commit_offsets(
        self,
        group: GroupId,
        who: Identity,
        offsets: Mapping[TopicPartition, CommittedOffset],
        topics: Mapping[TopicName, TopicId],
    ) -> Future[Mapping[TopicPartition, RaylogError | None]]:
        """Store the offsets, which are of these ``topics``; what is wrong with one partition is its result:
        UnknownTopicOrPartition when its topic is deleted, also if another has its name.

        A ``who`` without a generation may commit while the group is empty, also one of actors.
        Errors for all: UnknownMemberId, FencedInstanceId, IllegalGeneration, RebalanceInProgress.
        """

    def fetch_offsets(
        self, group: GroupId, partitions: Sequence[TopicPartition] | None, topics: Topics = BY_NAME
    ) -> Mapping[TopicPartition, CommittedOffset | RaylogError]:
        """Those of ``partitions`` (None: of all) that were committed for the topics that there are, and for those that
        ``topics`` names; an error where it cannot be read.

        A group that does not exist has none.
        """

    def delete_offsets(
        self, group: GroupId, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, RaylogError | None]:
        """One result each: GroupSubscribedToTopic while a member reads the topic. Raises GroupIdNotFound."""

    def describe(self, group: GroupId) -> DescribedGroup:
        """The group as it is now. Raises GroupIdNotFound."""

    def list_groups(self) -> Sequence[ListedGroup]:
        """Every group that this broker coordinates, by name."""

    def delete(self, group: GroupId) -> None:
        """Forget the group and its offsets. Raises GroupIdNotFound, NonEmptyGroup."""
