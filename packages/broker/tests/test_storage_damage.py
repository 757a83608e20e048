"""Bytes flipped and files cut on the disk: nothing wrong is served, and what is missing is told."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.faulty_files import LossyFileSystem
from kit.forms import some
from kit.partitions import NOW, Shelf, append, lead, open_shelf
from raylog.broker.partition.partition import Partition
from raylog.broker.storage.disk.checkpoint import decode_topic_id
from raylog.protocol.errors import CorruptMessage, InconsistentTopicId, OffsetOutOfRange, StorageError
from raylog.protocol.ids import Offset, TimestampMs
from raylog.protocol.records import decode_batches

DIR = Path("/disk/logs")
TOPIC = {"segment.bytes": 500, "index.interval.bytes": 0, "retention.ms": -1}
COUNT, START = 24, 5

Facts = dict[str, object]
"""What a client can find out, each by a name; an error's type where it is refused."""


def fill(*, clean: bool) -> LossyFileSystem:
    """A disk after a stop: several segments, two epochs, an idempotent producer, deleted records."""
    fs = LossyFileSystem()
    shelf = open_shelf(DIR, fs=fs, topic=TOPIC, epoch=1)
    for n in range(COUNT):
        if n == COUNT // 2:
            lead(shelf.partition, 3)
        times = [NOW + 10 * n, NOW + 10 * n + (300 if n == 6 else 5)]
        append(shelf.partition, b"%d" % n, b"%d" % n, timestamps=times, producer=(9, 0, 2 * n))
    shelf.partition.delete_records(Offset(START))
    shelf.partition.save_start()
    if clean:
        shelf.dirs.close()
    else:
        shelf.partition.flush()
        shelf.dirs.dirs[0].checkpoint()
        shelf.dirs.abandon()
    return fs


def asked(action: Callable[[], object]) -> object:
    try:
        return action()
    except (CorruptMessage, StorageError, OffsetOutOfRange) as error:
        return type(error).__name__


def read(partition: Partition, offset: int) -> object:
    """The records of the batch at an offset."""
    info = partition.read(Offset(offset), 1)
    if info.data is None:
        return None
    try:
        return [(record.offset, record.timestamp, record.value) for record in decode_batches(info.data.read())]
    finally:
        info.data.release()


def facts_of(shelf: Shelf) -> Facts:
    partition = shelf.partition
    facts: Facts = {"start": partition.log_start_offset, "end": partition.log_end_offset}
    for offset in range(START, 2 * COUNT):
        facts[f"offset {offset}"] = asked(lambda offset=offset: read(partition, offset))
    for n in range(0, 2 * COUNT, 3):
        time = TimestampMs(NOW + 5 * n + 1)
        facts[f"time {n}"] = asked(lambda time=time: partition.offset_for_timestamp(time))
    facts["newest"] = asked(partition.max_timestamp_offset)
    facts["epochs"] = partition.log.epochs.rows()
    facts["times"] = [segment.max_timestamp for segment in partition.log.segments]
    last = partition.log.producers
    facts["producers"] = [(p.id, p.batches[-1].last_sequence) for p in last if p.batches]
    return facts


def files(fs: LossyFileSystem) -> Iterator[Path]:
    for directory in (DIR, DIR / "t-0"):
        for name in fs.list_dir(directory):
            path = directory / name
            if path.name != "t-0" and not name.startswith("."):
                yield path


def damaged(template: LossyFileSystem, path: Path, damage: Callable[[bytearray], None]) -> LossyFileSystem:
    fs = copy.deepcopy(template)
    damage(fs._dir(path.parent).entries[path.name].data)  # type: ignore[union-attr]
    return fs


def damages(size: int) -> Iterator[Callable[[bytearray], None]]:
    """A flipped bit and a changed byte at many places, and cuts at many lengths."""

    def xor(position: int, mask: int) -> Callable[[bytearray], None]:
        def change(data: bytearray) -> None:
            data[position] ^= mask

        return change

    step = max(size // 30, 1)
    for position in range(0, size, step):
        yield xor(position, 1 << (position % 8))
        yield xor(position, 0x5A)
    for length in range(0, size, max(size // 12, 1)):
        yield lambda data, length=length: data.__delitem__(slice(length, None))  # type: ignore[misc]


@pytest.mark.parametrize("clean", [True, False])
def test_damage_is_never_served_and_always_told(
    clean: bool, caplog: pytest.LogCaptureFixture, record_property: Callable[[str, object], None]
) -> None:
    """Each second damage for a change, all at night."""
    template = fill(clean=clean)
    sound = open_shelf(DIR, fs=copy.deepcopy(template), topic=TOPIC, epoch=3)
    truth = facts_of(sound)
    sound.dirs.abandon()
    tried: Counter[str] = Counter()
    told: Counter[str] = Counter()
    harmless: Counter[str] = Counter()
    silent: list[str] = []
    for path in files(template):
        kind = path.suffix or path.name
        size = len(template._dir(path.parent).entries[path.name].data)  # type: ignore[union-attr]
        for number, damage in some([*enumerate(damages(size))], 2):
            tried[kind] += 1
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                try:
                    shelf = open_shelf(DIR, fs=damaged(template, path, damage), topic=TOPIC, epoch=3)
                except (StorageError, InconsistentTopicId):
                    told[kind] += 1
                    continue
                facts = facts_of(shelf)
                shelf.dirs.abandon()
            differing = {name for name in truth if facts[name] != truth[name]}
            wrong = {name for name in differing if not isinstance(facts[name], str)}
            if not differing:
                harmless[kind] += 1
            elif caplog.records or not wrong:
                told[kind] += 1
            else:
                silent.append(f"{path.name} {number}: {sorted(differing)[:4]}")
            served = {name for name in wrong if name.startswith("offset") and facts[name] is not None}
            assert not served, f"{path.name} {number}: {served} served wrongly"
    lines = [f"{kind}: {tried[kind]} tried, {told[kind]} told, {harmless[kind]} without effect" for kind in tried]
    record_property("damage", "; ".join(lines))
    assert not silent, silent


def test_a_damaged_meta_properties_is_refused_or_has_an_id_all_the_same(tmp_path: Path) -> None:
    """An id that cannot be read is as good as lost: the directory gets another, and so is in no in-sync set."""
    open_shelf(tmp_path).dirs.close()
    path = tmp_path / "meta.properties"
    whole = path.read_bytes()
    ids = set()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            shelf = open_shelf(tmp_path)
        except StorageError:
            continue
        [directory_id] = shelf.dirs.directory_ids().values()
        ids.add(decode_topic_id(directory_id))
        shelf.dirs.close()
    assert len(ids) > 2
