"""Kafka's DumpLogSegments reads our files: segments of every codec, both indexes, producer snapshots."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit import kafka_java
from kit.clients import Raylog, Row
from kit.cluster import InProcessCluster
from kit.demanded import java_left_out
from raylog.protocol.records import Codec

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(java_left_out(), reason="java and mvn are not installed"),
]

PER_ROUND = 20
ROUNDS = 8
FINE = re.compile(
    r"Dumping .*|Log starting offset: \d+"
    r"|baseOffset: .* isvalid: true|\| offset: .*"  # a batch, a record
    r"|offset: \d+ position: \d+|timestamp: \d+ offset: \d+"  # an index's entries
    r"|producerId: .*"
)
"""Lines by which DumpLogSegments finds nothing wrong. What it does find stands in other lines."""


def complaints(*files: Path) -> list[str]:
    return [line for line in kafka_java.dump_log(*files).splitlines() if not FINE.fullmatch(line)]


def test_kafka_finds_nothing_wrong_with_our_files(tmp_path: Path) -> None:
    """Segments of 16 KB with an index entry a KB: several of each kind of file."""
    written = 0
    with InProcessCluster(
        tmp_path, config={"log.segment.bytes": "16384", "log.index.interval.bytes": "1024"}
    ) as cluster:
        cluster.create_topic("dumped")
        for codec in list(Codec) * ROUNDS:
            rows: list[Row] = [
                (b"k%d" % n, b"value %d " % n * 20, [("h", b"x")]) for n in range(written, written + PER_ROUND)
            ]
            Raylog().write(cluster.bootstrap_servers, "dumped", 0, rows, codec.name.lower())
            written += PER_ROUND
    files = sorted(file for file in tmp_path.glob("broker-0/**/dumped-0/*") if file.stem.isdigit())
    assert {file.suffix for file in files} == {".log", ".index", ".timeindex", ".snapshot"}
    assert {file.name: found for file in files if (found := complaints(file))} == {}

    segments = [file for file in files if file.suffix == ".log"]
    logs = "".join(kafka_java.dump_log(file) for file in segments)
    assert re.findall(r"^\| offset: (\d+)", logs, re.MULTILINE) == [str(n) for n in range(written)]
    assert re.findall(r"key: (k\d+)", logs) == [f"k{n}" for n in range(written)]
    assert set(re.findall(r"compresscodec: (\w+)", logs)) == {codec.name.lower() for codec in Codec}

    flip(segments[0], 100)
    assert any("isvalid: false" in line for line in complaints(segments[0]))
    index = segments[1].with_suffix(".index")
    flip(index, 3)
    assert complaints(index)


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x40
    file.write_bytes(data)
