"""The processes that the benchmark's load talks to: a broker, or the machine's own limits without one.

Run as ``python serve.py broker DIR`` or ``python serve.py limits FILE``. Each writes one JSON line when it is ready,
and one for every line on stdin (a broker takes «create TOPIC PARTITIONS» and «delete TOPIC» there): the CPU seconds and
the resident memory of the process. It ends when stdin does.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from kit.cluster import InProcessCluster
from raylog.broker.launch.actor import SWITCH_INTERVAL_S
from raylog.protocol.ids import TopicName

READ_BYTES = 64 * 1024
"""As much as the load sends at once."""

SENDFILE_BYTES = 1024 * 1024


def usage() -> dict[str, float]:
    """CPU seconds of all threads, user and system, and resident bytes."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {"cpu_s": spent.ru_utime + spent.ru_stime, "rss": pages * os.sysconf("SC_PAGE_SIZE")}


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def obey_until_stdin_ends(commands: dict[str, Callable[..., object]]) -> None:
    for line in sys.stdin:
        if line.strip():
            command, *arguments = line.split()
            commands[command](*arguments)
        tell(**usage())


def serve_broker(directory: str) -> None:
    """One broker with its real composition, over a metadata store in memory, in the process layout of an actor."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with InProcessCluster(Path(directory)) as cluster:

        def create(topic: str, partitions: str = "1") -> None:
            cluster.create_topic(topic, partitions=int(partitions))

        def delete(topic: str) -> None:
            [deleted] = cluster.controller.topics.delete_topics([TopicName(topic)], timeout_ms=30_000)
            assert deleted == topic, deleted

        host, port = cluster.bootstrap_servers.split(":")
        tell(host=host, port=int(port))
        obey_until_stdin_ends({"create": create, "delete": delete})


def serve_limits(path: str) -> None:
    """Three bare servers: one reads and drops, one sends a file, one echoes."""
    addresses = {}
    for name, handle in (("sink", sink), ("sendfile", send_file_to(path)), ("echo", echo)):
        listening = socket.create_server(("127.0.0.1", 0))
        addresses[name] = listening.getsockname()[1]
        threading.Thread(target=accept_all, args=(listening, handle), daemon=True).start()
    tell(host="127.0.0.1", **addresses)
    obey_until_stdin_ends({})


def accept_all(listening: socket.socket, handle: Callable[[socket.socket], None]) -> None:
    while True:
        sock, _ = listening.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=handle, args=(sock,), daemon=True).start()


def sink(sock: socket.socket) -> None:
    """Read as many bytes as the first eight say, then answer with one."""
    left = int.from_bytes(sock.recv(8, socket.MSG_WAITALL), "big")
    buffer = memoryview(bytearray(READ_BYTES))
    while left:
        left -= sock.recv_into(buffer)
    sock.send(b"!")


def send_file_to(path: str) -> Callable[[socket.socket], None]:
    def send_file(sock: socket.socket) -> None:
        """Send the file once, 1 MB at a time, when a byte asks for it."""
        sock.recv(1)
        with open(path, "rb") as file:
            size, position = os.fstat(file.fileno()).st_size, 0
            while position < size:
                position += os.sendfile(sock.fileno(), file.fileno(), position, SENDFILE_BYTES)

    return send_file


def echo(sock: socket.socket) -> None:
    buffer = memoryview(bytearray(1 << 16))
    while count := sock.recv_into(buffer):
        sock.send(buffer[:count])


if __name__ == "__main__":
    {"broker": serve_broker, "limits": serve_limits}[sys.argv[1]](sys.argv[2])
