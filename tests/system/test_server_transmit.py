"""Replies over real sockets: bytes and file slices, whole or not at all."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.machine import scaled
from raylog.broker.net.transmit import COPY_BYTES, SendFailed, limit_sends, transmit
from raylog.broker.storage.disk.files import File, FileSlice, RealFileSystem
from raylog.protocol.ids import FilePosition


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        limit_sends(ours, 0.2)
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
    assert transmit(ours, parts, timeout=scaled(10)) == 700_005
    ours.shutdown(socket.SHUT_WR)
    reader.join()
    assert b"".join(got) == b"head" + content[3:700_003] + b"between" + content[100:105] + b"tail"


@pytest.mark.parametrize("length", [1, COPY_BYTES - 1, COPY_BYTES, COPY_BYTES + 1])
def test_small_slices_are_sent_as_well(
    pair: tuple[socket.socket, socket.socket], file: File, tmp_path: Path, length: int
) -> None:
    ours, theirs = pair
    content = (tmp_path / "log").read_bytes()
    assert transmit(ours, [b"head", cut(file, 7, length), b"tail"], timeout=scaled(10)) == length
    ours.shutdown(socket.SHUT_WR)
    got: list[bytes] = []
    read_all(theirs, got).join()
    assert b"".join(got) == b"head" + content[7 : 7 + length] + b"tail"


def test_sends_more_bytes_than_the_socket_takes_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    data = os.urandom(5 << 20)
    got: list[bytes] = []
    reader = read_all(theirs, got)
    transmit(ours, [data], timeout=scaled(10))
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
        transmit(ours, [b"head", part], timeout=scaled(10))


@pytest.mark.parametrize("sliced", [True, False])
def test_a_client_that_does_not_read_is_given_up(
    pair: tuple[socket.socket, socket.socket], file: File, sliced: bool
) -> None:
    ours, _ = pair
    part: bytes | FileSlice = cut(file, 0, 1 << 20) if sliced else bytes(8 << 20)
    with pytest.raises(SendFailed, match="send timeout"):
        transmit(ours, [part], timeout=0.2)


def test_a_client_that_left_is_an_error(pair: tuple[socket.socket, socket.socket], file: File) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(SendFailed):
        transmit(ours, [b"head", cut(file, 0, 1 << 20)], timeout=scaled(10))


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
            transmit(ours, parts, timeout=scaled(10))
    else:
        transmit(ours, parts, timeout=scaled(10))
    assert is_closed(file)
