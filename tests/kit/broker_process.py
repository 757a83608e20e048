"""A broker in a process of its own, without Ray: to be stopped, killed, and started on a copy of its directory.

``python -m kit.broker_process DIR ZOOKEEPER SESSION_MS`` is what :class:`BrokerProcess` runs. Like the actor it tries
again what is in its way; it is its own controller's only broker.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from kit import process_logs
from raylog.broker.broker import Broker
from raylog.broker.config import BROKER_SETTINGS
from raylog.coordination.zookeeper.store import ZkStore
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import BrokerId

TESTS = Path(__file__).parents[1]
BROKER_ID = 0
RETRY_S = 0.1
SERVING, REFUSED = "serving ", "refused "


class BrokerProcess:
    """Broker 0 on ``directory``; leaving the ``with`` kills it."""

    def __init__(self, directory: Path, zookeeper: str, *, session_ms: int) -> None:
        arguments = [str(directory), zookeeper, str(session_ms)]
        self._log = directory.with_name(f"{directory.name}.out")
        process_logs.watch(self._log.parent, self._log.name)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kit.broker_process", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": str(TESTS)},
            )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.refusals: list[str] = []
        """What was in its way, in order."""
        self.address: tuple[str, int] | None = None
        """Where it serves, once it does."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        process_logs.forget(self._log.parent)
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.startswith(REFUSED):
                    self.refusals.append(line.removeprefix(REFUSED).strip())
                elif line.startswith(SERVING):
                    host, _, port = line.removeprefix(SERVING).strip().rpartition(":")
                    self.address = (host, int(port))


class _Itself:
    """PeerControl of a cluster of one."""

    def __init__(self) -> None:
        self.control: Callable[[bytes], bytes] | None = None
        self.proposed: Callable[[bytes], bytes] | None = None

    def send(self, broker_id: BrokerId, payload: bytes) -> bytes:
        assert broker_id == BROKER_ID
        assert self.control is not None
        return self.control(payload)

    def propose(self, controller_id: BrokerId, payload: bytes) -> bytes:
        assert controller_id == BROKER_ID
        assert self.proposed is not None
        return self.proposed(payload)


def _run(directory: Path, zookeeper: str, session_ms: int) -> None:
    settings = BROKER_SETTINGS.settings({"broker.id": str(BROKER_ID), "zookeeper.connect": zookeeper})
    while True:
        itself = _Itself()
        store = ZkStore(zookeeper, session_timeout_ms=session_ms)
        broker = Broker(settings, directory, store=store, peer_control=itself)
        itself.control, itself.proposed = broker.control, broker.propose
        try:
            broker.start()
        except RaylogError as error:
            print(f"{REFUSED}{error}", flush=True)
            threading.Event().wait(RETRY_S)
        else:
            print(f"{SERVING}{broker.address}", flush=True)
            signal.pause()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(levelname)s %(name)s %(message)s")
    _run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
