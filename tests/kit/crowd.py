"""Many connections that behave badly, from a process of their own: ``python crowd.py HOST PORT KIND COUNT [TOPIC]``.

It writes a line when the crowd is there, and ends, or gives up, when stdin does. Kinds:

idle        each has asked one thing and is silent
half_open   each has sent the beginning of a request and nothing more
never_read  each asks for a large answer again and again, and reads none
slow_read   the same, but each reads a few KB now and then
storm       COUNT connections one after the other, a hundred open at a time, asking nothing
"""

from __future__ import annotations

import resource
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable

from kit.wire import fetch_request, request
from raylog.protocol.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from raylog.protocol.wire.primitives import ZERO_UUID

API_VERSIONS = 18
OPEN_AT_ONCE = 100
SLOW_BYTES, SLOW_PAUSE_S = 4096, 0.02

Address = tuple[str, int]


def connect(address: Address) -> socket.socket:
    return socket.create_connection(address, 30)


def receive(sock: socket.socket) -> None:
    """Read one whole answer."""
    (length,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
    assert len(sock.recv(length, socket.MSG_WAITALL)) == length


def asking_for_much(topic: str) -> bytes:
    parts = FetchTopic(topic, ZERO_UUID, [FetchPartition(0, 0, 1 << 20)])
    return fetch_request(12, FetchRequest(0, 1, [parts], 1 << 20))


def idle(address: Address, count: int, _: str) -> None:
    frame = request(API_VERSIONS, 3, client_software_name="crowd", client_software_version="1")
    crowd = []
    for _ in range(count):
        crowd.append(sock := connect(address))
        sock.sendall(frame)
        receive(sock)
    stay()


def half_open(address: Address, count: int, _: str) -> None:
    crowd = []
    for _ in range(count):
        crowd.append(sock := connect(address))
        sock.sendall(struct.pack(">i", 1 << 20) + bytes(1000))
    stay()


def never_read(address: Address, count: int, topic: str) -> None:
    frame = asking_for_much(topic)
    crowd = []
    for _ in range(count):
        crowd.append(sock := connect(address))
        sock.sendall(frame * 20)
    stay()


def slow_read(address: Address, count: int, topic: str) -> None:
    frame = asking_for_much(topic)
    crowd = []
    for _ in range(count):
        crowd.append(sock := connect(address))
        sock.sendall(frame * 20)

    def read_a_little() -> None:
        for sock in crowd:
            sock.recv(SLOW_BYTES)
        time.sleep(SLOW_PAUSE_S)

    stay(read_a_little)


def storm(address: Address, count: int, _: str) -> None:
    tell()
    crowd: deque[socket.socket] = deque()
    for _ in range(count):
        crowd.append(connect(address))
        if len(crowd) == OPEN_AT_ONCE:
            crowd.popleft().close()
    stay()


def tell() -> None:
    print("there", flush=True)


def stay(meanwhile: Callable[[], None] | None = None) -> None:
    """Tell that the crowd is there, and keep it until stdin ends."""
    tell()
    while not select.select([sys.stdin], [], [], 0 if meanwhile else None)[0]:
        if meanwhile:
            meanwhile()


if __name__ == "__main__":
    host, port, kind, number, *topics = sys.argv[1:]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kinds = {each.__name__: each for each in (idle, half_open, never_read, slow_read, storm)}
    kinds[kind]((host, int(port)), int(number), topics[0] if topics else "")
