"""Where a sink writes its plans and rows down: a directory of any file system that Spark knows.

``<batch>.plan`` and ``<batch>.done`` are JSON and come into being whole, and only if they aren't there, as Spark's own
checkpoint files do (``CheckpointFileManager``); ``rows-<batch>-<random>`` are directories of Parquet files.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from raylog.spark.scala_objects import scala_object
from raylog.spark.sink_plan import BatchPlan, Done

_NAME = re.compile(
    r"(?P<batch>\d+)\.(?P<kind>plan|done)"
    r"|rows-(?P<rows_of>\d+)-\w+"
    r"|\.(?P<begun>\d+)\.(?:plan|done)\.[\w-]+\.tmp"  # by one who died, or came second
)
_EXISTS = "FileAlreadyExistsException"


class HadoopStore:
    """:class:`~raylog.spark.sink_batch.BatchStore` in ``directory``, a URI or path for Hadoop; made when missing."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        context: Any = spark.sparkContext
        session: Any = spark._jsparkSession
        self._jvm = context._jvm
        managers = scala_object(self._jvm.org.apache.spark.sql.execution.streaming, "CheckpointFileManager")
        self.directory = directory
        self._files = managers.create(self._path(), session.sessionState().newHadoopConf())
        if not self._files.exists(self._path()):
            self._files.mkdirs(self._path())

    def rows_directory(self, batch_id: int) -> str:
        """A directory for the batch's rows that nobody else has."""
        return f"{self.directory}/rows-{batch_id}-{uuid.uuid4().hex}"

    def files_of(self, directory: str) -> list[str]:
        """The names of the Parquet files in it; none when it isn't there."""
        path = self._jvm.org.apache.hadoop.fs.Path(directory)
        return sorted(name for name in self._names(path) if name[0] not in "._") if self._files.exists(path) else []

    def last_done(self) -> Done | None:
        """See BatchStore."""
        marks = [int(found["batch"]) for found in self._ours() if found["kind"] == "done"]
        return Done.from_json(self._read(f"{max(marks)}.done")) if marks else None

    def plan(self, batch_id: int) -> BatchPlan | None:
        """See BatchStore."""
        name = f"{batch_id}.plan"
        return BatchPlan.from_json(self._read(name)) if self._files.exists(self._path(name)) else None

    def create_plan(self, plan: BatchPlan) -> bool:
        """See BatchStore."""
        return self._create(f"{plan.batch_id}.plan", plan.to_json())

    def mark_done(self, done: Done) -> None:
        """See BatchStore."""
        self._create(f"{done.batch_id}.done", done.to_json())

    def sweep(self, done: Done) -> None:
        """See BatchStore."""
        for found in self._ours():
            batch_id = int(found["batch"] or found["rows_of"] or found["begun"])
            if batch_id < done.batch_id or (found["rows_of"] and batch_id == done.batch_id):
                self._files.delete(self._path(found[0]))

    def _ours(self) -> Iterator[re.Match[str]]:
        for name in self._names(self._path()):
            found = _NAME.fullmatch(name)
            if found is not None:
                yield found

    def _names(self, path: Any) -> list[str]:
        return [status.getPath().getName() for status in self._files.list(path)]

    def _path(self, name: str = "") -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.directory}/{name}" if name else self.directory)

    def _read(self, name: str) -> str:
        stream = self._files.open(self._path(name))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
        finally:
            stream.close()

    def _create(self, name: str, text: str) -> bool:
        """Whether it was created; False when it was there."""
        stream = self._files.createAtomic(self._path(name), False)
        try:
            stream.write(text.encode())
            stream.close()
        except Py4JJavaError as error:
            stream.cancel()
            if _EXISTS in error.java_exception.getClass().getName():
                return False
            raise
        return True
