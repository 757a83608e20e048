"""One log directory: its lock, its identity, its checkpoints and the logs in it.

Names in it: ``TOPIC-PARTITION`` holds a log; ``….ID-delete`` is one that is being deleted and is swept up at the next
start; ``….ID-stray`` is one that was set aside and is kept for a human; the rest is left alone.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from raylog.broker.events import EventLog
from raylog.broker.storage.directories.recovery import LastStop, load_log
from raylog.broker.storage.disk import checkpoint
from raylog.broker.storage.disk.files import FileLock, FileSystem, Space, remove_file, remove_tree
from raylog.broker.storage.disk.health import Health
from raylog.broker.storage.log.log import Log
from raylog.broker.storage.state.log_config import LogConfig
from raylog.protocol.errors import CorruptMessage, StorageError
from raylog.protocol.ids import (
    NO_TOPIC_ID,
    BrokerId,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)

logger = EventLog(__name__)

_PARTITION = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})")
_DELETE, _STRAY = "-delete", "-stray"
_MAX_NAME = 255


def partition_of(name: str) -> TopicPartition | None:
    """The partition whose directory is called ``name``; None for anything else."""
    match = _PARTITION.fullmatch(name)
    if match is None or name.endswith((_DELETE, _STRAY)):
        return None
    return TopicPartition(TopicName(match[1]), PartitionIndex(int(match[2])))


class LogDirFacts(NamedTuple):
    """A log directory as administrators are told of it."""

    path: Path
    failure: str
    """Why it is offline; empty while it is usable."""
    space: Space
    logs: dict[TopicPartition, Log]


class LogDir:
    """See the module. Its owner, LogDirs, calls everything but :meth:`checkpoint` from one thread at a time."""

    def __init__(
        self, path: Path, fs: FileSystem, config: LogConfig, new_id: Callable[[], str], on_offline: Callable[[], None]
    ) -> None:
        """``config``: for topics whose own settings are not known yet; ``new_id``: a random id of 22 characters;
        ``on_offline``: see Health.
        """
        self.path = path
        self.health = Health(path, on_offline)
        self.logs: dict[TopicPartition, tuple[TopicId, Log]] = {}
        self.directory_id = ""
        self._fs = fs
        self._config = config
        self._new_id = new_id
        self._lock: FileLock | None = None
        self._checkpoint_lock = threading.Lock()
        self._saved_high_watermarks: dict[TopicPartition, Offset] = {}
        self._saved_starts: dict[TopicPartition, Offset] = {}
        self._withdrawn: set[TopicPartition] = set()
        """Of :attr:`logs`, those that are to be deleted or set aside: the checkpoints tell nothing of them."""
        self.ended = checkpoint.NO_INCARNATION
        """The broker's incarnation that closed the logs here in an orderly way, if it was the last one to use them."""
        self.lost_data = False
        """Whether logs ended, when they were loaded, before what the checkpoints had said of them, or damaged batches
        were cut off; it stays so, over crashes, too, until :meth:`loss_told`.
        """

    def acquire(self) -> None:
        """Make the directory and lock it; StorageError when another process holds it."""
        with self.health.guard("creation of the directory"):
            self._fs.make_dirs(self.path)
            self._lock = self._fs.lock(self.path / checkpoint.LOCK)
        if self._lock is None:
            raise StorageError(f"log directory {self.path} is in use by another broker; stop it or choose another")

    def check_lock(self) -> None:
        """Take the directory offline when it was emptied or replaced under us: another broker can lock it then."""
        with self.health.guard("keeping of the lock"):
            if self._lock is not None and not self._lock.is_in_place():
                what = f"{checkpoint.LOCK} was removed or replaced, so another broker may write here"
                raise OSError(errno.ESTALE, what)

    def identify(self, cluster_id: str, broker_id: BrokerId) -> None:
        """Check ``meta.properties``, or write it; StorageError when the directory is somebody else's."""
        with self.health.guard("reading of meta.properties"):
            found = checkpoint.read_properties(self._fs, self.path / checkpoint.META_PROPERTIES) or {}
            for key, ours in (("cluster.id", cluster_id), ("broker.id", str(broker_id))):
                if found.get(key, ours) != ours:
                    raise StorageError(
                        f"log directory {self.path} belongs to {key} {found[key]}, this broker has {key} {ours}; "
                        "choose another directory"
                    )
            self.directory_id = self._known_id(found) or self._new_id()
            wanted = {
                "version": "0", "cluster.id": cluster_id, "broker.id": str(broker_id),
                "directory.id": self.directory_id,
            }  # fmt: skip
            if found != wanted:
                checkpoint.write_properties(self._fs, self.path / checkpoint.META_PROPERTIES, found | wanted)

    def _known_id(self, properties: Mapping[str, str]) -> str:
        """The directory's id; "" where there is none that can be read: it is then taken for one that was lost."""
        known = properties.get("directory.id", "")
        try:
            checkpoint.decode_topic_id(known)
        except ValueError as error:
            if known:
                path = self.path / checkpoint.META_PROPERTIES
                logger.warning("directory id dropped", path=path, directory_id=known, reason=error)
            return ""
        return known

    def load(self, taken: Mapping[TopicPartition, TopicId], now_ms: TimestampMs) -> None:
        """Load and, after an unclean stop, recover all logs.

        ``taken``: what other directories have, and of which topic; another log of the same topic is set aside.
        """
        with self.health.guard("loading of the logs"):
            ended = checkpoint.take_clean_stop(self._fs, self.path)
            clean = ended is not None
            self.ended = checkpoint.NO_INCARNATION if ended is None else ended
            recovery_points = self._read(checkpoint.RECOVERY_POINTS)
            starts = self._read(checkpoint.LOG_STARTS)
            high_watermarks = self._read(checkpoint.HIGH_WATERMARKS)
            for name in self._fs.list_dir(self.path):
                if name.endswith(_DELETE):
                    remove_tree(self._fs, self.path / name)
                    continue
                tp = partition_of(name)
                if tp is None:
                    continue
                if tp in taken and taken[tp] == self._topic_id(tp):
                    self._set_aside(tp, "it is in another log directory, too")
                    continue
                zero = Offset(0)
                told = (recovery_points.get(tp, zero), starts.get(tp, zero), high_watermarks.get(tp, zero))
                self._load(tp, LastStop(clean, *told), now_ms)
            promised = [*recovery_points.items(), *high_watermarks.items()]
            lost = sorted(
                {tp for tp, offset in promised if self._ends_before(tp, offset)}
                | {tp for tp, (_, log) in self.logs.items() if log.lost_in_recovery}
            )
            if lost:
                logger.error("records lost", path=self.path, partitions=", ".join(map(str, lost)))
                checkpoint.write_lost_data(self._fs, self.path, lost)
            self.lost_data = self._fs.exists(self.path / checkpoint.LOST_DATA)
        self.checkpoint()

    def loss_told(self) -> None:
        """The cluster knows that data was lost here."""
        if self.lost_data:
            with self.health.guard("removal of the note on lost data"):
                remove_file(self._fs, self.path / checkpoint.LOST_DATA)
                self._fs.fsync_dir(self.path)
            self.lost_data = False

    def _ends_before(self, tp: TopicPartition, offset: Offset) -> bool:
        return tp not in self.logs or self.logs[tp][1].offsets.end.offset < offset

    def _load(self, tp: TopicPartition, last: LastStop, now_ms: TimestampMs) -> None:
        directory = self.path / str(tp)
        names = self._fs.list_dir(directory)
        if not any(name.endswith(".log") for name in names) and checkpoint.PARTITION_METADATA not in names:
            remove_tree(self._fs, directory)  # a creation that was cut short
            return
        topic_id = self._topic_id(tp)
        log = load_log(tp, directory, self._fs, self.health, self._config, last, now_ms)
        self._adopt(tp, topic_id, log)

    def _topic_id(self, tp: TopicPartition) -> TopicId:
        """As its directory says; NO_TOPIC_ID where that cannot be read."""
        try:
            return checkpoint.read_topic_id(self._fs, self.path / str(tp)) or NO_TOPIC_ID
        except CorruptMessage as error:
            logger.warning("topic id lost", partition=tp, reason=error)
            return NO_TOPIC_ID

    def _adopt(self, tp: TopicPartition, topic_id: TopicId, log: Log) -> None:
        log.save_checkpoints = self.checkpoint
        log.save_start = self.checkpoint_starts
        self.logs[tp] = (topic_id, log)

    def _read(self, name: str) -> dict[TopicPartition, Offset]:
        """A checkpoint; a damaged one counts as empty. That costs time at recovery; without the log starts, what
        DeleteRecords took from the middle of a segment is there again.
        """
        try:
            return checkpoint.read_offsets(self._fs, self.path / name)
        except CorruptMessage as error:
            logger.warning("checkpoint dropped", path=self.path / name, reason=error)
            return {}

    def create(self, tp: TopicPartition, topic_id: TopicId, now_ms: TimestampMs) -> Log:
        """A new, empty log."""
        directory = self.path / str(tp)
        with self.health.guard(f"creation of {tp}"):
            self._fs.make_dirs(directory)
            checkpoint.write_topic_id(self._fs, directory, topic_id)
            log = load_log(tp, directory, self._fs, self.health, self._config, LastStop(clean=True), now_ms)
        self._adopt(tp, topic_id, log)
        return log

    def give_id(self, tp: TopicPartition, topic_id: TopicId) -> None:
        """Write the topic id of a log that was found without one."""
        with self.health.guard(f"naming of {tp}"):
            checkpoint.write_topic_id(self._fs, self.path / str(tp), topic_id)
        self.logs[tp] = (topic_id, self.logs[tp][1])

    def withdraw(self, partitions: Collection[TopicPartition]) -> None:
        """Promise nothing more of what is to be deleted or set aside, before its files go: a crash meanwhile loses no
        data, and a log that takes the name finds no recovery point and no start of the old one. All at once: each write
        waits for the disk, and names all that is left.
        """
        fresh = (self.logs.keys() & set(partitions)) - self._withdrawn
        if fresh:
            self._withdrawn |= fresh
            self.checkpoint()

    def keep(self, tp: TopicPartition) -> None:
        """The log is wanted again after :meth:`withdraw`: the next checkpoint tells of it."""
        self._withdrawn.discard(tp)

    def _take_out(self, tp: TopicPartition) -> Log:
        """No log here any more, also where the disk refuses: another directory may get one of that name."""
        try:
            self.withdraw((tp,))
        finally:
            _, log = self.logs.pop(tp)
            self._withdrawn.discard(tp)
            log.abandon()
        return log

    def delete(self, tp: TopicPartition) -> None:
        """Delete a log; see :meth:`withdraw`."""
        self._take_out(tp).delete(self.path / self._aside_name(tp, _DELETE))

    def set_aside(self, tp: TopicPartition, reason: str) -> None:
        """Take a log out of service and keep its files under a name that tells; see :meth:`withdraw`."""
        log = self._take_out(tp)
        with log.flush_lock, self.health.guard(f"setting aside of {tp}"):
            self._set_aside(tp, reason)

    def _set_aside(self, tp: TopicPartition, reason: str) -> None:
        name = self._aside_name(tp, _STRAY)
        self._fs.rename(self.path / str(tp), self.path / name)
        self._fs.fsync_dir(self.path)
        logger.error("log set aside", partition=tp, path=self.path / name, reason=reason)

    def _aside_name(self, tp: TopicPartition, suffix: str) -> str:
        tail = f".{self._new_id()}{suffix}"
        return str(tp)[: _MAX_NAME - len(tail)] + tail

    def checkpoint(self) -> None:
        """Write recovery points, log starts and high watermarks. Any thread may call it."""
        with self._checkpoint_lock, self.health.guard("writing of the checkpoints"):
            recovery_points = {tp: log.recovery_point for tp, log in self._promised()}
            checkpoint.write_offsets(self._fs, self.path / checkpoint.RECOVERY_POINTS, recovery_points)
            self._save_starts(self._starts())
            self._save_high_watermarks(self._high_watermarks())

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks alone, if one has moved. Any thread may call it."""
        with self._checkpoint_lock:
            if (marks := self._high_watermarks()) != self._saved_high_watermarks:
                with self.health.guard("writing of the high watermarks"):
                    self._save_high_watermarks(marks)

    def checkpoint_starts(self) -> None:
        """Write the log starts alone, if one has moved. Any thread may call it; those that wait share one write."""
        with self._checkpoint_lock:
            if (starts := self._starts()) != self._saved_starts:
                with self.health.guard("writing of the log starts"):
                    self._save_starts(starts)

    def _high_watermarks(self) -> dict[TopicPartition, Offset]:
        return {tp: log.offsets.high_watermark.offset for tp, log in self._promised()}

    def _promised(self) -> list[tuple[TopicPartition, Log]]:
        """The logs that checkpoints tell of."""
        return [(tp, log) for tp, (_, log) in self.logs.copy().items() if tp not in self._withdrawn]

    def _save_high_watermarks(self, marks: dict[TopicPartition, Offset]) -> None:
        checkpoint.write_offsets(self._fs, self.path / checkpoint.HIGH_WATERMARKS, marks)
        self._saved_high_watermarks = marks

    def _starts(self) -> dict[TopicPartition, Offset]:
        """All but 0, though most are a segment's name as well: files are deleted after the start has moved, so that
        what is in the log now does not tell what a crash leaves.
        """
        starts = ((tp, log.offsets.start) for tp, log in self._promised())
        return {tp: start for tp, start in starts if start > 0}

    def _save_starts(self, starts: dict[TopicPartition, Offset]) -> None:
        checkpoint.write_offsets(self._fs, self.path / checkpoint.LOG_STARTS, starts, checksum=True)
        self._saved_starts = starts

    def describe(self) -> LogDirFacts:
        """What is in it; a disk that cannot even tell its size takes the directory offline."""
        space = Space(-1, -1)
        try:
            with self.health.guard("a look at the room on the disk"):
                space = self._fs.space(self.path)
        except StorageError:
            return LogDirFacts(self.path, self.health.failure, space, {})
        return LogDirFacts(self.path, "", space, {tp: log for tp, (_, log) in self.logs.copy().items()})

    def close(self, broker_epoch: int) -> None:
        """Close all logs and mark the stop as clean, then unlock. StorageError when that failed: not marked.

        ``broker_epoch``: the incarnation that ends; NO_INCARNATION when there was none, which leaves what is known of
        the last one as it is.
        """
        if self._lock is None:
            return
        try:
            for _, log in self.logs.values():
                log.close()
            self.checkpoint()
            with self.health.guard("marking of the clean stop"):
                ended = self.ended if broker_epoch == checkpoint.NO_INCARNATION else broker_epoch
                checkpoint.write_clean_stop(self._fs, self.path, ended)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files and unlock, as a crash would."""
        for _, log in self.logs.values():
            log.abandon()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
