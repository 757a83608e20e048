"""The partitions that this broker keeps: what handlers look up, and the way in for the controller's decisions.

A decision is carried out first (``local_partitions``), then shown. One lock orders everything that changes the table
(control messages, registration, closing). Handlers only look partitions up, and take no lock: the table is replaced
entry by entry, never rebuilt.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from raylog.broker.dynamic_config import broker_settings, settings_of
from raylog.broker.events import EventLog
from raylog.broker.partition.local_partitions import Fetchers, LocalPartitions
from raylog.broker.partition.partition import Partition
from raylog.broker.partition.types import Subscriptions
from raylog.broker.replication.delayed import DelayedFetches
from raylog.broker.replication.delayed_operations import DelayedOperations
from raylog.broker.storage.directories.log_dirs import LogDirs
from raylog.broker.storage.log.log import Log
from raylog.coordination.control.peer_control import AckStatus, Receiver
from raylog.coordination.host.clocks import monotonic_ms
from raylog.coordination.metadata.model import BrokerInfo, ClusterState, PartitionState
from raylog.protocol.errors import (
    NotLeaderOrFollower,
    RaylogError,
    StorageError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    MonotonicMs,
    Offset,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)
from raylog.protocol.settings import Settings

__all__ = ["PartitionTable"]

logger = EventLog(__name__)


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
        partition: Callable[[TopicPartition, TopicId, Log, Settings, Subscriptions], Partition] = Partition,
        *,
        uptime_ms: Callable[[], MonotonicMs] = monotonic_ms,
        receiver: Callable[[BrokerId], Receiver] = Receiver,
        local: Callable[..., LocalPartitions] = LocalPartitions,
    ) -> None:
        """``log_dirs`` are open already; ``settings`` are those that the broker was started with; ``now_ms`` is the
        wall clock, ``uptime_ms`` the monotonic one; ``partition`` makes one on its log, ``receiver`` and ``local`` what
        takes the controller's word in and carries it out.
        """
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
        self._receiver = receiver(broker_id)
        self._local = local(broker_id, self._settings, log_dirs, fetchers, self._open_partition, now_ms, uptime_ms)
        self._partition = partition
        self._subscriptions = Subscriptions(
            on_append=delayed.appended,
            on_advance=self._advanced,
            on_start=self._start_moved,
            on_caught_up=self._caught_up,
            on_low_watermark=deletes.advanced,
        )
        self._partitions = self._local.partitions
        self.on_brokers: Callable[[Iterable[BrokerInfo]], None] = lambda brokers: None
        """Called with the live brokers when they are others than before; must not block."""
        self._known_brokers: Mapping[BrokerId, BrokerInfo] = {}
        """As :attr:`on_brokers` was told last."""
        self._known_configs: Mapping[str, Mapping[str, str]] = {}
        """The dynamic settings that are in force."""
        self._lock = threading.Lock()
        self._synced = threading.Event()
        self._changed = threading.Condition()

    # --- what handlers ask ---

    def get(self, tp: TopicPartition, topic_id: TopicId | None = None) -> Partition:
        """The partition that this broker leads, of the topic with that id where one is given.

        Raises UnknownTopicOrPartition, UnknownTopicId when the topic of that name has another id, NotLeaderOrFollower,
        or StorageError when its directory is offline.
        """
        partition = self._partitions.get(tp)
        if partition is not None and partition.role.is_leader and (topic_id is None or topic_id == partition.topic_id):
            return partition
        raise self._refusal(tp, topic_id, partition)

    def replica(self, tp: TopicPartition, topic_id: TopicId | None = None) -> Partition:
        """The partition that this broker leads or follows. Raises as :meth:`get`."""
        partition = self._partitions.get(tp)
        if (
            partition is not None
            and partition.role.is_follower
            and (topic_id is None or topic_id == partition.topic_id)
        ):
            return partition
        return self.get(tp, topic_id)

    def _refusal(self, tp: TopicPartition, topic_id: TopicId | None, partition: Partition | None) -> RaylogError:
        """Why the partition is not served here."""
        known = self._receiver.state
        topic, state = known.topic(tp.topic), known.partition(tp)
        serves = partition is not None and (partition.role.is_leader or partition.role.is_follower)
        here = partition.topic_id if partition is not None and serves else topic_id
        if topic_id is not None and (topic is None or topic_id != topic.id or topic_id != here):
            return UnknownTopicId(f"{tp}: no topic of that name has the id {topic_id}; refresh the metadata")
        if state is None:
            return UnknownTopicOrPartition(f"{tp}: there is no such partition")
        failure = self._failure(tp) if state.leader == self.broker_id or not state.is_online else None
        if isinstance(failure, StorageError):
            return StorageError(f"{tp}: {failure}")
        where = f"broker {state.leader} leads it" if state.is_online else "nobody leads it at the moment"
        why = "" if failure is None else f", which cannot: {failure}"
        return NotLeaderOrFollower(f"{tp}: not led by broker {self.broker_id}; {where}{why}")

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
        settings = self._local.topic_settings.get(topic)
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
            self._local.registered()
            self._receiver.registered(register())

    def control(self, payload: bytes) -> bytes:
        """Take one message of the controller in, act on it, and answer it (see peer_control)."""
        touched: list[TopicPartition] = []
        with self._lock:
            ack = self._receiver.receive(payload, lambda before, after: touched.extend(self._act(before, after)))
            if ack.status is AckStatus.OK:
                self._synced.set()
                self._tell(touched)
            return ack.encode()

    def retry(self) -> None:
        """Do what has failed so far of what the controller said last; call it about once a second."""
        with self._lock:
            if not self._synced.is_set():
                return  # what was said is about a former incarnation
            state = self._receiver.state
            if self._local.has_retries or not self._is_told(state):
                self._tell(self._act(state, state))

    def _act(self, before: ClusterState, after: ClusterState) -> Iterable[TopicPartition]:
        """Bring the broker to ``after``; whose waiting requests must look again. What fails is done the next time."""
        self._attempt("settings not taken", self._reconfigure, after)
        touched = self._local.carry_out(before, after, self._settings)
        self._attempt("live brokers not told", self._tell_brokers, after)
        return touched

    def _attempt(self, failed: str, do: Callable[[ClusterState], None], state: ClusterState) -> None:
        try:
            do(state)
        except Exception:
            logger.exception(failed)

    def _is_told(self, state: ClusterState) -> bool:
        """Whether settings and live brokers are taken over."""
        return (self._known_configs, self._known_brokers) == (state.broker_configs, state.brokers)

    def _tell(self, touched: Iterable[TopicPartition]) -> None:
        """Have everybody look who waits for the state, or for one of the partitions."""
        with self._changed:
            self._changed.notify_all()
        for tp in touched:
            try:
                self._interrupt(tp)
            except Exception:
                logger.exception("waiting requests not woken", partition=tp)

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
        """Take the broker's dynamic settings where they changed; the topics get their synonyms' new values next."""
        if state.broker_configs == self._known_configs:
            return
        before = self._settings
        settings = broker_settings(self._static, self.broker_id, state.broker_configs)
        self._log_dirs.configure(settings)
        self._settings, self._known_configs = settings, state.broker_configs
        changed = [row for row in settings.table if settings[row] != before[row]]
        logger.info("settings changed", **{row.name: row.format(settings[row]) for row in changed if not row.sensitive})

    def _tell_brokers(self, state: ClusterState) -> None:
        if state.brokers != self._known_brokers:
            self.on_brokers(state.brokers.values())
            self._known_brokers = state.brokers

    def _interrupt(self, tp: TopicPartition) -> None:
        """Something about ``tp`` changed that waiting requests must find out."""
        self._delayed.interrupt(tp)
        self._produces.interrupt(tp)
        self._deletes.interrupt(tp)

    def _open_partition(self, tp: TopicPartition, topic_id: TopicId, log: Log, settings: Settings) -> Partition:
        """A partition, and waiting requests hear of what happens to it."""
        return self._partition(tp, topic_id, log, settings, self._subscriptions)

    def _start_moved(self, tp: TopicPartition) -> None:
        self._delayed.changed(tp)
        self._fetchers.start_moved(tp)

    def _advanced(self, tp: TopicPartition, readable: int, high_watermark: Offset) -> None:
        self._delayed.advanced(tp, readable)
        self._produces.advanced(tp, high_watermark)

    def _caught_up(self, tp: TopicPartition) -> None:
        self.on_caught_up(tp)

    def _failure(self, tp: TopicPartition) -> Exception | None:
        """Why the replica here can't be used; None where it can. The disk knows before the table does."""
        failed = self._local.failures.get(tp)
        if failed is not None:
            return failed.error
        partition = self._partitions.get(tp)
        reason = partition.log.health.failure if partition is not None else ""
        return StorageError(reason) if reason else None

    # --- what the broker itself does ---

    def led(self) -> Mapping[TopicPartition, Partition]:
        """The partitions that this broker leads, a snapshot."""
        return {tp: partition for tp, partition in self._partitions.copy().items() if partition.role.is_leader}

    def led_partition(self, tp: TopicPartition) -> Partition | None:
        """The partition if this broker leads it."""
        partition = self._partitions.get(tp)
        return partition if partition is not None and partition.role.is_leader else None

    def followed(self) -> Mapping[TopicPartition, Partition]:
        """The partitions that this broker follows, a snapshot."""
        return {tp: partition for tp, partition in self._partitions.copy().items() if partition.role.is_follower}

    def give_up_failed(self) -> Mapping[TopicPartition, tuple[TopicId, str]]:
        """Neither lead nor follow any more with the replicas that this broker has lost until it starts anew; which they
        are, with their topic's id and the reason. From then on the controller may let others lead.
        """
        failed = {
            tp: (failure.topic_id, str(failure.error))
            for tp, failure in self._local.failures.items()
            if failure.is_final
        }
        if self._log_dirs.offline():
            for tp, partition in self._partitions.copy().items():
                reason = partition.log.health.failure
                if reason:
                    was_leader = partition.role.is_leader
                    self._local.resign(tp)
                    if was_leader:
                        self._interrupt(tp)
                    failed[tp] = (partition.topic_id, reason)
        return failed

    def failures(self) -> Mapping[TopicPartition, str]:
        """The partitions that are not as the controller wants them, and why."""
        return {tp: str(failure.error) or repr(failure.error) for tp, failure in self._local.failures.items()}

    def damaged(self) -> Mapping[TopicPartition, Partition]:
        """The partitions whose logs were found damaged here, a snapshot."""
        return {tp: partition for tp, partition in self._partitions.copy().items() if partition.log.damage is not None}

    def isr_answered(self, tp: TopicPartition, topic_id: TopicId, state: PartitionState) -> None:
        """The controller answered a proposal with the state as it is now."""
        with self._lock:
            self._local.update(tp, topic_id, state)
            self._interrupt(tp)

    def resign_all(self) -> None:
        """Lead nothing any more: the broker stops."""
        with self._lock:
            for tp in list(self._partitions):
                self._local.resign(tp)
                self._interrupt(tp)

    def describe(self) -> list[dict[str, Any]]:
        """Plain facts about each local partition."""
        return [partition.describe() for _, partition in sorted(self._partitions.copy().items())]
