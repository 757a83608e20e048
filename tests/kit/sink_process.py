"""A streaming query into a sink, in a process of its own that tests kill: ``python -m kit.sink_process JOB``, JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from kit import process_logs
from kit.spark import local_spark
from raylog.spark import sink


@dataclass(frozen=True)
class SinkJob:
    """Lines of text files, one file a batch, into a topic."""

    bootstrap_servers: str
    topic: str
    lines: str
    """The directory of the files."""
    checkpoint: str
    location: str

    def prepared(self, directory: Path) -> SparkProcess:
        """A process that is to run it until all lines are written; Spark's files in ``directory``."""
        return SparkProcess(self, directory)


class SparkProcess:
    """The driver, its JVM and its Python workers."""

    def __init__(self, job: SinkJob, directory: Path) -> None:
        self._job = job
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._directory.mkdir()
        process_logs.watch(self._directory, "log")
        arguments = [json.dumps(asdict(self._job)), str(self._directory)]
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kit.sink_process", *arguments],
                cwd=Path(__file__).parent.parent, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def signal(self, number: int) -> None:
        """Send a signal to all of them, until none is left that has not got it."""
        seen: set[int] = set()
        while new := self._members() - seen:
            for pid in new:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            seen |= new

    def kill(self) -> None:
        """Kill all of them at once; does no harm when they don't run."""
        process_logs.forget(self._directory)
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()

    def wait(self, timeout_s: float) -> int:
        """The driver's exit code."""
        return self._started.wait(timeout_s)

    @property
    def running(self) -> bool:
        return self._started.poll() is None

    def log(self) -> str:
        """What it said last."""
        return (self._directory / "log").read_text(errors="replace")[-5_000:]

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "start it first"
        return self._process

    def _members(self) -> set[int]:
        """All processes of its session: Python workers are in process groups of their own."""
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if os.getsid(int(entry.name)) == self._started.pid:
                        found.add(int(entry.name))
                except ProcessLookupError:
                    pass
        return found


def main(job: SinkJob, directory: Path) -> None:
    # Small batches, one at a time: sending a batch of lines takes a while, in which the process can be killed.
    slowly = {"kafka.batch.size": 1_000, "kafka.max.in.flight.requests.per.connection": 1}
    to_topic = sink(topic=job.topic, location=job.location, bootstrap_servers=job.bootstrap_servers, **slowly)
    with local_spark(directory) as spark:
        frame = spark.readStream.option("maxFilesPerTrigger", 1).text(job.lines).repartition(3)
        query = frame.writeStream.foreachBatch(to_topic).trigger(availableNow=True)
        query.option("checkpointLocation", job.checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main(SinkJob(**json.loads(sys.argv[1])), Path(sys.argv[2]))
