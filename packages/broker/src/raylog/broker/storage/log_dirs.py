"""The broker's log directories (`log.dirs`): locks, identity, checkpoints, and the logs in them."""

from __future__ import annotations

from collections.abc import Mapping

from raylog.broker.storage.files import FileSystem
from raylog.broker.storage.log import Log
from raylog.protocol.ids import BrokerId, TimestampMs, TopicId, TopicPartition
from raylog.protocol.settings import Settings


class LogDirs:
    """See the module. One owner calls open, create, delete, close; any thread may look logs up."""

    def __init__(self, config: Settings, fs: FileSystem, cluster_id: str, broker_id: BrokerId) -> None:
        """``config``: settings of BROKER_SETTINGS; ``log.dirs`` names the directories."""
        raise NotImplementedError

    def open(self, now_ms: TimestampMs) -> None:
        """Lock every directory, check its identity, load and recover its logs.

        A directory with a failing disk is offline (see :meth:`offline`); the rest serve. Raises StorageError
        in one sentence when another process holds a directory, when it belongs to another broker or cluster,
        or when none is usable.
        """
        raise NotImplementedError

    def partitions(self) -> Mapping[TopicPartition, tuple[TopicId, Log]]:
        """The logs of all usable directories, a snapshot."""
        raise NotImplementedError

    def create(self, tp: TopicPartition, topic_id: TopicId, settings: Settings, now_ms: TimestampMs) -> Log:
        """The log of ``tp``: the one that is there with the same topic id, or a new one in the emptiest directory.

        Raises InconsistentTopicId when it belongs to another topic of that name, StorageError when no disk
        takes it.
        """
        raise NotImplementedError

    def delete(self, tp: TopicPartition) -> None:
        """Delete the log; no error when there is none."""
        raise NotImplementedError

    def offline(self) -> Mapping[str, str]:
        """Failed directories and why."""
        raise NotImplementedError

    def maintain(self, now_ms: TimestampMs) -> None:
        """Do what is due: flush.ms, retention, checkpoints, producer expiry. Call it about once a second."""
        raise NotImplementedError

    def close(self) -> None:
        """Flush and close everything, write checkpoints and the clean-stop markers, unlock. Idempotent."""
        raise NotImplementedError
