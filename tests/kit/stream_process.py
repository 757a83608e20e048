"""The driver of a stream into Parquet files, in a process of its own: to be killed, and started on the same checkpoint.

``python -m kit.stream_process DIR SERVERS TOPIC [drain]`` prints a line for each batch and runs until it is killed; to
``drain`` is to run to the end of the topic and to print what all the runs have written.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Self

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from kit import process_logs
from kit.spark import local_spark
from raylog.spark import stream

TESTS = Path(__file__).parents[1]
BATCH, RESULT = "batch ", "result "
MOST_PER_BATCH = {False: 100, True: 10_000}
"""Small batches, so that a process dies in the middle of many; large ones to drain the topic."""


class StreamProcess:
    """A driver that runs; leaving the ``with`` kills it, its JVM and its workers."""

    def __init__(self, directory: Path, servers: str, topic: str, *mode: str) -> None:
        self.errors = Path(mkdtemp(dir=directory)) / "errors"
        process_logs.watch(self.errors.parent, self.errors.name)
        with self.errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kit.stream_process", str(directory), servers, topic, *mode],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": str(TESTS)},
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def line(self, start: str) -> str:
        """What follows ``start`` in the next line that begins so. AssertionError when there is none."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(start):
                return line.removeprefix(start).strip()
        raise AssertionError(f"the driver ended:\n{self.errors.read_text()[-4_000:]}")

    def kill(self, *, whole: bool = True) -> None:
        """SIGKILL for the driver with its JVM and workers, or for the driver alone; and wait until all are gone."""
        if self._process.stdout is None or self._process.stdout.closed:
            return
        process_logs.forget(self.errors.parent)
        if whole:
            with suppress(ProcessLookupError):  # all of them have ended by themselves
                os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()
        with self._process.stdout as lines:  # all of them have it, so it ends with the last one
            for _ in lines:
                pass
        self._process.wait()

    def ended(self) -> bool:
        """Whether it has ended by itself."""
        return self._process.poll() is not None


def _run(spark: SparkSession, directory: Path, servers: str, topic: str, *, drain: bool) -> None:
    frame = stream(
        spark,
        subscribe=topic,
        bootstrap_servers=servers,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=MOST_PER_BATCH[drain],
        columns=["value", "partition", "offset"],
    )
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(directory / "checkpoint"))
    query = (writer.trigger(availableNow=True) if drain else writer).start(str(directory / "rows"))
    last = None
    try:
        while not query.awaitTermination(0.05):  # type: ignore[arg-type]  (Spark takes fractions of a second)
            batch = query.lastProgress and query.lastProgress["batchId"]
            if batch != last:
                last = batch
                print(f"{BATCH}{batch}", flush=True)
    except StreamingQueryException as error:
        sys.exit(str(error))
    if drain:
        print(f"{RESULT}{json.dumps(_written(spark, directory))}", flush=True)


def _written(spark: SparkSession, directory: Path) -> dict[str, Any]:
    """Of all files that the sink's own log has."""
    number = sf.col("value").cast("string").cast("long")
    rows = spark.read.parquet(str(directory / "rows"))
    [total] = rows.select(
        sf.count("*").alias("rows"),
        sf.countDistinct("partition", "offset").alias("places"),
        sf.countDistinct(number).alias("values"),
        sf.sum(number).alias("sum"),
    ).collect()
    ends = {str(row["partition"]): row["end"] for row in rows.groupBy("partition").agg(_end()).collect()}
    return {**total.asDict(), "ends": ends}


def _end() -> Any:
    return (sf.max("offset") + 1).alias("end")


if __name__ == "__main__":
    _directory = Path(sys.argv[1])
    with local_spark(Path(mkdtemp(dir=_directory))) as _spark:
        _run(_spark, _directory, *sys.argv[2:4], drain="drain" in sys.argv[4:])
