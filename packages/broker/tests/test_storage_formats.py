"""The files, byte for byte as Kafka writes them."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from kit.partitions import TOPIC_ID, TP, append, batch, lead, open_shelf
from raylog.broker.storage.disk import checkpoint
from raylog.broker.storage.disk.files import RealFileSystem
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition

FS = RealFileSystem()


def test_offset_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / checkpoint.RECOVERY_POINTS
    offsets = {TopicPartition(TopicName("b-c"), PartitionIndex(10)): Offset(7), TP: Offset(2**40)}
    checkpoint.write_offsets(FS, path, offsets)
    assert path.read_bytes() == b"0\n2\nb-c 10 7\nt 0 1099511627776\n"
    assert checkpoint.read_offsets(FS, path) == offsets
    assert [p.name for p in tmp_path.iterdir()] == [checkpoint.RECOVERY_POINTS]


@pytest.mark.parametrize("damaged", [b"", b"1\n0\n", b"0\n2\nt 0 1\n", b"0\n1\nt 0\n", b"0\n1\nt 0 x\n", b"\xff"])
def test_damaged_checkpoint_is_told(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(damaged)
    with pytest.raises(CorruptMessage):
        checkpoint.read_offsets(FS, path)


def test_partition_metadata(tmp_path: Path) -> None:
    checkpoint.write_topic_id(FS, tmp_path, TOPIC_ID)
    path = tmp_path / "partition.metadata"
    kafkas = b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"
    assert path.read_bytes() == kafkas + b"crc: cecee288\n"
    assert checkpoint.read_topic_id(FS, tmp_path) == TOPIC_ID
    path.write_bytes(kafkas)
    assert checkpoint.read_topic_id(FS, tmp_path) == TOPIC_ID


def test_no_damage_to_partition_metadata_gives_another_topic_id(tmp_path: Path) -> None:
    """A log whose topic id is another would be set aside as a deleted topic's, and its replica be empty."""
    checkpoint.write_topic_id(FS, tmp_path, TOPIC_ID)
    path = tmp_path / "partition.metadata"
    whole = path.read_bytes()
    flipped = [
        whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :] for at in range(len(whole)) for mask in (1, 0x5A)
    ]
    for data in (*flipped, *(whole[:size] for size in range(len(whole)))):
        path.write_bytes(data)
        try:
            assert checkpoint.read_topic_id(FS, tmp_path) == TOPIC_ID, data
        except CorruptMessage:
            pass


@pytest.mark.parametrize("odd", ["", "AAECAwQFBgcICQoLDA0OD", "no id at all: 22 chars"])
def test_directory_id_that_cannot_be_read_is_made_anew(tmp_path: Path, odd: str) -> None:
    path = tmp_path / checkpoint.META_PROPERTIES
    checkpoint.write_properties(FS, path, {"directory.id": odd})
    shelf = open_shelf(tmp_path)
    [made] = shelf.dirs.directory_ids().values()
    shelf.dirs.close()
    properties = checkpoint.read_properties(FS, path)
    assert properties is not None
    assert properties["directory.id"] == made != odd
    assert checkpoint.decode_topic_id(made)


def test_a_log_directory_holds_what_kafka_expects(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path, topic={"segment.bytes": 200, "index.interval.bytes": 0})
    sizes = []
    for n in range(4):
        data = batch(b"%d" % n, b"x", timestamps=[1000 + n, 900], producer=(9, 3, 2 * n))
        sizes.append(len(data))
        shelf.partition.append(data, now_ms=1000)
    shelf.dirs.close(broker_epoch=5)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".kafka_cleanshutdown", ".lock", "log-start-offset-checkpoint", "meta.properties",
        "recovery-point-offset-checkpoint", "replication-offset-checkpoint", "t-0",
    ]  # fmt: skip
    assert (tmp_path / ".kafka_cleanshutdown").read_text() == '{"version": 0, "brokerEpoch": 5}'
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nt 0 8\n"
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\nt 0 8\n"
    properties = checkpoint.read_properties(FS, tmp_path / "meta.properties")
    assert properties is not None
    assert len(properties.pop("directory.id")) == 22
    assert properties == {"version": "0", "cluster.id": "cluster-of-tests", "broker.id": "1"}
    log = tmp_path / "t-0"
    assert sorted(p.name for p in log.iterdir()) == [
        "00000000000000000000.index", "00000000000000000000.log", "00000000000000000000.timeindex",
        "00000000000000000004.index", "00000000000000000004.log", "00000000000000000004.snapshot",
        "00000000000000000004.timeindex", "00000000000000000008.snapshot", "index-checksums",
        "leader-epoch-checkpoint", "partition.metadata",
    ]  # fmt: skip
    assert (log / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
    # an entry for the batch that begins more than the interval after the last entry: its last offset, its position
    assert (log / "00000000000000000000.index").read_bytes() == struct.pack(">ii", 3, sizes[0])
    assert (log / "00000000000000000000.timeindex").read_bytes() == struct.pack(">qi", 1001, 3)
    assert (log / "00000000000000000004.timeindex").read_bytes() == struct.pack(">qi", 1003, 3)
    entries = [struct.pack(">qhiqiqiq", 9, 3, last, last, 1, 1000, -1, -1) for last in (1, 3, 5, 7)]
    body = struct.pack(">i", 4) + b"".join(entries)
    assert (log / "00000000000000000008.snapshot").read_bytes() == struct.pack(">hI", 1, crc32c(body)) + body


def test_time_index_of_a_segment_without_index_entries(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path)
    append(shelf.partition, b"a", b"b", timestamps=[5, 4])
    shelf.dirs.close()
    assert (shelf.directory / "00000000000000000000.index").read_bytes() == b""
    assert (shelf.directory / "00000000000000000000.timeindex").read_bytes() == struct.pack(">qi", 5, 1)


def test_epochs_are_stamped_and_checkpointed(tmp_path: Path) -> None:
    shelf = open_shelf(tmp_path, epoch=3)
    append(shelf.partition, b"a", b"b")
    lead(shelf.partition, 5)
    append(shelf.partition, b"c")
    assert (shelf.directory / "leader-epoch-checkpoint").read_text() == "0\n2\n3 0\n5 2\n"
    data = (shelf.directory / "00000000000000000000.log").read_bytes()
    assert struct.unpack_from(">i", data, 12) == (3,)
    shelf.dirs.close()
