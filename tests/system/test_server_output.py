"""Replies over real sockets: bytes and file slices, whole or not at all."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.machine import scaled
from kit.page_cache import is_dropped
from kit.sending import send_all
from kit.waiting import wait_until
from raylog.broker.net.output import COPY_BYTES, Output, SendFailed, Sent, warm
from raylog.broker.storage.disk.files import File, RealFileSystem
from raylog.broker.storage.disk.slices import FileSlice
from raylog.protocol.ids import FilePosition


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(scaled(10))
        yield ours, theirs


@pytest.fixture
def file(tmp_path: Path) -> Iterator[File]:
    (tmp_path / "log").write_bytes(bytes(range(256)) * 4096)
    file = RealFileSystem().open(tmp_path / "log")
    yield file
    file.close()


def cut(file: File, position: int, length: int) -> FileSlice:
    assert file.acquire()
    return FileSlice(file, FilePosition(position), length)


def read_all(sock: socket.socket, into: list[bytes]) -> threading.Thread:
    def run() -> None:
        while data := sock.recv(1 << 16):
            into.append(data)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def is_closed(file: File) -> bool:
    return not file.acquire()


def test_sends_parts_in_order(pair: tuple[socket.socket, socket.socket], file: File, tmp_path: Path) -> None:
    ours, theirs = pair
    content = (tmp_path / "log").read_bytes()
    got: list[bytes] = []
    reader = read_all(theirs, got)
    parts: list[bytes | FileSlice] = [b"head", cut(file, 3, 700_000), b"between", cut(file, 100, 5), b"tail"]
    send_all(ours, parts)
    ours.shutdown(socket.SHUT_WR)
    reader.join()
    assert b"".join(got) == b"head" + content[3:700_003] + b"between" + content[100:105] + b"tail"


@pytest.mark.parametrize("length", [1, COPY_BYTES - 1, COPY_BYTES, COPY_BYTES + 1])
def test_small_slices_are_sent_as_well(
    pair: tuple[socket.socket, socket.socket], file: File, tmp_path: Path, length: int
) -> None:
    ours, theirs = pair
    content = (tmp_path / "log").read_bytes()
    send_all(ours, [b"head", cut(file, 7, length), b"tail"])
    ours.shutdown(socket.SHUT_WR)
    got: list[bytes] = []
    read_all(theirs, got).join()
    assert b"".join(got) == b"head" + content[7 : 7 + length] + b"tail"


def test_sends_more_bytes_than_the_socket_takes_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    data = os.urandom(5 << 20)
    got: list[bytes] = []
    reader = read_all(theirs, got)
    send_all(ours, [data])
    ours.shutdown(socket.SHUT_WR)
    reader.join()
    assert b"".join(got) == data


@pytest.mark.parametrize("length", [5000, COPY_BYTES, COPY_BYTES + 1, 100_000])
def test_a_file_that_lost_its_end_fails_and_does_not_hang(
    pair: tuple[socket.socket, socket.socket], file: File, length: int
) -> None:
    ours, _ = pair
    part = cut(file, 1000, length)
    file.truncate(2000)
    with pytest.raises(SendFailed, match=f"lost the last {length - 1000} bytes"):
        send_all(ours, [b"head", part])


@pytest.mark.parametrize("sliced", [True, False])
def test_what_a_client_does_not_take_stays(
    pair: tuple[socket.socket, socket.socket], file: File, tmp_path: Path, sliced: bool
) -> None:
    ours, theirs = pair
    ours.setblocking(False)
    content = (tmp_path / "log").read_bytes()
    output = Output()
    output.add([b"head", cut(file, 0, 1 << 20) if sliced else content, b"tail"])
    while (sent := output.send(ours)) is Sent.MORE:
        pass
    assert (sent, bool(output)) == (Sent.FULL, True)
    got: list[bytes] = []
    while output:
        got.append(theirs.recv(1 << 16))
        output.send(ours)
    ours.shutdown(socket.SHUT_WR)
    read_all(theirs, got).join()
    assert b"".join(got) == b"head" + content + b"tail"


def test_what_is_not_in_the_page_cache_is_told_of_and_sent_once_it_was_read(
    pair: tuple[socket.socket, socket.socket], file: File, tmp_path: Path
) -> None:
    ours, theirs = pair
    content = (tmp_path / "log").read_bytes()
    os.fsync(file.fileno())
    wait_until(lambda: is_dropped(file), 10, "the page cache drops the file")
    ours.setblocking(False)
    output = Output()
    output.add([b"head", cut(file, 0, 100_000)])
    assert output.send(ours) is Sent.COLD
    part, position, end = output.cold()
    assert (position, end) == (0, 100_000)
    warm(part, position, end)
    output.warmed(end)
    assert output.send(ours) in (Sent.ALL, Sent.MORE)
    while output:
        output.send(ours)
    ours.shutdown(socket.SHUT_WR)
    got: list[bytes] = []
    read_all(theirs, got).join()
    assert b"".join(got) == b"head" + content[:100_000]


def test_hole_in_what_is_cached_is_found(pair: tuple[socket.socket, socket.socket], file: File) -> None:
    """Both ends are in the page cache, and the middle is not."""
    ours, _ = pair
    ours.setblocking(False)
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
    wait_until(lambda: is_dropped(file), 10, "the page cache drops the file")
    os.pread(file.fileno(), 1, 0)
    os.pread(file.fileno(), 1, (1 << 20) - 1)
    output = Output()
    output.add([cut(file, 0, 1 << 20)])
    assert output.send(ours, 1 << 20) is Sent.COLD
    output.release()


def test_parts_that_cannot_be_added_are_given_back(file: File) -> None:
    class Broken(FileSlice):
        __slots__ = ()

        def fileno(self) -> int:
            raise MemoryError

    assert file.acquire()
    output = Output()
    with pytest.raises(MemoryError):
        output.add([b"head", cut(file, 0, 10), Broken(file, FilePosition(0), 10), cut(file, 20, 10), b"tail"])
    output.release()
    file.close()
    assert is_closed(file)


def test_a_client_that_left_is_an_error(pair: tuple[socket.socket, socket.socket], file: File) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(SendFailed):
        send_all(ours, [b"head", cut(file, 0, 1 << 20)])


@pytest.mark.parametrize("fail", [True, False])
def test_slices_are_given_back_whatever_happens(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path, fail: bool
) -> None:
    ours, theirs = pair
    (tmp_path / "log").write_bytes(bytes(1000))
    file = RealFileSystem().open(tmp_path / "log")
    parts: list[bytes | FileSlice] = [b"head", cut(file, 0, 500), cut(file, 500, 500)]
    file.close()
    if fail:
        theirs.close()
        with pytest.raises(SendFailed):
            send_all(ours, parts)
    else:
        send_all(ours, parts)
    assert is_closed(file)
