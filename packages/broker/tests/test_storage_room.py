"""Room on the disk for a growing log file: set aside in time, never part of the file, given back."""

from __future__ import annotations

import os
from pathlib import Path

from raylog.broker.storage.disk.files import RealFile, RealFileSystem
from raylog.broker.storage.disk.room import AHEAD_BYTES, FROM_BYTES, Room

CHUNK = bytes(64 << 10)


def on_disk(path: Path) -> int:
    return os.stat(path).st_blocks * 512


def grow(file: RealFile, room: Room, until: int) -> None:
    while (size := file.size()) < until:
        room.make(size, len(CHUNK))
        file.pwritev((CHUNK,), size)


def test_a_busy_file_has_room_ahead_and_gives_it_back(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = RealFileSystem().open(path, create=True)
    assert isinstance(file, RealFile)
    room = Room(file)
    try:
        grow(file, room, FROM_BYTES)
        file.fdatasync()
        assert on_disk(path) <= FROM_BYTES + len(CHUNK)  # a quiet file has none
        for _ in range(3):
            grow(file, room, file.size() + AHEAD_BYTES)
            file.fdatasync()
        size = file.size()
        assert size == FROM_BYTES + 3 * AHEAD_BYTES
        grow(file, room, size + len(CHUNK))
        file.fdatasync()
        assert file.size() == size + len(CHUNK)
        assert on_disk(path) > file.size() + AHEAD_BYTES // 2
        room.give_back(file.size())
        assert file.size() == size + len(CHUNK)
        assert on_disk(path) <= file.size() + 4096
    finally:
        file.close()
