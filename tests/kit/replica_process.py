"""One broker of a replicated cluster, in a process of its own and without Ray: the child of ``kit.replicated``.

``python replica_process.py ROOT ID`` reads ``ROOT/broker-ID.json`` (see :class:`Orders`) and serves until it is killed,
or stopped in an orderly way by SIGTERM. Control messages and proposals travel over a TCP port of the test kit: a byte
for the kind, a length of four bytes, the payload; the answer is its length and itself.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from raylog.broker.broker import Broker
from raylog.broker.config import BROKER_SETTINGS
from raylog.broker.storage.disk.files import File, FileSystem, RealFile, RealFileSystem
from raylog.coordination.zookeeper.store import ZkStore
from raylog.protocol.errors import BrokerNotAvailable, RaylogError
from raylog.protocol.ids import BrokerId

CALL_TIMEOUT_S = 5.0
RETRY_S = 0.1
LOOK_S = 1.0
CONTROL, PROPOSE = b"c", b"p"
STACKS = signal.SIGUSR1
"""Has it write to its log where each of its threads is."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a broker's process is told."""

    config: dict[str, str]
    zookeeper: str
    session_ms: int
    host: str = "127.0.0.1"
    """Where its port for control messages is."""
    notes_syncs: bool = False
    """Whether it keeps a list of what is synced, for a crash of its machine."""

    @classmethod
    def load(cls, root: Path, broker_id: int) -> Self:
        return cls(**json.loads(orders_file(root, broker_id).read_text()))

    def save(self, root: Path, broker_id: int) -> None:
        orders_file(root, broker_id).write_text(json.dumps(asdict(self)))


def orders_file(root: Path, broker_id: int) -> Path:
    return root / f"broker-{broker_id}.json"


def address_file(root: Path, broker_id: int) -> Path:
    """Where the process says at which address it takes control messages."""
    return root / f"control-{broker_id}"


def serves_file(root: Path, broker_id: int) -> Path:
    """Where the process says at which address it takes clients, once it does."""
    return root / f"serves-{broker_id}"


def syncs_file(root: Path, broker_id: int) -> Path:
    """A line ``size path`` for each time that a file was synced, renamed or truncated."""
    return root / f"synced-{broker_id}"


def data_dir(root: Path, broker_id: int) -> Path:
    return root / f"broker-{broker_id}"


class TcpPeerControl:
    """PeerControl over one short connection a call."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def send(self, broker_id: BrokerId, payload: bytes) -> bytes:
        return self._call(broker_id, CONTROL, payload)

    def propose(self, controller_id: BrokerId, payload: bytes) -> bytes:
        return self._call(controller_id, PROPOSE, payload)

    def _call(self, broker_id: BrokerId, kind: bytes, payload: bytes) -> bytes:
        try:
            host, port = address_file(self._root, broker_id).read_text().split()
            with socket.create_connection((host, int(port)), timeout=CALL_TIMEOUT_S) as connection:
                connection.sendall(kind + len(payload).to_bytes(4, "big") + payload)
                with connection.makefile("rb") as answers:
                    return _exactly(answers.read, int.from_bytes(_exactly(answers.read, 4), "big"))
        except (OSError, ValueError) as error:
            raise BrokerNotAvailable(f"broker {broker_id} cannot be reached: {error}") from error


def _exactly(read: Callable[[int], bytes], count: int) -> bytes:
    data = read(count)
    if len(data) < count:
        raise ConnectionError("closed before the end of the message")
    return data


class ControlServer(socketserver.ThreadingTCPServer):
    """Hands what other brokers send to the broker that runs in this process at the moment."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str) -> None:
        super().__init__((host, 0), _ControlCall)
        self.broker: Broker | None = None
        self.one_at_a_time = threading.Lock()
        """The controller's word comes in order."""


class _ControlCall(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, ControlServer)
        try:
            kind = _exactly(self.rfile.read, 1)
            payload = _exactly(self.rfile.read, int.from_bytes(_exactly(self.rfile.read, 4), "big"))
            if server.broker is None:
                return
            if kind == PROPOSE:
                answer = server.broker.propose(payload)
            else:
                with server.one_at_a_time:
                    answer = server.broker.control(payload)
            self.wfile.write(len(answer).to_bytes(4, "big") + answer)
        except (OSError, RaylogError):
            return  # the caller finds the connection closed


class _NotingFile(RealFile):
    """A file that notes how much of it is synced."""

    def __init__(self, path: Path, fd: int, note: Callable[[int, Path], None]) -> None:
        super().__init__(path, fd)
        self._note = note

    def fdatasync(self) -> None:
        size = self.size()
        super().fdatasync()
        self._note(size, self.path)

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self._note(-size - 1, self.path)


class NotingFileSystem(RealFileSystem):
    """The operating system's files, with a list of what is synced: see :func:`lose_unsynced_writes`."""

    def __init__(self, notes: Path) -> None:
        self._fd = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def open(self, path: Path, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return _NotingFile(path, os.open(path, flags, 0o644), self._note)

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        os.write(self._fd, f"> {old}\t{new}\n".encode())

    def _note(self, size: int, path: Path) -> None:
        os.write(self._fd, f"{size} {path}\n".encode())


def lose_unsynced_writes(root: Path, broker_id: int) -> int:
    """Cut every file of a dead broker to what it had synced, as a machine that lost its power would; the bytes lost.

    Names count as durable, and a byte overwritten in place as synced: the log only appends.
    """
    notes = syncs_file(root, broker_id)
    synced = _synced(notes.read_text())
    lost = 0
    for path in data_dir(root, broker_id).rglob("*"):
        if path.is_file() and path.suffix in {".log", ".index", ".timeindex", ".snapshot"}:
            keep = synced.get(str(path), 0)
            if (size := path.stat().st_size) > keep:
                lost += size - keep
                os.truncate(path, keep)
    return lost


def _synced(notes: str) -> dict[str, int]:
    synced: dict[str, int] = {}
    for line in notes.splitlines():
        first, _, rest = line.partition(" ")
        if first == ">":
            old, _, new = rest.partition("\t")
            synced[new] = synced.pop(old, 0)
        elif (size := int(first)) < 0:  # cut: what is beyond is gone
            synced[rest] = min(synced.get(rest, 0), -size - 1)
        else:
            synced[rest] = size
    return synced


def _say(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def run(root: Path, broker_id: int) -> None:
    """Serve until SIGTERM; like the actor, try again what is in the way."""
    orders = Orders.load(root, broker_id)
    own = {"broker.id": str(broker_id), "zookeeper.connect": orders.zookeeper}
    settings = BROKER_SETTINGS.settings({**orders.config, **own})
    fs: FileSystem = NotingFileSystem(syncs_file(root, broker_id)) if orders.notes_syncs else RealFileSystem()
    stopping = threading.Event()
    faulthandler.register(STACKS, all_threads=True)
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    server = ControlServer(orders.host)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    host, port = server.server_address[:2]
    _say(address_file(root, broker_id), f"{host!s} {port}")
    while not stopping.is_set():
        store = ZkStore(orders.zookeeper, session_timeout_ms=orders.session_ms)
        broker = server.broker = Broker(
            settings, data_dir(root, broker_id), store=store, peer_control=TcpPeerControl(root), fs=fs
        )
        try:
            broker.start()
        except RaylogError as error:
            logging.warning("the broker is refused: %s", error)
            stopping.wait(RETRY_S)
        else:
            _say(serves_file(root, broker_id), broker.address)
            while not stopping.wait(LOOK_S):  # a signal that another thread takes does not wake this one
                pass
            broker.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(levelname)s %(name)s %(message)s")
    sys.setswitchinterval(5e-4)
    run(Path(sys.argv[1]), int(sys.argv[2]))
