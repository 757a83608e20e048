"""A client reads slowly while its records are deleted, truncated away, and others written (RELIABILITY, row 19)."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.machine import scaled
from kit.partitions import NOW, TP, Shelf, append, open_shelf
from kit.sending import send_all
from raylog.broker.net.output import SendFailed
from raylog.broker.storage.disk.slices import FileSlice
from raylog.broker.storage.log.truncation import truncate_to
from raylog.protocol.ids import Offset, TimestampMs

VALUE_BYTES = 50_000
COUNT = 40


def filled(path: Path) -> Shelf:
    shelf = open_shelf(path, topic={"segment.bytes": 400_000, "retention.ms": 1000})
    for n in range(COUNT):
        append(shelf.partition, os.urandom(VALUE_BYTES), timestamps=[NOW + n])
    return shelf


def slices(shelf: Shelf) -> list[FileSlice]:
    """All of the log, as fetches would get it."""
    found, offset = [], 0
    while offset < shelf.partition.log_end_offset:
        data = shelf.partition.read(Offset(offset), 10 << 20).data
        assert data is not None
        found.append(data)
        offset = next((s.base_offset for s in shelf.partition.log.segments if s.base_offset > offset), COUNT)
    return found


def retention(shelf: Shelf) -> None:
    shelf.dirs.maintain(NOW, 0)
    shelf.dirs.maintain(TimestampMs(NOW + 10**7), 10**7)
    assert shelf.partition.log_start_offset == COUNT


def delete_records(shelf: Shelf) -> None:
    shelf.partition.delete_records(Offset(COUNT - 1))
    shelf.partition.save_start()


def delete_topic(shelf: Shelf) -> None:
    shelf.partition.role.resign()
    shelf.dirs.delete(TP)


def cut_and_go_on(shelf: Shelf, offset: int) -> None:
    """Segments go, or are cut, and others take their offsets and names."""
    truncate_to(shelf.partition.log, Offset(offset), NOW)
    for n in range(COUNT):
        append(shelf.partition, bytes([n + 1]) * VALUE_BYTES)


def truncate(shelf: Shelf) -> None:
    cut_and_go_on(shelf, 3)


def truncate_all(shelf: Shelf) -> None:
    cut_and_go_on(shelf, 0)


@contextlib.contextmanager
def slow_reader() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A sender's and a reader's socket with little room between them."""
    sender, reader = socket.socketpair()
    with sender, reader:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        reader.settimeout(scaled(5))
        yield sender, reader


@pytest.mark.parametrize("change", [retention, delete_records, delete_topic, truncate, truncate_all])
def test_a_slow_send_ends_and_sends_nothing_else(
    tmp_path: Path, change: Callable[[Shelf], None], record_property: Callable[[str, object], None]
) -> None:
    shelf = filled(tmp_path)
    expected = [data.read() for data in slices(shelf)]
    for data in (found := slices(shelf)):
        assert data.length
    ended: list[BaseException | None] = []

    def send(sender: socket.socket, data: FileSlice) -> None:
        try:
            send_all(sender, [b"head", data], 30)
            ended.append(None)
        except SendFailed as error:
            ended.append(error)
        finally:
            sender.shutdown(socket.SHUT_WR)

    with contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(slow_reader()) for _ in found]
        threads = [
            threading.Thread(target=send, args=(sender, data)) for (sender, _), data in zip(pairs, found, strict=True)
        ]
        for thread in threads:
            thread.start()
        begun = [reader.recv(4 + 1000, socket.MSG_WAITALL) for _, reader in pairs]
        change(shelf)
        rest = [b"".join(iter(lambda reader=reader: reader.recv(1 << 16), b"")) for _, reader in pairs]
        for thread in threads:
            thread.join(scaled(10))
            assert not thread.is_alive()
    whole = 0
    for start, end, truth in zip(begun, rest, expected, strict=True):
        got = (start + end)[4:]
        whole += got == truth
        if change is truncate:
            # the rest of the page in which a file was cut may read as zeros, and the batch's checksum is wrong then
            agree = next((n for n, (a, b) in enumerate(zip(got, truth, strict=False)) if a != b), len(got))
            assert not any(got[agree:]), "other bytes were sent than were there"
        else:
            assert got == truth
    assert len(ended) == len(found)
    assert whole == len(found) or change is truncate, "what a slice holds is there until it is released"
    assert all(end is None for end in ended) == (whole == len(found)), "a send that was cut short says so"
    record_property("fetches checked, sent whole", (len(found), whole))
    shelf.dirs.close()
