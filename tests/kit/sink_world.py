"""What a sink's process leaves behind, and how it may die: files in memory, steps that are counted, rows of batches."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from raylog.spark.writing.sink_batch import Staged
from raylog.spark.writing.sink_store import SinkStore

T = TypeVar("T")


class Death(BaseException):
    """The process is gone."""


def die() -> None:
    raise Death


class Life:
    """A process that dies at its step number ``ends``, or meets what ``happens`` there; None: neither."""

    def __init__(self, ends: int | None = None, happens: Callable[[], None] = die) -> None:
        self._left = ends
        self._happens = happens

    def step(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left == -1:
                self._happens()

    def around(self, act: Callable[[], T]) -> T:
        """``act``, with a step before and one behind."""
        self.step()
        answer = act()
        self.step()
        return answer


class Disk:
    """The sink's directory, which stays when a process dies."""

    def __init__(self) -> None:
        self.exists = False
        self.texts: dict[str, str] = {}
        """Plans and marks."""
        self.rows: dict[str, dict[str, list[bytes]]] = {}
        """Values of rows, by directory and file."""

    def names(self) -> list[str]:
        """Of all that is in it."""
        return [*self.texts, *self.rows]

    def delete(self, name: str) -> None:
        self.texts.pop(name, None)
        self.rows.pop(name, None)


class DiskFiles:
    """:class:`~raylog.spark.writing.sink_store.Files` on the disk."""

    directory = "sink"

    def __init__(self, disk: Disk, life: Life) -> None:
        self._disk = disk
        self._life = life

    def begin(self, name: str, text: str) -> bool:
        if self._disk.exists:
            return False

        def begin() -> None:
            self._disk.exists = True
            self._disk.texts[name] = text

        self._life.around(begin)
        return True

    def names(self) -> Sequence[str]:
        return self._disk.names()

    def read(self, name: str) -> str:
        return self._disk.texts[name]

    def create(self, name: str, text: str) -> bool:
        return self._life.around(lambda: self._disk.texts.setdefault(name, text)) == text

    def delete(self, name: str) -> None:
        self._life.around(lambda: self._disk.delete(name))


class BatchFiles:
    """The rows of one batch, in files that differ each time they are computed anew."""

    def __init__(
        self, topic: str, batch_id: int, disk: Disk, life: Life, chance: random.Random, *, rows: int, files: int
    ) -> None:
        self.topic, self.batch_id = topic, batch_id
        self._disk, self._life, self._chance = disk, life, chance
        self._rows, self._files = rows, files

    def stage(self) -> Staged:
        values = values_of(self.batch_id, self._rows)
        self._chance.shuffle(values)
        cuts = sorted(self._chance.sample(range(1, self._rows), self._files - 1))
        directory = SinkStore(DiskFiles(self._disk, self._life), self.topic).rows_directory(self.batch_id)
        files = self._disk.rows[directory.rpartition("/")[2]] = {}
        for number, (start, end) in enumerate(itertools.pairwise([0, *cuts, self._rows])):
            self._life.around(lambda name=f"part-{number}", part=values[start:end]: files.update({name: part}))
        return Staged(directory, sorted(files), self._rows, [self.topic])

    def staged(self, directory: str, name: str) -> list[bytes]:
        """The rows of a file. Raises FileNotFoundError."""
        try:
            return self._disk.rows[directory.rpartition("/")[2]][name]
        except KeyError:
            raise FileNotFoundError(f"{directory}/{name} is gone") from None


def values_of(batch_id: int, rows: int) -> list[bytes]:
    """Each row of a batch."""
    return [b"%d-%d" % (batch_id, number) for number in range(rows)]
