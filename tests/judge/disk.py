"""What is on a broker's disk when lives are over, as Kafka's DumpLogSegments reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from kit.kafka_java import dump_log

__all__ = ["batches_on_disk", "files_of_lives"]

DIRECTORY = re.compile(r"(l\d+)-\d+")
"""Of a partition of a topic that a life made."""
SEGMENT = re.compile(r"Dumping .*/([^/]+)/[^/]+")
PRODUCER = re.compile(r"producerId: (\d+)|crc: \d+")


def files_of_lives(root: Path, *suffixes: str) -> list[Path]:
    """The files with these suffixes of partitions that lives wrote to."""
    files = (file for file in root.rglob("*") if DIRECTORY.fullmatch(file.parent.name) and file.suffix in suffixes)
    return sorted(file for file in files if file.stat().st_size)


def batches_on_disk(root: Path) -> dict[str, list[str]]:
    """Of each topic, each batch and each record as a line, its producers numbered as they come."""
    found: dict[str, list[str]] = {}
    into: list[str] = []
    for line in dump_log(*files_of_lives(root, ".log")).splitlines():
        if begun := SEGMENT.fullmatch(line):
            into = found.setdefault(begun[1], [])
        elif line.startswith(("baseOffset:", "| offset:")):
            into.append(line)
    by_topic = groupby(sorted(found), key=lambda name: name.rpartition("-")[0])
    return {
        topic: list(_numbered(line for name in names for line in (name, *found[name]))) for topic, names in by_topic
    }


def _numbered(lines: Iterator[str]) -> Iterator[str]:
    """A batch's checksum hangs on its producer's id."""
    known: dict[str, int] = {}

    def told(match: re.Match[str]) -> str:
        return f"producer {known.setdefault(match[1], len(known))}" if match[1] else "crc"

    for line in lines:
        yield PRODUCER.sub(told, line)
