"""Where a sink writes its marks and rows down: a directory of the sink and query alone.

``<batch>.plan`` and ``<batch>.next`` are JSON and come into being whole, and only if they aren't there;
``rows-<batch>-<random>`` are directories of Parquet files. The sink's directory comes into being with its first mark in
it: one without a mark was not left by a process that died.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from raylog.client.ranges.offset_ranges import DataLoss
from raylog.spark.writing.sink_batch import Mark
from raylog.spark.writing.sink_plan import BatchPlan, is_of_sink, next_to_json

_NAME = re.compile(
    r"(?P<batch>\d+)\.(?P<kind>plan|next)"
    r"|rows-(?P<rows_of>\d+)-\w+"
    r"|\.(?P<begun>\d+)\.(?:plan|next)\.[\w-]+\.tmp"  # by one who died, or came second
)


class Files(Protocol):
    """The directory, as a file system has it."""

    directory: str
    """What users know it by."""

    def begin(self, name: str, text: str) -> bool:
        """Let the directory come into being with this file in it; False when it is there."""

    def names(self) -> Sequence[str]:
        """Of what is in it; none when it isn't there."""

    def read(self, name: str) -> str:
        """A file's text."""

    def create(self, name: str, text: str) -> bool:
        """Let the file come into being as a whole; False when it is there."""

    def delete(self, name: str) -> None:
        """Delete a file, or a directory with all in it, if it is there."""


class _Found(NamedTuple):
    name: str
    batch_id: int
    kind: str
    """plan, next, rows, or tmp."""


class SinkStore:
    """:class:`~raylog.spark.writing.sink_batch.BatchStore` of a sink to ``topic``; None: rows name their own."""

    def __init__(self, files: Files, topic: str | None) -> None:
        self._files = files
        self._topic = topic

    def rows_directory(self, batch_id: int) -> str:
        """A directory for the batch's rows that nobody else has."""
        return f"{self._files.directory}/rows-{batch_id}-{uuid.uuid4().hex}"

    def mark(self) -> Mark | None:
        """See BatchStore."""
        newest = max(self._marks(), key=lambda found: (found.batch_id, found.kind == "plan"), default=None)
        if newest is None:
            return None
        text = self._files.read(newest.name)
        if not is_of_sink(text, self._topic):
            raise ValueError(
                f"{self._files.directory} is a sink's to other topics than {self._topic or 'those that rows name'}: "
                "give each sink a location of its own"
            )
        return Mark(newest.batch_id, BatchPlan.from_json(text) if newest.kind == "plan" else None)

    def begin(self, batch_id: int) -> Mark:
        """See BatchStore."""
        if self._files.begin(f"{batch_id}.next", next_to_json(self._topic)):
            return Mark(batch_id, None)
        mark = self.mark()  # of another process that began meanwhile
        if mark is None:
            raise DataLoss(
                f"{self._files.directory} has no plan and no .next: somebody deleted it, and nobody can tell whether "
                f"records of batch {batch_id} were written; to write it whole create the empty file {batch_id}.next "
                "there"
            )
        return mark

    def create_plan(self, plan: BatchPlan) -> None:
        """See BatchStore."""
        self._files.create(f"{plan.batch_id}.plan", plan.to_json())

    def settle(self, batch_id: int) -> None:
        """See BatchStore."""
        for found in self._marks():
            if found.batch_id < batch_id or (found.kind == "next" and found.batch_id == batch_id):
                self._files.delete(found.name)

    def mark_next(self, batch_id: int) -> None:
        """See BatchStore."""
        self._files.create(f"{batch_id}.next", next_to_json(self._topic))

    def sweep(self, batch_id: int) -> None:
        """See BatchStore."""
        for found in self._found():
            if found.batch_id < batch_id or (found.kind == "rows" and found.batch_id == batch_id):
                self._files.delete(found.name)

    def write_again(self, batch_id: int) -> str:
        """See BatchStore."""
        return (
            f"to write batch {batch_id} whole, and what is still there of it twice, rename {batch_id}.plan in "
            f"{self._files.directory} to {batch_id}.next"
        )

    def _marks(self) -> Iterator[_Found]:
        return (found for found in self._found() if found.kind in ("plan", "next"))

    def _found(self) -> Iterator[_Found]:
        for name in self._files.names():
            match = _NAME.fullmatch(name)
            if match is not None:
                kind = match["kind"] or ("rows" if match["rows_of"] else "tmp")
                yield _Found(name, int(match["batch"] or match["rows_of"] or match["begun"]), kind)
