"""The broker's log directories (``log.dirs``) and the logs in them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from uuid import uuid4

from raylog.broker import config as rows
from raylog.broker.events import EventLog
from raylog.broker.storage.directories.clock import RetentionClock
from raylog.broker.storage.directories.log_dir import LogDir, LogDirFacts
from raylog.broker.storage.disk import checkpoint
from raylog.broker.storage.disk.files import FileSystem
from raylog.broker.storage.log.cleaning import enforce_retention
from raylog.broker.storage.log.log import Log
from raylog.broker.storage.state.log_config import LogConfig
from raylog.protocol.errors import InconsistentTopicId, StorageError
from raylog.protocol.ids import NO_TOPIC_ID, BrokerId, TimestampMs, TopicId, TopicPartition
from raylog.protocol.settings import Settings

logger = EventLog(__name__)


def random_id() -> str:
    """A directory's id: a UUID in Kafka's text form."""
    return checkpoint.encode_topic_id(TopicId(uuid4()))


class LogDirs:
    """See the module. Any thread may look logs up; what changes the set of logs takes a lock."""

    def __init__(
        self,
        config: Settings,
        fs: FileSystem,
        cluster_id: str,
        broker_id: BrokerId,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        """``config``: settings of BROKER_SETTINGS; ``log.dirs`` names the directories."""
        self._config = config
        self._cluster_id = cluster_id
        self._broker_id = broker_id
        self._lock = threading.Lock()
        defaults = LogConfig.of(rows.topic_settings(config))
        paths = [Path(path).absolute() for path in config[rows.LOG_DIRS]]
        self.on_offline: Callable[[], None] = lambda: None
        """Called when a directory went offline, by any thread, perhaps under a log's lock: it must only take note."""
        self.dirs = tuple(LogDir(path, fs, defaults, new_id, self._went_offline) for path in paths)
        self._clock: RetentionClock | None = None
        self._last_checkpoint_ms = self._last_retention_ms = self._last_high_watermarks_ms = 0
        """When each was done last, by the monotonic clock."""

    def _went_offline(self) -> None:
        self.on_offline()

    def configure(self, config: Settings) -> None:
        """Take the broker's settings as they are now."""
        self._config = config

    def open(self, now_ms: TimestampMs) -> None:
        """Lock every directory, check its identity, load and recover its logs.

        A directory with a failing disk is offline (see :meth:`offline`); the rest serve. Raises StorageError
        in one sentence when another process holds a directory, when it belongs to another broker or cluster,
        or when none is usable.
        """
        try:
            taken: dict[TopicPartition, TopicId] = {}
            for directory in self.dirs:
                try:
                    directory.acquire()
                    directory.identify(self._cluster_id, self._broker_id)
                    directory.load(taken, now_ms)
                except StorageError:
                    if not directory.health.failure:
                        raise
                taken |= {tp: topic_id for tp, (topic_id, _) in directory.logs.items() if tp not in taken}
            if all(directory.health.failure for directory in self.dirs):
                failures = "; ".join(self.offline().values()) or "log.dirs names none"
                raise StorageError(f"no log directory is usable: {failures}")
        except BaseException:
            self.abandon()
            raise

    @property
    def was_stopped_cleanly(self) -> bool:
        """Whether the broker's last incarnation closed all its logs in an orderly way."""
        return all(directory.ended != checkpoint.NO_INCARNATION for directory in self.dirs)

    @property
    def lost_data(self) -> bool:
        """Whether less was found at :meth:`open` than the checkpoints had promised, or at an earlier one, if nobody was
        told of it.
        """
        return any(directory.lost_data for directory in self.dirs)

    def loss_told(self) -> None:
        """The cluster knows that data was lost here; a failing disk takes its directory offline."""
        for directory in self._usable():
            try:
                directory.loss_told()
            except StorageError:
                continue  # told when it happened

    def partitions(self) -> Mapping[TopicPartition, tuple[TopicId, Log]]:
        """The logs of all usable directories, a snapshot."""
        return {tp: entry for directory in self._usable() for tp, entry in directory.logs.copy().items()}

    def all_logs(self) -> list[Log]:
        """Those logs alone, a snapshot."""
        return [log for _, log in self.partitions().values()]

    def _usable(self) -> list[LogDir]:
        return [directory for directory in self.dirs if not directory.health.failure]

    def _holder(self, tp: TopicPartition) -> LogDir | None:
        return next((directory for directory in self.dirs if tp in directory.logs), None)

    def create(self, tp: TopicPartition, topic_id: TopicId, now_ms: TimestampMs) -> Log:
        """The log of ``tp``: the one that is there with the same topic id, or a new one in the emptiest directory.

        Raises InconsistentTopicId when it belongs to another topic of that name (set it aside or delete it
        first), StorageError when its directory is offline or no disk takes it.
        """
        with self._lock:
            holder = self._holder(tp)
            if holder is None:
                usable = self._usable()
                if not usable:
                    raise StorageError(f"{tp} cannot be created: every log directory is offline")
                return min(usable, key=lambda directory: len(directory.logs)).create(tp, topic_id, now_ms)
            holder.health.check()
            holder.keep(tp)
            known, log = holder.logs[tp]
            if known == NO_TOPIC_ID != topic_id:
                holder.give_id(tp, topic_id)
            elif known != topic_id:
                raise InconsistentTopicId(
                    f"{holder.path / str(tp)} belongs to topic id {checkpoint.encode_topic_id(known)}, "
                    f"not {checkpoint.encode_topic_id(topic_id)}: the topic was deleted and made again"
                )
            return log

    def withdraw(self, partitions: Collection[TopicPartition]) -> None:
        """These are deleted or set aside next: with this before, one write to the disk serves them all. Does not raise;
        a failing disk takes its directory offline.
        """
        with self._lock:
            for directory in self._usable():
                try:
                    directory.withdraw(partitions)
                except StorageError:
                    continue  # told when it happened

    def delete(self, tp: TopicPartition) -> None:
        """Delete the log; no error when there is none. Slices that are being sent stay readable."""
        with self._lock:
            holder = self._holder(tp)
            if holder is not None:
                holder.delete(tp)

    def set_aside(self, tp: TopicPartition, reason: str) -> None:
        """Keep the files of a log that nobody asked for, but serve it no more; no error when there is none."""
        with self._lock:
            holder = self._holder(tp)
            if holder is not None:
                holder.set_aside(tp, reason)

    def settle(self, topic_id: Callable[[TopicPartition], TopicId | None]) -> None:
        """Of a partition with logs in several directories keep the one of the topic that the cluster has now.

        A directory may come back after a time offline with a log whose topic was deleted and made anew meanwhile; which
        one it is, the controller alone knows. Called with its word before anything is served; ``topic_id``: by it.
        """
        with self._lock:
            for tp in {tp for directory in self.dirs for tp in directory.logs}:
                holders = [directory for directory in self.dirs if tp in directory.logs]
                kept = max(holders, key=lambda each: each.logs[tp][0] == topic_id(tp))
                for holder in holders:
                    if holder is not kept:
                        try:
                            holder.set_aside(tp, "another log directory has the log of the topic of this name")
                        except StorageError:
                            continue  # told when it happened; the log is out of service

    def offline(self) -> Mapping[str, str]:
        """Failed directories and why."""
        return {str(d.path): d.health.failure for d in self.dirs if d.health.failure}

    def describe(self) -> list[LogDirFacts]:
        """Every directory: its logs and the room on its volume, or why it is offline."""
        return [directory.describe() for directory in self.dirs]

    def directory_ids(self) -> Mapping[str, str]:
        """The id of each usable directory: another id than before means another disk."""
        return {str(directory.path): directory.directory_id for directory in self._usable()}

    def maintain(self, now_ms: TimestampMs, uptime_ms: int) -> None:  # noqa: C901 (the chores of each log, in their order)
        """Do what is due: flush.ms, retention, checkpoints, producer expiry. Call it about once a second.

        ``now_ms``: the wall clock, which tells the age of records; ``uptime_ms``: the monotonic one, by which all
        else is due: nothing waits a day because somebody set the wall clock back.

        A failing disk takes its directory offline and is told in the log; it does not raise. What fails otherwise
        holds up no other log or directory, and is raised when all is done: an ExceptionGroup.
        """
        if self._clock is None:
            self._clock = RetentionClock(now_ms, uptime_ms)
            self._last_checkpoint_ms = self._last_retention_ms = self._last_high_watermarks_ms = uptime_ms
        now_ms = self._clock.now_ms(now_ms, uptime_ms)
        retention = uptime_ms - self._last_retention_ms >= self._config[rows.LOG_RETENTION_CHECK_INTERVAL_MS]
        checkpoints = uptime_ms - self._last_checkpoint_ms >= self._config[rows.LOG_FLUSH_OFFSET_CHECKPOINT_INTERVAL_MS]
        marks_interval_ms = self._config[rows.REPLICA_HIGH_WATERMARK_CHECKPOINT_INTERVAL_MS]
        high_watermarks = uptime_ms - self._last_high_watermarks_ms >= marks_interval_ms
        defects: list[Exception] = []

        def guarded(work: Callable[[], object], what: object) -> None:
            try:
                work()
            except StorageError:
                pass  # told when it happened, or the log was deleted meanwhile
            except Exception as error:  # noqa: BLE001 (it is raised below)
                error.add_note(f"in the maintenance of {what}")
                defects.append(error)

        for directory in self.dirs:
            guarded(directory.check_lock, directory.path)
        for directory in self._usable():
            for _, log in list(directory.logs.values()):
                guarded(partial(self._maintain, log, now_ms, uptime_ms, retention), log.tp)
            if checkpoints:
                guarded(directory.checkpoint, directory.path)
            elif high_watermarks:
                guarded(directory.checkpoint_high_watermarks, directory.path)
        if retention:
            self._last_retention_ms = uptime_ms
        if checkpoints:
            self._last_checkpoint_ms = uptime_ms
        if high_watermarks:
            self._last_high_watermarks_ms = uptime_ms
        if defects:
            first = defects[0]
            raise ExceptionGroup(f"maintenance of logs failed, first {first!r} {first.__notes__[-1]}", defects)

    def _maintain(self, log: Log, now_ms: TimestampMs, uptime_ms: int, retention: bool) -> None:
        if log.recovery_point == log.offsets.end.offset:
            log.last_flush_ms = uptime_ms
        elif uptime_ms - log.last_flush_ms >= log.config.flush_ms:
            log.flush()
            log.last_flush_ms = uptime_ms
        else:
            log.flush(sealed_only=True)
        if retention:
            enforce_retention(log, now_ms, uptime_ms)
            with log.lock:
                log.producers.expire(now_ms, uptime_ms, self._config[rows.PRODUCER_ID_EXPIRATION_MS])

    def close(self, broker_epoch: int = checkpoint.NO_INCARNATION) -> None:
        """Flush and close everything, write checkpoints and the clean-stop markers, unlock. Idempotent.

        A directory that fails is left without its marker, to be recovered at the next start.
        """
        with self._lock:
            for directory in self._usable():
                try:
                    directory.close(broker_epoch)
                except StorageError as error:
                    logger.error("stop not clean", path=directory.path, reason=error)
        self.abandon()

    def abandon(self) -> None:
        """Close the files and unlock, as a crash would. Idempotent."""
        for directory in self.dirs:
            directory.abandon()
