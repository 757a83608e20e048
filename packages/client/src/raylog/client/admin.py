"""The admin client: topics, settings, offsets, records, brokers and consumer groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

from kio.schema.describe_cluster.v1.request import DescribeClusterRequest
from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest
from kio.static.protocol import RequestPayload

from raylog.client.arguments import arguments as given
from raylog.client.requests import admin_elections, admin_reassignments
from raylog.client.requests import admin_groups as groups
from raylog.client.requests import admin_requests as ask
from raylog.client.requests.admin_requests import BROKER, TOPIC, NewTopic
from raylog.client.requests.calls import Calls, Where
from raylog.client.requests.offset_queries import list_offsets_request, read_list_offsets
from raylog.client.results import (
    ClusterDescription,
    ConfigEntry,
    GroupDescription,
    GroupListing,
    LogDirDescription,
    OffsetAndTimestamp,
    PartitionReassignment,
    ProducerDescription,
    TopicDescription,
)
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.protocol.errors import RaylogError, UnknownTopicOrPartition
from raylog.protocol.ids import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    MAX_TIMESTAMP,
    BrokerId,
    LeaderEpoch,
    Offset,
    TimestampMs,
    TopicPartition,
)
from raylog.protocol.wire.messages import decode_response

__all__ = ["EARLIEST", "EARLIEST_LOCAL", "LATEST", "MAX_TIMESTAMP", "Admin", "NewTopic"]

A = TypeVar("A")

_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Admin:
    """Asks the cluster about itself and changes it. Safe to use from many threads, one request at a time.

    ``config`` takes Kafka's admin client settings with underscores. Every call raises BrokerNotAvailable when
    no broker answers within ``default.api.timeout.ms``, and RequestTimedOut when one answers but can't do it in time.
    """

    def __init__(self, bootstrap_servers: str | Sequence[str], **config: Any) -> None:
        self._calls = Calls(bootstrap_servers, config)

    # --- topics ---

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        *,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        assignments: Mapping[int, Sequence[int]] = _NOTHING,
    ) -> None:
        """Create one topic; it can be used with any broker when this returns. Raises the error that fits.

        ``assignments`` chooses the broker ids of every partition, the preferred leader first, instead of their counts.
        """
        topic = NewTopic(name, partitions, replication_factor, {} if configs is None else configs, assignments)
        error = self.create_topics([topic])[name]
        if error is not None:
            raise error

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, RaylogError | None]:
        """Create several; per name, None or why it was refused."""
        calls = self._calls
        validate_only = given.flag("validate_only", validate_only)
        request = ask.create_topics(given.new_topics(topics), calls.timeout, validate_only=validate_only)
        errors, created = calls.call(request, calls.controller, ask.read_create_topics)
        if not validate_only:
            calls.await_everywhere(created)
        return errors

    def delete_topics(self, names: Iterable[str]) -> dict[str, RaylogError | None]:
        """Delete several, with all their records; per name, None or why it was refused."""
        calls = self._calls
        request = ask.delete_topics(given.texts("names", names), calls.timeout)
        return calls.call(request, calls.controller, ask.read_delete_topics)

    def list_topics(self) -> list[TopicDescription]:
        """All topics, by name."""
        return sorted(self._calls.metadata(None).topics.values())

    def describe_topic(self, name: str) -> TopicDescription:
        """One topic. Raises UnknownTopicOrPartition."""
        check_topic_name(name)
        view = self._calls.metadata([name])
        if name in view.topics:
            return view.topics[name]
        raise view.errors.get(name) or UnknownTopicOrPartition(f"topic {name!r}: the broker doesn't tell of it")

    def create_partitions(
        self,
        name: str,
        count: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Raise the topic's partitions to ``count``; all brokers know them when this returns.

        ``assignments`` gives the broker ids of each new partition, by default the controller chooses. Records keep
        their partitions, keys may from now on go to other ones. InvalidPartitions: there are as many.
        """
        calls = self._calls
        check_topic_name(name)
        count = given.number("count", count, 1)
        validate_only = given.flag("validate_only", validate_only)
        if assignments is not None:
            assignments = [given.broker_ids("assignments", ids) for ids in given.several("assignments", assignments)]
        request = ask.create_partitions(name, count, assignments, calls.timeout, validate_only=validate_only)
        error = calls.call(request, calls.controller, ask.read_create_partitions)[name]
        if error is not None:
            raise error
        if not validate_only:
            calls.await_everywhere({name: count})

    def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, RaylogError | None]:
        """Let the preferred replicas lead; per partition, None or why not (ElectionNotNeeded: it leads already).

        No partitions: all of them, and those that need no election are left out of the answer. ``unclean``: where
        nobody leads, any live replica may, and acknowledged records may be lost (KIP-460).
        """
        calls = self._calls
        chosen = None if partitions is None else given.to_partitions(partitions)
        unclean = given.flag("unclean", unclean)
        request = admin_elections.elect_leaders(chosen, calls.timeout, unclean=unclean)
        return calls.call(request, calls.controller, admin_elections.read_elect_leaders)

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[tuple[str, int], Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> dict[TopicPartition, RaylogError | None]:
        """Move partitions to other replicas, the preferred leader first; None cancels what is under way (KIP-455).

        Answers once the moves have begun: per partition, None or why it stays (InvalidReplicaAssignment,
        UnknownTopicOrPartition, NoReassignmentInProgress). :meth:`list_partition_reassignments` tells which are not
        complete yet. Asking for the same again changes nothing; other replicas replace those of a move under way.
        """
        wanted = {
            tp: None if ids is None else given.broker_ids("reassignments", ids)
            for tp, ids in given.by_partition("reassignments", reassignments).items()
        }
        calls = self._calls
        may_change = given.flag("allow_replication_factor_change", allow_replication_factor_change)
        request = admin_reassignments.alter_reassignments(wanted, calls.timeout, allow_factor_change=may_change)
        return calls.call(request, calls.controller, admin_reassignments.read_alter_reassignments)

    def list_partition_reassignments(
        self, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The partitions that are being moved, of those named or of all. What is unknown or complete is left out."""
        calls = self._calls
        chosen = None if partitions is None else given.to_partitions(partitions)
        request = admin_reassignments.list_reassignments(chosen, calls.timeout)
        return calls.call(request, calls.controller, admin_reassignments.read_list_reassignments)

    # --- settings ---

    def describe_topic_configs(self, name: str) -> list[ConfigEntry]:
        """The settings of one topic, by name. Raises UnknownTopicOrPartition."""
        check_topic_name(name)
        return self._calls.call(ask.describe_configs(TOPIC, name), self._calls.any_broker, ask.read_describe_configs)

    def describe_broker_configs(self, broker_id: int | None) -> list[ConfigEntry]:
        """The settings of one broker, which is asked itself; None: those set for all brokers. By name."""
        where = self._where(broker_id)
        return self._calls.call(ask.describe_configs(BROKER, _resource(broker_id)), where, ask.read_describe_configs)

    def alter_topic_configs(
        self,
        name: str,
        configs: Mapping[str, str | None] = _NOTHING,
        *,
        append: Mapping[str, str] = _NOTHING,
        subtract: Mapping[str, str] = _NOTHING,
        validate_only: bool = False,
    ) -> None:
        """Change settings of a topic; all others stay. None takes an override away, the default counts again.

        ``append`` and ``subtract`` change settings that are lists (KIP-339). Raises InvalidConfig,
        UnknownTopicOrPartition; then nothing was changed.
        """
        check_topic_name(name)
        request = _alter_configs(TOPIC, name, configs, append, subtract, validate_only=validate_only)
        self._calls.call(request, self._calls.any_broker, ask.read_alter_configs)

    def alter_broker_configs(
        self,
        broker_id: int | None,
        configs: Mapping[str, str | None] = _NOTHING,
        *,
        append: Mapping[str, str] = _NOTHING,
        subtract: Mapping[str, str] = _NOTHING,
        validate_only: bool = False,
    ) -> None:
        """As :meth:`alter_topic_configs`, of one broker, or of all that don't have the setting themselves (None)."""
        where = self._where(broker_id)
        name = _resource(broker_id)
        request = _alter_configs(BROKER, name, configs, append, subtract, validate_only=validate_only)
        self._calls.call(request, where, ask.read_alter_configs)

    # --- brokers ---

    def describe_cluster(self) -> ClusterDescription:
        """Cluster id, controller and live brokers, by id."""
        request = DescribeClusterRequest(include_cluster_authorized_operations=False)
        return self._calls.call(request, self._calls.any_broker, ask.read_describe_cluster)

    def describe_log_dirs(self, broker_id: int) -> list[LogDirDescription]:
        """A broker's log directories, their room, and what each replica in them takes."""
        where = self._calls.broker(given.number("broker_id", broker_id))
        return self._calls.call(DescribeLogDirsRequest(topics=None), where, ask.read_log_dirs)

    # --- partitions ---

    def list_offsets(
        self, at: Mapping[tuple[str, int], int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Offsets at EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL or a timestamp in ms; -1 when no record fits.

        ``isolation_level`` 1: LATEST is where the committed records end, the last stable offset.
        """
        wanted = given.offsets("at", at, EARLIEST_LOCAL)
        isolation_level = given.number("isolation_level", isolation_level, 0, 1)
        answers = self._calls.ask_leaders(
            wanted, lambda asked: list_offsets_request(asked, isolation_level=isolation_level), read_list_offsets
        )
        return {
            tp: OffsetAndTimestamp(Offset(offset), TimestampMs(timestamp), LeaderEpoch(epoch))
            for tp, (offset, timestamp, epoch) in answers.items()
        }

    def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[TopicPartition, Offset]:
        """Delete all records before the given offset of each partition; -1: all that can be read now.

        Answers where each log starts now. Raises OffsetOutOfRange for an offset above the high watermark.
        """
        wanted = given.offsets("before", before, -1)
        return self._calls.ask_leaders(
            wanted,
            lambda asked: ask.delete_records(asked, self._calls.timeout),
            lambda reply: ask.read_delete_records(_decoded(reply)),
        )

    def describe_producers(
        self, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, list[ProducerDescription]]:
        """The idempotent and transactional producers that each partition remembers, by id."""
        return self._calls.ask_leaders(
            dict.fromkeys(given.to_partitions(partitions)),
            ask.describe_producers,
            lambda reply: ask.read_describe_producers(_decoded(reply)),
        )

    # --- consumer groups ---

    def list_groups(self, states: Iterable[str] = ()) -> list[GroupListing]:
        """All groups, or those in one of the ``states`` (Empty, Stable, …), by id."""
        answers = self._calls.ask_brokers(groups.list_groups(given.texts("states", states)), groups.read_list_groups)
        found = {group.group_id: group for answer in answers for group in answer}
        return [group for _, group in sorted(found.items())]

    def describe_groups(self, names: Iterable[str]) -> dict[str, GroupDescription | RaylogError]:
        """Per group, its members and what they read, or its error: GroupIdNotFound where there is none."""
        wanted = given.texts("names", names)
        return self._calls.ask_coordinators(wanted, groups.describe_groups, groups.read_describe_groups)

    def list_group_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed of these partitions, or of all; those without are left out.

        A group that is not there has committed nothing. Raises the first error.
        """
        group = given.group_id(group)
        request = groups.fetch_offsets(group, None if partitions is None else given.to_partitions(partitions))
        found = self._of_group(group, request, groups.read_fetch_offsets)
        offsets = {}
        for tp, answer in found.items():
            if isinstance(answer, RaylogError):
                raise answer
            offsets[tp] = answer
        return offsets

    def alter_group_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int | CommittedOffset]
    ) -> dict[TopicPartition, RaylogError | None]:
        """Let the group go on from these offsets; per partition, None or why not.

        A group that is not there is made. One that has members refuses all of them by UnknownMemberId, since they would
        commit over it: stop them first.
        """
        group = given.group_id(group)
        wanted = given.committed_offsets(offsets)
        request = groups.commit_offsets(group, wanted)
        return self._of_group(group, request, lambda _, response: groups.read_commit_offsets(group, response))

    def delete_group_offsets(
        self, group: str, partitions: Iterable[tuple[str, int]]
    ) -> dict[TopicPartition, RaylogError | None]:
        """Forget what the group has committed of these partitions; per partition, None or why not.

        GroupSubscribedToTopic: a member reads the topic. Raises GroupIdNotFound.
        """
        group = given.group_id(group)
        request = groups.delete_offsets(group, given.to_partitions(partitions))
        return self._of_group(group, request, lambda _, response: groups.read_delete_offsets(group, response))

    def delete_groups(self, names: Iterable[str]) -> dict[str, RaylogError | None]:
        """Delete groups and all that they have committed; per group, None or why not (NonEmptyGroup, GroupIdNotFound).

        When an answer was lost, GroupIdNotFound may mean that the first try has deleted the group.
        """
        wanted = given.texts("names", names)
        return self._calls.ask_coordinators(wanted, groups.delete_groups, groups.read_delete_groups)

    def remove_members(
        self, group: str, members: Iterable[str] = (), *, instances: Iterable[str] = ()
    ) -> dict[str, RaylogError | None]:
        """Remove ``members`` by id, and static ones by instance, as if they had left; per name, None or why not. For
        those that are gone: who runs joins again. Once an answer was lost, UnknownMemberId may mean that it is done."""
        group, asked = given.group_id(group), given.leavers(members, instances)
        request = groups.remove_members(group, *asked)
        return self._of_group(group, request, lambda _, response: groups.read_remove_members(group, response))

    def _of_group(
        self, group: str, request: RequestPayload, read: Callable[[BrokerId, Any], Mapping[str, A | RaylogError]]
    ) -> A:
        """What the group's coordinator answers. Raises what hits the request as a whole."""
        answer = self._calls.ask_coordinators([group], lambda _: request, read)[group]
        if isinstance(answer, RaylogError):
            raise answer
        return answer

    def _where(self, broker_id: int | None) -> Where:
        """That broker, or any."""
        return self._calls.any_broker if broker_id is None else self._calls.broker(given.number("broker_id", broker_id))

    def close(self) -> None:
        """Close all connections. Twice does no harm."""
        self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _alter_configs(
    kind: int, name: str, configs: Any, append: Any, subtract: Any, *, validate_only: bool
) -> RequestPayload:
    """The arguments checked."""
    return ask.alter_configs(
        kind,
        name,
        given.setting_texts("configs", configs, or_none=True),
        given.setting_texts("append", append),
        given.setting_texts("subtract", subtract),
        validate_only=given.flag("validate_only", validate_only),
    )


def _resource(broker_id: int | None) -> str:
    return "" if broker_id is None else str(broker_id)


def _decoded(reply: Any) -> Any:
    if reply.error is not None:
        raise reply.error
    return decode_response(reply.request.api_key, reply.request.version, reply.frame)[1]
