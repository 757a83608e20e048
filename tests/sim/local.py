"""The product's LocalPartitions on a simulated disk, in which steps may fail."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from raylog.broker.partition.local_partitions import LocalPartitions
from raylog.broker.storage.state.log_config import LogConfig
from raylog.coordination.control.peer_control import Follow, Lead
from raylog.coordination.metadata.model import ClusterState
from raylog.protocol.errors import InconsistentTopicId
from raylog.protocol.ids import Offset, TimestampMs, TopicId, TopicPartition
from raylog.protocol.settings import Settings

from .disk import Disk, Files, SimLog

Step = Callable[[TopicPartition], None]


class StepFailed(RuntimeError):
    """What an operating system may refuse at any moment: a thread, memory, a file."""


class SimLogs:
    """The logs on one disk, as LogDirs keeps them: local_partitions.Logs."""

    def __init__(
        self,
        disk: Disk,
        settings: Settings,
        may_fail: Step,
        make: Callable[..., SimLog],
        on_open: Callable[[TopicPartition, TopicId, Offset, bool], None],
    ) -> None:
        """``may_fail`` is called before each step, and raises StepFailed where that is to fail. ``make`` opens a log;
        ``on_open`` hears where it begins, and whether it is a new one.
        """
        self._make = make
        self._on_open = on_open
        self._disk = disk
        self._settings = settings
        self._may_fail = may_fail
        self._logs: dict[TopicPartition, SimLog] = {}

    def configure(self, settings: Settings) -> None:
        """Logs have the settings that they were opened with."""

    def offline(self) -> Mapping[str, str]:
        failure = self._disk.health.failure
        return {"disk": failure} if failure else {}

    def partitions(self) -> Mapping[TopicPartition, tuple[TopicId, Any]]:
        """All that are on the disk, opened or not; none of a disk that failed."""
        files = {} if self._disk.health.failure else self._disk.files
        return {tp: (of_it.topic_id, self._logs.get(tp)) for tp, of_it in files.items()}

    def create(self, tp: TopicPartition, topic_id: TopicId, now_ms: TimestampMs) -> Any:
        self._may_fail(tp)
        self._disk.health.check()
        is_new = tp not in self._disk.files
        files = self._disk.files.setdefault(tp, Files(topic_id))
        if files.topic_id != topic_id:
            raise InconsistentTopicId(f"{tp} is of another topic")
        if tp not in self._logs:
            log = self._logs[tp] = self._make(tp, files, LogConfig.of(self._settings), self._disk.health)
            self._on_open(tp, topic_id, log.offsets.start, is_new)
        return self._logs[tp]

    def withdraw(self, partitions: Collection[TopicPartition]) -> None:
        """What is promised here of a log goes with its files."""

    def delete(self, tp: TopicPartition) -> None:
        self._may_fail(tp)
        log = self._logs.pop(tp, None)
        if log is not None:
            log.closed = True
        self._disk.health.check()
        self._disk.files.pop(tp, None)

    def settle(self, topic_id: Callable[[TopicPartition], TopicId | None]) -> None:
        """There is one directory."""

    def set_aside(self, tp: TopicPartition, reason: str) -> None:
        """Nobody looks at it again, so that it need not be kept."""
        self.delete(tp)


class SimPartitions(LocalPartitions):
    """Tells of the roles that partitions take."""

    may_fail: Step
    on_lead: Callable[[Lead], None]
    on_follow: Step

    def lead(self, lead: Lead) -> None:
        self.may_fail(lead.tp)
        super().lead(lead)
        self.on_lead(lead)

    def follow(self, follow: Follow, state: ClusterState) -> None:
        super().follow(follow, state)
        self.on_follow(follow.tp)
