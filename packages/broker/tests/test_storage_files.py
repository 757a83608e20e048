"""The real FileSystem, and slices that outlive what they were cut from."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from kit.faulty_files import FailingFileSystem
from raylog.broker.storage.disk.files import PIECE_BYTES, RealFileSystem, read_bytes, remove_tree, write_atomically
from raylog.broker.storage.disk.slices import FileSlice
from raylog.protocol.ids import FilePosition

FS = RealFileSystem()


def test_reads_and_writes_by_position(tmp_path: Path) -> None:
    file = FS.open(tmp_path / "f", create=True)
    assert file.pwritev((b"abc", bytearray(b"def"), memoryview(b"ghi")), 2) == 9
    assert file.size() == 11
    assert file.pread(100, 1) == b"\0abcdefghi"
    file.truncate(4)
    assert file.pread(100, 0) == b"\0\0ab"
    file.fdatasync()
    file.close()
    with pytest.raises(FileNotFoundError):
        FS.open(tmp_path / "missing")


def test_short_write_goes_on_and_its_error_is_raised(tmp_path: Path) -> None:
    """The kernel writes what fits below the limit, and refuses the rest when it is asked again."""
    limit, (soft, hard) = 1 << 30, resource.getrlimit(resource.RLIMIT_FSIZE)
    file = FS.open(tmp_path / "f", create=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.pwritev((b"0" * 8, b"1" * 8), limit - 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.size() == limit
    file.close()


def test_a_slice_keeps_an_unlinked_file_open(tmp_path: Path) -> None:
    file = FS.open(tmp_path / "f", create=True)
    file.pwritev((b"0123456789",), 0)
    assert file.acquire()
    cut = FileSlice(file, FilePosition(3), 4)
    FS.unlink(tmp_path / "f")
    file.close()
    file.close()
    assert (len(cut), cut.read(), os.pread(cut.fileno(), 1, 0)) == (4, b"3456", b"0")
    fd = cut.fileno()
    cut.release()
    assert not file.acquire()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with pytest.raises(ValueError, match="released more often"):
        cut.release()


def test_one_lock_per_file(tmp_path: Path) -> None:
    first = FS.lock(tmp_path / ".lock")
    assert first is not None
    assert FS.lock(tmp_path / ".lock") is None
    os.close(os.open(tmp_path / ".lock", os.O_RDONLY))  # would end a POSIX lock
    assert FS.lock(tmp_path / ".lock") is None
    first.release()
    first.release()
    second = FS.lock(tmp_path / ".lock")
    assert second is not None
    second.release()


def test_small_files_are_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    assert read_bytes(FS, path) is None
    write_atomically(FS, path, b"long content")
    write_atomically(FS, path, b"short")
    assert read_bytes(FS, path) == b"short"
    failing = FailingFileSystem(FS)
    failing.fail("fdatasync", 5)
    with pytest.raises(OSError, match="Input/output error"):
        write_atomically(failing, path, b"never")
    assert read_bytes(FS, path) == b"short"


def test_directories(tmp_path: Path) -> None:
    FS.make_dirs(tmp_path / "a" / "b" / "c")
    FS.make_dirs(tmp_path / "a" / "b" / "c")
    (tmp_path / "a" / "b" / "c" / "f").touch()
    assert FS.list_dir(tmp_path / "a" / "b") == ["c"]
    remove_tree(FS, tmp_path / "a" / "b" / "c")
    assert not FS.exists(tmp_path / "a" / "b" / "c")


@pytest.mark.parametrize("sizes", [[PIECE_BYTES + 1], [1, 3 * PIECE_BYTES, 7], [PIECE_BYTES, PIECE_BYTES]])
def test_large_writes_land_whole_and_in_order(tmp_path: Path, sizes: list[int]) -> None:
    file = RealFileSystem().open(tmp_path / "f", create=True)
    buffers = [os.urandom(size) for size in sizes]
    assert file.pwritev(buffers, 5) == sum(sizes)
    assert (tmp_path / "f").read_bytes() == bytes(5) + b"".join(buffers)
    file.close()
