"""How a file gets into a partition's directory: whole, once, and with nothing of the dead left."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from pyarrow import parquet

from raylog.protocol.ids import Offset, PartitionIndex, TopicId, TopicName, TopicPartition
from raylog.spark.exports.files import Coverage, Disk, PartitionDirectory, sweep, temporary_file
from raylog.spark.exports.plan import ExportRefused

TP = TopicPartition(TopicName("clicks"), PartitionIndex(3))
COVERAGE = Coverage(TP, TopicId(UUID(int=7)), Offset(0), Offset(4), Offset(9))


@pytest.fixture
def directory(tmp_path: Path) -> PartitionDirectory:
    found = PartitionDirectory.below(tmp_path, TP)
    found.path.mkdir(parents=True)
    return found


def publish(directory: PartitionDirectory, coverage: Coverage = COVERAGE, values: int = 5) -> bool:
    schema = pa.schema([("value", pa.int64())]).with_metadata(coverage.metadata())
    with temporary_file(directory.path, directory.disk) as (file, path):
        parquet.write_table(pa.table([list(range(values))], schema=schema), file)
        return directory.publish(file, path, coverage.base)


def names(directory: PartitionDirectory) -> list[str]:
    return sorted(path.name for path in directory.path.iterdir())


def test_a_file_tells_what_it_covers(directory: PartitionDirectory) -> None:
    assert directory.last() is None
    assert publish(directory)
    assert publish(directory, replace(COVERAGE, base=Offset(9), first=Offset(9), next=Offset(20)), values=0)
    assert names(directory) == ["00000000000000000000.parquet", "00000000000000000009.parquet"]
    assert directory.path.name == "partition=3"
    last = directory.last()
    assert last is not None
    assert (last.coverage.tp, last.coverage.next, last.records) == (TP, 20, 0)
    assert (last.coverage.topic_id, last.size) == (COVERAGE.topic_id, last.path.stat().st_size)


def test_of_two_files_at_one_place_the_first_stays(directory: PartitionDirectory) -> None:
    assert publish(directory)
    assert not publish(directory, replace(COVERAGE, next=Offset(100)))
    last = directory.last()
    assert last is not None
    assert last.coverage.next == 9
    assert names(directory) == ["00000000000000000000.parquet"]


def test_a_file_that_is_none_of_an_export_is_named(directory: PartitionDirectory) -> None:
    publish(directory)
    directory.file_at(9).write_bytes(b"PAR1 and no more")
    with pytest.raises(ExportRefused, match=r"00009\.parquet is damaged.*remove this one"):
        directory.last()
    parquet.write_table(pa.table({"value": [1]}), directory.file_at(9))
    with pytest.raises(ExportRefused, match=r"00009\.parquet .* was not exported from a topic"):
        directory.last()


def test_only_the_temporary_files_of_the_dead_are_swept(directory: PartitionDirectory, tmp_path: Path) -> None:
    dead = directory.path / f".{'0' * 32}.tmp"
    dead.write_bytes(b"half a file")
    foreign = directory.path / ".notes.tmp"
    foreign.write_bytes(b"")
    with temporary_file(directory.path, Disk()) as (_, alive):
        assert sweep(tmp_path, Disk()) == 1
        assert alive.exists()
    assert names(directory) == [".notes.tmp"]


def test_a_file_that_was_swept_before_it_was_locked_is_made_again(directory: PartitionDirectory) -> None:
    class SweptOnce(Disk):
        swept = 0

        def lock(self, file: object) -> bool:
            if not self.swept:
                self.swept = sweep(directory.path, Disk())
            return super().lock(file)  # type: ignore[arg-type]

    disk = SweptOnce()
    with temporary_file(directory.path, disk) as (_, path):
        assert disk.swept == 1
        assert path.exists()
    assert names(directory) == []


def test_a_file_system_without_hard_links_is_refused(directory: PartitionDirectory) -> None:
    class NoLinks(Disk):
        def link(self, path: Path, name: Path) -> None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    with pytest.raises(ExportRefused, match="no hard links"):
        publish(replace(directory, disk=NoLinks()))
    assert names(directory) == []
