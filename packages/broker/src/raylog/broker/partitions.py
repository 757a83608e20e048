"""The partitions that this broker keeps: the controller's decisions carried out on the log dirs.

One lock orders everything that changes the table (control messages, registration, closing). Handlers only
look partitions up, and take no lock: the table is replaced entry by entry, never rebuilt.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from raylog.broker.dynamic_config import broker_settings, settings_of
from raylog.broker.events import EventLog
from raylog.broker.partition import Partition
from raylog.broker.replication.delayed import DelayedFetches
from raylog.broker.replication.delayed_operations import DelayedOperations
from raylog.broker.storage.log_dirs import LogDirs
from raylog.coordination.clocks import monotonic_ms
from raylog.coordination.model import BrokerInfo, ClusterState, PartitionState, TopicState
from raylog.coordination.peer_control import AckStatus, Follow, Lead, LocalChanges, Receiver, local_changes
from raylog.protocol.errors import (
    InconsistentTopicId,
    NotLeaderOrFollower,
    RaylogError,
    StorageError,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import (
    NO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)
from raylog.protocol.settings import Settings

__all__ = ["Fetchers", "PartitionTable"]

logger = EventLog(__name__)


class Fetchers(Protocol):
    """Copies from leaders what this broker follows. Neither call waits for a leader."""

    def follow(self, partition: Partition, leader: BrokerInfo, leader_epoch: LeaderEpoch) -> None:
        """Keep ``partition`` like its leader from now on; it follows nobody at the moment."""

    def unfollow(self, tp: TopicPartition) -> None:
        """Leave it as it is; once this returns, nothing of it is written any more. No error when it follows nobody."""


class PartitionTable:
    """Local partitions, the cluster's newest state, the topics' settings: three of the handlers' ports."""

    def __init__(
        self,
        broker_id: BrokerId,
        cluster_id: str,
        settings: Settings,
        log_dirs: LogDirs,
        delayed: DelayedFetches,
        produces: DelayedOperations,
        deletes: DelayedOperations,
        fetchers: Fetchers,
        now_ms: Callable[[], TimestampMs],
    ) -> None:
        """``log_dirs`` are open already; ``settings`` are those that the broker was started with."""
        self.broker_id = broker_id
        self.cluster_id = cluster_id
        self._static = settings
        self._settings = broker_settings(settings, broker_id, {})
        self._log_dirs = log_dirs
        self._delayed = delayed
        self._produces = produces
        self._deletes = deletes
        self._fetchers = fetchers
        self.on_caught_up: Callable[[TopicPartition], None] = lambda tp: None
        """Called when a follower may join the ISR, by any thread: it must only take note."""
        self._now_ms = now_ms
        self._receiver = Receiver(broker_id)
        self._partitions: dict[TopicPartition, Partition] = {}
        self._failed: dict[TopicPartition, tuple[TopicId, RaylogError]] = {}
        """Neither led nor followed as the controller wants, and why."""
        self._topic_settings: dict[TopicName, Settings] = {}
        self.on_brokers: Callable[[Iterable[BrokerInfo]], None] = lambda brokers: None
        """Called with the live brokers when they are others than before; must not block."""
        self._lock = threading.Lock()
        self._synced = threading.Event()
        self._changed = threading.Condition()

    # --- what handlers ask ---

    def get(self, tp: TopicPartition) -> Partition:
        """The partition that this broker leads.

        Raises UnknownTopicOrPartition, NotLeaderOrFollower, or StorageError when its directory is offline.
        """
        partition = self._partitions.get(tp)
        if partition is not None and partition.is_leader:
            return partition
        state = self._receiver.state.partition(tp)
        if state is None:
            raise UnknownTopicOrPartition(f"{tp}: there is no such partition")
        if state.leader == self.broker_id or not state.is_online:
            failure = self._failure(tp)
            if failure:
                raise StorageError(f"{tp}: {failure}")
        where = f"broker {state.leader} leads it" if state.is_online else "nobody leads it at the moment"
        raise NotLeaderOrFollower(f"{tp}: not led by broker {self.broker_id}; {where}")

    def replica(self, tp: TopicPartition) -> Partition:
        """The partition that this broker leads or follows. Raises as :meth:`get`."""
        partition = self._partitions.get(tp)
        return partition if partition is not None and partition.is_follower else self.get(tp)

    def state(self) -> ClusterState:
        """The newest state that the controller sent."""
        return self._receiver.state

    @property
    def controller_id(self) -> BrokerId:
        return self._receiver.state.controller_id

    def broker(self) -> Settings:
        """This broker's settings in force: the dynamic ones over those it was started with."""
        return self._settings

    def topic(self, topic: TopicName) -> Settings:
        """The topic's overrides over this broker's settings. Raises UnknownTopicOrPartition."""
        settings = self._topic_settings.get(topic)
        if settings is not None:
            return settings
        state = self._receiver.state.topic(topic)
        if state is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic!r}")
        return settings_of(state, self._settings)

    # --- what the controller decides ---

    def register_with(self, register: Callable[[], BrokerEpoch]) -> None:
        """Run ``register`` and count only messages for the incarnation that it answers, a full one first.

        No message is taken in meanwhile: the controller may send before ``register`` has returned.
        """
        with self._lock:
            self._synced.clear()
            self._receiver.registered(register())

    def control(self, payload: bytes) -> bytes:
        """Take one message of the controller in, act on it, and answer it (see peer_control)."""
        with self._lock:
            received = self._receiver.receive(payload)
            if received.after is not received.before:
                if received.after.broker_configs != received.before.broker_configs:
                    self._reconfigure(received.after)
                self._apply(local_changes(self.broker_id, received.before, received.after), received.after)
                if received.after.brokers != received.before.brokers:
                    self.on_brokers(received.after.brokers.values())
                with self._changed:
                    self._changed.notify_all()
            if received.ack.status is AckStatus.OK:
                self._synced.set()
            return received.ack.encode()

    @property
    def is_synced(self) -> bool:
        """True when the controller's full state for the registration in force was applied: what is led is led now."""
        return self._synced.is_set()

    def wait_synced(self, timeout_s: float) -> bool:
        """True once the controller's full state for this registration has been applied."""
        return self._synced.wait(timeout_s)

    def wait_for(self, condition: Callable[[ClusterState], bool], timeout_s: float) -> bool:
        """True once the state that the controller sent fulfils ``condition``; False after ``timeout_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self._receiver.state), timeout_s)

    def _reconfigure(self, state: ClusterState) -> None:
        """The broker's dynamic settings changed: take them, and give topics their synonyms' new values."""
        before = self._settings
        self._settings = settings = broker_settings(self._static, self.broker_id, state.broker_configs)
        changed = [row for row in settings.table if settings[row] != before[row]]
        logger.info("settings changed", **{row.name: row.format(settings[row]) for row in changed if not row.sensitive})
        self._log_dirs.configure(settings)
        for name in list(self._topic_settings):
            topic = state.topic(name)
            if topic is not None:
                self._configure(topic)

    def _apply(self, changes: LocalChanges, state: ClusterState) -> None:
        if not self._synced.is_set():
            self._set_strays_aside(state)
        for tp, topic_id in (*changes.deleted, *changes.no_replica):
            self._delete(tp, topic_id)
        for tp in changes.resigned:
            self._resign(tp)
        for topic in changes.configs:
            self._configure(topic)
        for lead in changes.lead:
            self._lead(lead)
        for lead in changes.updated:
            self._update(lead.tp, lead.topic_id, lead.partition)
        for follow in changes.follow:
            self._follow(follow, state)
        for name in [name for name in self._topic_settings if state.topic(name) is None]:
            del self._topic_settings[name]

    def _delete(self, tp: TopicPartition, topic_id: TopicId) -> None:
        partition = self._partitions.get(tp)
        if partition is not None and partition.topic_id != topic_id:
            return
        self._resign(tp)
        self._partitions.pop(tp, None)
        try:
            self._log_dirs.delete(tp)
        except RaylogError as error:
            logger.error("partition not deleted", partition=tp, reason=error)

    def _resign(self, tp: TopicPartition) -> None:
        self._failed.pop(tp, None)
        self._fetchers.unfollow(tp)
        partition = self._partitions.get(tp)
        if partition is not None:
            partition.resign()
            self._interrupt(tp)

    def _interrupt(self, tp: TopicPartition) -> None:
        """Something about ``tp`` changed that waiting requests must find out."""
        self._delayed.interrupt(tp)
        self._produces.interrupt(tp)
        self._deletes.interrupt(tp)

    def _configure(self, topic: TopicState) -> None:
        self._topic_settings[topic.name] = settings = settings_of(topic, self._settings)
        for tp, _ in topic.topic_partitions():
            partition = self._partitions.get(tp)
            if partition is not None:
                partition.configure(settings)

    def _lead(self, lead: Lead) -> None:
        tp = lead.tp
        self._fetchers.unfollow(tp)
        try:
            partition = self._local(tp, lead.topic_id)
            partition.become_leader(lead.partition, monotonic_ms())
            self._failed.pop(tp, None)
        except RaylogError as error:
            logger.error(
                "partition cannot be led", partition=tp, leader_epoch=lead.partition.leader_epoch, reason=error
            )
            self._failed[tp] = (lead.topic_id, error)
        self._interrupt(tp)

    def _update(self, tp: TopicPartition, topic_id: TopicId, state: PartitionState) -> None:
        """The controller's word on a partition that is led already."""
        partition = self._partitions.get(tp)
        if partition is not None and partition.topic_id == topic_id and partition.is_leader:
            partition.update(state, monotonic_ms())
            self._interrupt(tp)

    def _follow(self, follow: Follow, state: ClusterState) -> None:
        tp, leader_epoch = follow.tp, follow.partition.leader_epoch
        self._fetchers.unfollow(tp)
        try:
            partition = self._local(tp, follow.topic_id)
            if self.broker_id not in (*follow.partition.isr, *follow.partition.elr):
                partition.mend(leader_epoch, self._now_ms())
            partition.become_follower(leader_epoch)
            self._failed.pop(tp, None)
        except RaylogError as error:
            logger.error("partition cannot be followed", partition=tp, leader_epoch=leader_epoch, reason=error)
            self._failed[tp] = (follow.topic_id, error)
        else:
            leader = state.brokers.get(follow.partition.leader)
            if leader is not None:
                self._fetchers.follow(partition, leader, leader_epoch)
        self._interrupt(tp)

    def _connect(self, partition: Partition) -> None:
        """Have waiting requests hear of what happens to the partition."""
        partition.on_append = self._delayed.appended
        partition.on_advance = self._advanced
        partition.on_start = self._delayed.changed
        partition.on_caught_up = self._caught_up
        partition.on_low_watermark = self._deletes.advanced

    def _advanced(self, tp: TopicPartition, readable: int, high_watermark: Offset) -> None:
        self._delayed.advanced(tp, readable)
        self._produces.advanced(tp, high_watermark)

    def _caught_up(self, tp: TopicPartition) -> None:
        self.on_caught_up(tp)

    def _local(self, tp: TopicPartition, topic_id: TopicId) -> Partition:
        """The partition with its log, made where there is none; one of a deleted topic of that name gives way."""
        partition = self._partitions.get(tp)
        if partition is not None and partition.topic_id != topic_id:
            self._delete(tp, partition.topic_id)
            partition = None
        return partition or self._open(tp, topic_id)

    def _open(self, tp: TopicPartition, topic_id: TopicId) -> Partition:
        settings = self._topic_settings[tp.topic]
        try:
            log = self._log_dirs.create(tp, topic_id, self._now_ms())
        except InconsistentTopicId:
            self._log_dirs.set_aside(tp, "it belongs to a deleted topic of the same name")
            log = self._log_dirs.create(tp, topic_id, self._now_ms())
        partition = Partition(tp, topic_id, log, settings)
        self._connect(partition)
        self._partitions[tp] = partition
        return partition

    def _set_strays_aside(self, state: ClusterState) -> None:
        """Logs of topics that the cluster does not have (any more) are not served, and not deleted either.

        One whose topic id was lost is its topic's: an empty one in its place would lack what others count on.
        """
        for tp, (topic_id, _) in self._log_dirs.partitions().items():
            topic = state.topic(tp.topic)
            if topic is None or topic_id not in (topic.id, NO_TOPIC_ID):
                self._log_dirs.set_aside(tp, "the cluster has no such topic")

    def _failure(self, tp: TopicPartition) -> str:
        """Why the replica here can't be used, or "". The disk knows before the table does."""
        failed = self._failed.get(tp)
        if failed is not None:
            return str(failed[1])
        partition = self._partitions.get(tp)
        return partition.log.health.failure if partition is not None else ""

    # --- what the broker itself does ---

    def led(self) -> Mapping[TopicPartition, Partition]:
        """The partitions that this broker leads, a snapshot."""
        return {tp: partition for tp, partition in self._partitions.copy().items() if partition.is_leader}

    def led_partition(self, tp: TopicPartition) -> Partition | None:
        """The partition if this broker leads it."""
        partition = self._partitions.get(tp)
        return partition if partition is not None and partition.is_leader else None

    def followed(self) -> Mapping[TopicPartition, Partition]:
        """The partitions that this broker follows, a snapshot."""
        return {tp: partition for tp, partition in self._partitions.copy().items() if partition.is_follower}

    def give_up_failed(self) -> Mapping[TopicPartition, tuple[TopicId, str]]:
        """Neither lead nor follow any more with the replicas that this broker has lost until it starts anew; which they
        are, with their topic's id and the reason. From then on the controller may let others lead.
        """
        failed = {
            tp: (topic_id, str(error))
            for tp, (topic_id, error) in self._failed.copy().items()
            if isinstance(error, StorageError)
        }
        if self._log_dirs.offline():
            for tp, partition in self._partitions.copy().items():
                reason = partition.log.health.failure
                if reason:
                    self._fetchers.unfollow(tp)
                    if partition.is_leader:
                        partition.resign()
                        self._interrupt(tp)
                    failed[tp] = (partition.topic_id, reason)
        return failed

    def damaged(self) -> Mapping[TopicPartition, Partition]:
        """The partitions whose logs were found damaged here, a snapshot."""
        return {tp: partition for tp, partition in self._partitions.copy().items() if partition.log.damage is not None}

    def isr_answered(self, tp: TopicPartition, topic_id: TopicId, state: PartitionState) -> None:
        """The controller answered a proposal with the state as it is now."""
        with self._lock:
            self._update(tp, topic_id, state)

    def resign_all(self) -> None:
        """Lead nothing any more: the broker stops."""
        with self._lock:
            for tp in list(self._partitions):
                self._resign(tp)

    def describe(self) -> list[dict[str, Any]]:
        """Plain facts about each local partition."""
        return [partition.describe() for _, partition in sorted(self._partitions.copy().items())]
