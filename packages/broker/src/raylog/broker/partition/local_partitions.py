"""The partitions on this broker's disks: what the controller decided is carried out here, a partition at a time.

A step that fails stops no other one, whatever it raises. Its partition neither leads nor follows from then on. The
failure is noted with its reason, told in the log once, and the step is taken again with the controller's next message,
or sooner, when the broker's owner asks for it. A failed disk is the exception: the controller is told of what was on it
and may let others lead, so nothing is tried again until the controller has decided anew.

PartitionTable calls everything but the look-ups under its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from raylog.broker.dynamic_config import settings_of
from raylog.broker.events import EventLog
from raylog.broker.partition.partition import Partition
from raylog.broker.storage.log.log import Log
from raylog.coordination.control.peer_control import Follow, Lead, local_changes
from raylog.coordination.metadata.model import BrokerInfo, ClusterState, PartitionState, TopicState
from raylog.protocol.errors import InconsistentTopicId, RaylogError, StorageError
from raylog.protocol.ids import (
    NO_TOPIC_ID,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)
from raylog.protocol.settings import Settings

__all__ = ["Failure", "Fetchers", "LocalPartitions", "Logs", "OpenPartition"]

logger = EventLog(__name__)


class Fetchers(Protocol):
    """Copies from leaders what this broker follows. Neither call waits for a leader."""

    def follow(self, partition: Partition, leader: BrokerInfo, leader_epoch: LeaderEpoch) -> None:
        """Keep ``partition`` like its leader from now on; it follows nobody at the moment."""

    def unfollow(self, tp: TopicPartition) -> None:
        """Leave it as it is; once this returns, nothing of it is written any more. No error when it follows nobody."""

    def start_moved(self, tp: TopicPartition) -> None:
        """The log of ``tp`` begins elsewhere. Called under its lock: it must only take note."""


class Logs(Protocol):
    """The logs on this broker's disks (LogDirs)."""

    def partitions(self) -> Mapping[TopicPartition, tuple[TopicId, Log]]: ...

    def create(self, tp: TopicPartition, topic_id: TopicId, now_ms: TimestampMs) -> Log: ...

    def withdraw(self, partitions: Collection[TopicPartition]) -> None: ...

    def delete(self, tp: TopicPartition) -> None: ...

    def settle(self, topic_id: Callable[[TopicPartition], TopicId | None]) -> None: ...

    def set_aside(self, tp: TopicPartition, reason: str) -> None: ...


OpenPartition = Callable[[TopicPartition, TopicId, Log, Settings], Partition]
"""Makes a partition on its log, and has those hear of it who wait for what happens to it."""


class Failure(NamedTuple):
    """Why a partition is not as the controller wants it."""

    topic_id: TopicId
    error: Exception

    @property
    def is_final(self) -> bool:
        """Whether its disk failed: the controller is told, and decides."""
        return isinstance(self.error, StorageError)


class LocalPartitions:
    """See the module."""

    def __init__(
        self,
        broker_id: BrokerId,
        settings: Settings,
        logs: Logs,
        fetchers: Fetchers,
        open_partition: OpenPartition,
        now_ms: Callable[[], TimestampMs],
        uptime_ms: Callable[[], MonotonicMs],
    ) -> None:
        """``settings``: the broker's in force; ``now_ms`` is the wall clock, ``uptime_ms`` the monotonic one."""
        self.partitions: dict[TopicPartition, Partition] = {}
        """Changed entry by entry: look-ups take no lock."""
        self.failures: Mapping[TopicPartition, Failure] = {}
        """Replaced as a whole."""
        self.topic_settings: dict[TopicName, Settings] = {}
        """Of the topics with a partition here."""
        self._broker_id = broker_id
        self._settings = settings
        self._logs = logs
        self._fetchers = fetchers
        self._open_partition = open_partition
        self._now_ms = now_ms
        self._uptime_ms = uptime_ms
        self._strays_due = True
        self._failed_now: dict[TopicPartition, Failure] = {}
        """By the steps that are being taken."""
        self._decided: set[TopicPartition] = set()
        """Those whose role the steps decided anew."""
        self._touched: dict[TopicPartition, None] = {}
        """Those, and those of which a leader was told something, in order."""

    def registered(self) -> None:
        """A new incarnation of the broker begins: the next state tells which of the logs the cluster still has."""
        self._strays_due = True

    @property
    def has_retries(self) -> bool:
        """Whether there is a step to take again."""
        return self._strays_due or any(not failure.is_final for failure in self.failures.values())

    def carry_out(self, before: ClusterState, after: ClusterState, settings: Settings) -> Iterable[TopicPartition]:
        """Bring the partitions from ``before`` to ``after``, and do what failed the last time; both may be the same.

        ``settings``: the broker's in force. Answers the partitions whose waiting requests must look again, once others
        can see ``after``. A failure of one partition is in :attr:`failures` and is not raised.
        """
        undone = {tp: failure.topic_id for tp, failure in self.failures.items() if not failure.is_final}
        changes = local_changes(self._broker_id, before, after, undone)
        self._failed_now, self._decided, self._touched = {}, set(), {}
        if self._strays_due:
            self._strays_due = not self._set_strays_aside(after)
        gone = (*changes.deleted, *changes.no_replica, *self._left_unreadable(before, after))
        self._logs.withdraw([tp for tp, topic_id in gone if self._is_of(tp, topic_id)])
        for tp, topic_id in gone:
            self._step("deleted", tp, topic_id, partial(self.delete, tp, topic_id))
        for tp, topic_id in changes.unreadable:
            self._step("given up", tp, topic_id, partial(self.resign, tp))
        for tp in changes.resigned:
            topic = after.topics[tp.topic]
            self._step("given up", tp, topic.id, partial(self.resign, tp))
        for topic in self._to_configure(changes.configs, after, settings):
            self._configure(topic)
        for lead in changes.lead:
            self._step("led", lead.tp, lead.topic_id, partial(self.lead, lead))
        for lead in changes.updated:
            self._update(lead)
        for follow in changes.follow:
            self._step("followed", follow.tp, follow.topic_id, partial(self.follow, follow, after))
        for name in {tp.topic for tp, _ in gone}:
            if after.topic(name) is None:
                self.topic_settings.pop(name, None)
        final = {tp: failure for tp, failure in self.failures.items() if failure.is_final and tp not in self._decided}
        self.failures = final | self._failed_now
        return self._touched

    def _left_unreadable(self, before: ClusterState, after: ClusterState) -> Iterable[tuple[TopicPartition, TopicId]]:
        """What is here of topics that were deleted while they could not be read: ``before`` does not name it."""
        left = before.unreadable - after.unreadable
        here = self._logs.partitions().items() if left else ()
        return [(tp, of) for tp, (of, _) in here if tp.topic in left and not _is_known(after, tp, of)]

    def _step(self, what: str, tp: TopicPartition, topic_id: TopicId, do: Callable[[], None]) -> None:
        """Take one step that decides the partition's role; when it fails, that is noted, and the role is none."""
        self._decided.add(tp)
        self._touched[tp] = None
        try:
            do()
        except Exception as error:  # noqa: BLE001 (whatever it is, the other partitions go on)
            self._note(what, tp, topic_id, error)
            try:
                self.resign(tp)
            except Exception:
                logger.exception("partition not given up", partition=tp)

    def _note(self, what: str, tp: TopicPartition, topic_id: TopicId, error: Exception) -> None:
        known = self.failures.get(tp)
        if known is None or (known.topic_id, str(known.error)) != (topic_id, str(error)):  # else it was told before
            tell = logger.error if isinstance(error, RaylogError) else logger.exception
            tell(f"partition cannot be {what}", partition=tp, reason=str(error) or repr(error))
        self._failed_now[tp] = Failure(topic_id, error)

    # --- the steps -------------------------------------------------------------------------------------------

    def resign(self, tp: TopicPartition) -> None:
        """Neither lead nor follow it any more."""
        partition = self.partitions.get(tp)
        if partition is not None:
            partition.role.resign()
        self._fetchers.unfollow(tp)

    def _is_of(self, tp: TopicPartition, topic_id: TopicId) -> bool:
        """Whether what is here of that name, if anything, is this topic's."""
        partition = self.partitions.get(tp)
        return partition is None or partition.topic_id == topic_id

    def delete(self, tp: TopicPartition, topic_id: TopicId) -> None:
        if not self._is_of(tp, topic_id):
            return
        self.resign(tp)
        try:
            self._logs.delete(tp)
        except StorageError as error:  # its directory is offline: what is left is found at the next start
            logger.error("partition not deleted", partition=tp, reason=error)
        self.partitions.pop(tp, None)

    def _to_configure(
        self, changed: Iterable[TopicState], state: ClusterState, settings: Settings
    ) -> Iterable[TopicState]:
        """The topics with other settings than before: all, where the broker's have changed."""
        topics = {topic.name: topic for topic in changed}
        if settings is not self._settings:
            self._settings = settings
            known = (state.topic(name) for name in self.topic_settings)
            topics = {topic.name: topic for topic in known if topic is not None} | topics
        return topics.values()

    def _configure(self, topic: TopicState) -> None:
        mine = [tp for tp, partition in topic.topic_partitions() if self._broker_id in partition.replicas]
        try:
            self.topic_settings[topic.name] = settings = settings_of(topic, self._settings)
        except Exception as error:  # noqa: BLE001 (whatever it is, the other topics go on)
            for tp in mine:
                self._note("configured", tp, topic.id, error)
            return
        for tp in mine:
            partition = self.partitions.get(tp)
            if partition is not None and partition.topic_id == topic.id:
                try:
                    partition.configure(settings)
                except Exception as error:  # noqa: BLE001 (it goes on with the settings that it had)
                    self._note("configured", tp, topic.id, error)

    def lead(self, lead: Lead) -> None:
        self._fetchers.unfollow(lead.tp)
        partition = self._local(lead.tp, lead.topic_id)
        partition.role.become_leader(lead.partition, self._uptime_ms())

    def _update(self, lead: Lead) -> None:
        """What the controller says of a partition that is led already. Where that fails, it leads by what it knew."""
        self._touched[lead.tp] = None
        try:
            self.update(lead.tp, lead.topic_id, lead.partition)
        except Exception as error:  # noqa: BLE001 (whatever it is, the other partitions go on)
            self._note("updated", lead.tp, lead.topic_id, error)

    def update(self, tp: TopicPartition, topic_id: TopicId, state: PartitionState) -> None:
        """A newer state of a partition in the leader epoch in which it is led here; of another one it says nothing."""
        partition = self.partitions.get(tp)
        if partition is not None and partition.topic_id == topic_id and partition.role.is_leader:
            partition.role.update(state, self._uptime_ms())

    def follow(self, follow: Follow, state: ClusterState) -> None:
        tp, leader_epoch = follow.tp, follow.partition.leader_epoch
        self._fetchers.unfollow(tp)
        partition = self._local(tp, follow.topic_id)
        if self._broker_id not in (*follow.partition.isr, *follow.partition.elr):
            partition.role.mend(leader_epoch, self._now_ms())
        partition.role.become_follower(leader_epoch)
        leader = state.brokers.get(follow.partition.leader)
        if leader is not None:
            self._fetchers.follow(partition, leader, leader_epoch)

    def _local(self, tp: TopicPartition, topic_id: TopicId) -> Partition:
        """The partition with its log, made where there is none; one of a deleted topic of that name gives way."""
        partition = self.partitions.get(tp)
        if partition is not None and partition.topic_id != topic_id:
            self.delete(tp, partition.topic_id)
            partition = None
        return partition or self._open(tp, topic_id)

    def _open(self, tp: TopicPartition, topic_id: TopicId) -> Partition:
        settings = self.topic_settings[tp.topic]
        try:
            log = self._logs.create(tp, topic_id, self._now_ms())
        except InconsistentTopicId:
            self._logs.set_aside(tp, "it belongs to a deleted topic of the same name")
            log = self._logs.create(tp, topic_id, self._now_ms())
        partition = self.partitions[tp] = self._open_partition(tp, topic_id, log, settings)
        return partition

    def _set_strays_aside(self, state: ClusterState) -> bool:
        """Logs of topics that the cluster does not have (any more) are not served, and not deleted either.

        One whose topic id was lost is its topic's: an empty one in its place would lack what others count on. False
        when one is left where it is.
        """

        def wanted(tp: TopicPartition) -> TopicId | None:
            topic = state.topic(tp.topic)
            return None if topic is None else topic.id

        is_done = True
        self._logs.settle(wanted)
        strays = [tp for tp, (topic_id, _) in self._logs.partitions().items() if not _is_known(state, tp, topic_id)]
        self._logs.withdraw(strays)
        for tp in strays:
            self._touched[tp] = None
            try:
                self.resign(tp)
                self._logs.set_aside(tp, "the cluster has no such topic")
                self.partitions.pop(tp, None)
            except StorageError as error:  # its directory is offline
                logger.error("log not set aside", partition=tp, reason=error)
                self.partitions.pop(tp, None)
            except Exception:
                logger.exception("log not set aside", partition=tp)
                is_done = False
        return is_done


def _is_known(state: ClusterState, tp: TopicPartition, topic_id: TopicId) -> bool:
    """A topic that cannot be read has what is here of its name."""
    topic = state.topic(tp.topic)
    return tp.topic in state.unreadable if topic is None else topic_id in (topic.id, NO_TOPIC_ID)
