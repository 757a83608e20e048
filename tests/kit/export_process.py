"""Exports a partition in processes that die: ``python -m kit.export_process JOB``, a file with a pickled Job.

Each of them is forked off a process that has imported all and does nothing else.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from raylog.client.ranges.offset_ranges import OffsetRange
from raylog.spark.exports.files import Disk, sweep, topic_directory
from raylog.spark.exports.task import ExportTask, export_range


@dataclass(frozen=True)
class Job:
    """What is exported, and into how many directories at most, or by how many processes."""

    task: ExportTask
    wanted: OffsetRange
    at_once: int = 0
    """So many processes export into one directory, each in files of another length; 0: one that dies, and then one that
    doesn't, into each of many."""
    limit: int = 100


class DyingFile(io.FileIO):
    """A file each of whose writes, behind a buffer, is an operation."""

    def __init__(self, path: Path, step: Callable[[], None]) -> None:
        super().__init__(path, "x")
        self._step = step

    def write(self, data: Any) -> int:
        self._step()
        return super().write(data)


class DyingDisk(Disk):
    """A disk whose user is killed (SIGKILL) before operation ``dies_at``, counted from 0."""

    def __init__(self, dies_at: int) -> None:
        self._left = dies_at

    def _step(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1

    def create(self, path: Path) -> IO[bytes]:
        self._step()
        return io.BufferedWriter(DyingFile(path, self._step))

    def lock(self, file: IO[bytes]) -> bool:
        self._step()
        return super().lock(file)

    def sync(self, file: IO[bytes]) -> None:
        self._step()
        super().sync(file)

    def link(self, path: Path, name: Path) -> None:
        self._step()
        super().link(path, name)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def sync_directory(self, directory: Path) -> None:
        self._step()
        super().sync_directory(directory)


def export(task: ExportTask, wanted: OffsetRange, disk: Disk) -> None:
    """The range, as a run would: what the dead left is swept first."""
    topic = topic_directory(Path(task.root), wanted.tp.topic)
    topic.mkdir(parents=True, exist_ok=True)
    (topic / task.run).touch()
    sweep(topic, Disk())
    for _ in export_range(task, wanted, disk):
        pass


def forked(task: ExportTask, wanted: OffsetRange, disk: Disk) -> int:
    """The pid of a process that exports."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        export(task, wanted, disk)
        code = 0
    finally:
        os._exit(code)


def exit_code(pid: int) -> int:
    """Of a process that was forked here; minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(job: Job) -> None:
    """Print how many directories, or processes, there were; exit with 1 when one that was to export did not."""
    if job.at_once:
        tasks = [replace(job.task, max_records_per_file=job.task.max_records_per_file + n) for n in range(job.at_once)]
        pids = [forked(task, job.wanted, Disk()) for task in tasks]
        codes = [exit_code(pid) for pid in pids]
        print(len(codes))
        sys.exit(int(any(codes)))
    for number in range(job.limit):
        task = replace(job.task, root=f"{job.task.root}/{number}")
        died = exit_code(forked(task, job.wanted, DyingDisk(number)))
        if died not in (0, -signal.SIGKILL) or exit_code(forked(task, job.wanted, Disk())) != 0:
            sys.exit(f"operation {number}: {died}")
        if died == 0:
            print(number + 1)
            return
    sys.exit(f"still dying after {job.limit} operations")


if __name__ == "__main__":
    main(pickle.loads(Path(sys.argv[1]).read_bytes()))
