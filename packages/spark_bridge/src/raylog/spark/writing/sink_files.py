"""A sink's directory on any file system that Spark knows, by the means of Spark's own checkpoints."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from raylog.spark.scala_objects import scala_object

_EXISTS = "FileAlreadyExistsException"


class HadoopFiles:
    """:class:`~raylog.spark.writing.sink_store.Files` of ``directory``, a URI or path for Hadoop."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        context: Any = spark.sparkContext
        session: Any = spark._jsparkSession
        self._jvm = context._jvm
        managers = scala_object(self._jvm.org.apache.spark.sql.execution.streaming, "CheckpointFileManager")
        self.directory = directory
        self._manager = managers.create(self._path(), session.sessionState().newHadoopConf())

    def begin(self, name: str, text: str) -> bool:
        """See Files."""
        if self._manager.exists(self._path()):
            return False
        parent, own = posixpath.split(self.directory)
        made = self._jvm.org.apache.hadoop.fs.Path(f"{parent}/.{own}-{uuid.uuid4().hex}")
        self._manager.mkdirs(made)
        self._write(self._jvm.org.apache.hadoop.fs.Path(made, name), text)
        try:
            self._manager.renameTempFile(made, self._path(), False)
        except Py4JJavaError as error:
            self._manager.delete(made)
            if _EXISTS in error.java_exception.getClass().getName():
                return False
            raise
        return True

    def names(self) -> Sequence[str]:
        """See Files."""
        return self._names(self._path())

    def parquet_files(self, directory: str) -> Sequence[str]:
        """The names of those in ``directory``, in order; none when it isn't there."""
        names = self._names(self._jvm.org.apache.hadoop.fs.Path(directory))
        return sorted(name for name in names if name[0] not in "._")

    def read(self, name: str) -> str:
        """See Files."""
        stream = self._manager.open(self._path(name))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
        finally:
            stream.close()

    def create(self, name: str, text: str) -> bool:
        """See Files."""
        try:
            self._write(self._path(name), text)
        except Py4JJavaError as error:
            if _EXISTS in error.java_exception.getClass().getName():
                return False
            raise
        return True

    def delete(self, name: str) -> None:
        """See Files."""
        self._manager.delete(self._path(name))

    def _names(self, path: Any) -> list[str]:
        if not self._manager.exists(path):
            return []
        return [status.getPath().getName() for status in self._manager.list(path)]

    def _path(self, name: str = "") -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.directory}/{name}" if name else self.directory)

    def _write(self, path: Any, text: str) -> None:
        stream = self._manager.createAtomic(path, False)
        try:
            stream.write(text.encode())
            stream.close()
        except Py4JJavaError:
            stream.cancel()
            raise
