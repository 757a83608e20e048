"""The embedded ZooKeeper: one owner process per data dir, which keeps a JVM running (D7).
 ``python -m raylog.coordination.zookeeper.embedded DATA_DIR`` is the owner. It holds ``owner.lock``, records itself in
``owner.json`` and its JVM in ``jvm.json``, starts the JVM again when it dies, and on SIGTERM stops it and ends. The
port is chosen once and kept in ``port``, because it stands in brokers' settings. When the owner is killed the JVM
serves on; the next owner ends it first.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from raylog.coordination.host.free_ports import check_port, free_port
from raylog.coordination.host.java import find_java
from raylog.coordination.host.private_files import private_directory, write_private
from raylog.coordination.host.processes import ProcessRef
from raylog.coordination.zookeeper.credentials import digest_of, read_credentials
from raylog.coordination.zookeeper.server import EmbeddedError, command
from raylog.protocol.errors import RaylogError
from raylog.protocol.texts import host_port

JVM_STOP_S = 5.0
LOOPBACK = "127.0.0.1"
MODULE = "raylog.coordination.zookeeper.embedded"
OWNER_FILE, JVM_FILE = "owner.json", "jvm.json"
FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.1, 5.0


class EmbeddedZooKeeper:
    """A handle on the owner of ``data_dir``; several handles, in several processes, may exist."""

    def __init__(self, data_dir: Path, *, host: str = LOOPBACK, auth_file: Path | None = None) -> None:
        """``host``: the address at which :meth:`start` makes it listen. ``auth_file`` holds the credentials (zk_auth)
        to which no node is closed, also when those that it was made for are lost.
        """
        self.data_dir = data_dir.absolute()
        self._host = host
        self.auth_file = auth_file

    def start(self, *, timeout_s: float = 30.0) -> None:
        """Start the owner process (detached from this one) and wait until ZooKeeper answers.

        Raises EmbeddedError when the dir has an owner already, there is no Java, the port is taken, or the
        server does not come up.
        """
        deadline = time.monotonic() + timeout_s
        arguments = ["-m", MODULE, str(self.data_dir), "--host", self._host, "--detach"]
        if self.auth_file:
            arguments += ["--auth-file", str(self.auth_file.absolute())]
        done = subprocess.run(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"its owner ended with code {done.returncode}"]
            raise EmbeddedError(lines[-1])
        owner = ProcessRef.of(int(done.stdout))
        while not self.is_serving:
            if owner is None or not owner.is_alive:
                raise EmbeddedError(f"the embedded ZooKeeper ended as it started: see {self.data_dir}/*.log")
            if time.monotonic() > deadline:
                self.stop()
                raise EmbeddedError(
                    f"the embedded ZooKeeper is not up after {timeout_s:g} s: see {self.data_dir}/*.log"
                )
            time.sleep(0.02)

    def stop(self, *, timeout_s: float = 15.0) -> None:
        """End the owner and its JVM; nothing when none runs."""
        for process in _recorded(self.data_dir):
            if process:
                process.end(timeout_s)

    @property
    def address(self) -> str:
        """``host:port``; the port is the same after every restart."""
        return host_port(*self._listens_at())

    @property
    def host(self) -> str:
        """The address at which it was started to listen."""
        return self._listens_at()[0]

    def _listens_at(self) -> tuple[str, int]:
        try:
            return (self.data_dir / "host").read_text(), int((self.data_dir / "port").read_text())
        except (OSError, ValueError) as error:
            raise EmbeddedError(f"{self.data_dir} has no embedded ZooKeeper: start it first") from error

    @property
    def owner(self) -> ProcessRef | None:
        """The owner process, when it lives."""
        return _recorded(self.data_dir).owner

    @property
    def jvm(self) -> ProcessRef | None:
        """The server process, when it lives."""
        return _recorded(self.data_dir).jvm

    @property
    def is_running(self) -> bool:
        """True while the owner process lives (recorded pid and start time agree)."""
        return self.owner is not None

    @property
    def is_serving(self) -> bool:
        """True when the server answers and takes requests."""
        try:
            with socket.create_connection(self._listens_at(), timeout=1.0) as connection:
                connection.sendall(b"srvr")
                answer = connection.recv(1024)
        except (OSError, EmbeddedError):
            return False
        return answer.startswith(b"Zookeeper version")


class _Recorded(NamedTuple):
    """What the records name, as far as it still lives."""

    owner: ProcessRef | None
    jvm: ProcessRef | None


def _recorded(data_dir: Path) -> _Recorded:
    return _Recorded(_alive(data_dir / OWNER_FILE), _alive(data_dir / JVM_FILE))


def _alive(record: Path) -> ProcessRef | None:
    try:
        process = ProcessRef(*json.loads(record.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return process if process.is_alive else None


class _Owner:
    """The owner process itself. One thread; signals only wake its loop."""

    def __init__(self, data_dir: Path, host: str, superuser: str) -> None:
        self._data_dir = data_dir
        self._host = host
        self._stopping = False
        self._lock = self._take_lock()
        self._port = self._choose_port()
        write_private(data_dir / "host", host)
        self._command = command(find_java(), data_dir, host, self._port, superuser)
        self._wake_read, self._wake_write = os.pipe()

    def _take_lock(self) -> IO[bytes]:
        private_directory(self._data_dir)
        lock = (self._data_dir / "owner.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _recorded(self._data_dir).owner
            who = f"process {owner.pid}" if owner else "another process"
            raise EmbeddedError(
                f"{self._data_dir} has an embedded ZooKeeper that {who} runs: use that one, or end it first"
            ) from None
        orphan = _recorded(self._data_dir).jvm
        if orphan:  # its owner was killed
            orphan.end(JVM_STOP_S)
        return lock

    def _choose_port(self) -> int:
        """The port kept in the data dir, or a free one, kept from now on."""
        file = self._data_dir / "port"
        if not file.exists():
            port = free_port(self._host)
            write_private(file, str(port))
            return port
        kept = int(file.read_text())
        try:
            check_port(self._host, kept)
        except OSError as error:
            raise EmbeddedError(
                f"the embedded ZooKeeper of {self._data_dir} cannot listen on {host_port(self._host, kept)} "
                f"({error.strerror}): free that address, or choose another one and delete {file}"
            ) from error
        return kept

    def run(self) -> None:
        """Keep the JVM running until SIGTERM or SIGINT, then end it."""
        _record_this(self._data_dir / OWNER_FILE)
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        backoff_s, has_run = FIRST_BACKOFF_S, False
        while not self._stopping:
            started = time.monotonic()
            try:
                jvm = self._start_jvm()
            except Exception as error:  # a full disk, no more processes: who owns it goes on trying
                if not has_run:
                    raise
                _tell(f"the JVM cannot be started: {error}; trying again")
                self._sleep(backoff_s)
                backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)
                continue
            has_run = True
            while jvm.poll() is None and not self._stopping:
                self._sleep(LAST_BACKOFF_S)
            if jvm.poll() is None:
                self._end_jvm(jvm)
                break
            lived_s = time.monotonic() - started
            backoff_s = FIRST_BACKOFF_S if lived_s > 10 else min(2 * backoff_s, LAST_BACKOFF_S)
            _tell(f"the JVM ended with code {jvm.returncode}; starting it again")
            self._sleep(backoff_s)
        for name in (OWNER_FILE, JVM_FILE):
            (self._data_dir / name).unlink(missing_ok=True)
        self._lock.close()

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _sleep(self, seconds: float) -> None:
        """Until a signal comes, at most ``seconds``."""
        if select.select([self._wake_read], [], [], seconds)[0]:
            os.read(self._wake_read, 4096)

    def _start_jvm(self) -> subprocess.Popen[bytes]:
        with (self._data_dir / "jvm.log").open("ab") as log:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: _record_this(self._data_dir / JVM_FILE),
            )

    def _end_jvm(self, jvm: subprocess.Popen[bytes]) -> None:
        jvm.terminate()
        try:
            jvm.wait(JVM_STOP_S)
        except subprocess.TimeoutExpired:
            jvm.kill()
            jvm.wait()


def _tell(text: str) -> None:
    """To the log, whose disk may be full: that is no reason to end."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def _record_this(record: Path) -> None:
    """Before this process does anything that outlives it, or becomes another program, which leaves its record true."""
    write_private(record, json.dumps(ProcessRef.of(os.getpid())))


def _detach(log: Path) -> bool:
    """Go on in the background, writing to ``log``; True in the process that stays, which prints the pid."""
    child = os.fork()
    if child:
        sys.stdout.write(f"{child}\n")
        return True
    os.setsid()
    with open(os.devnull) as nothing, log.open("ab") as output:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    return False


def main(arguments: Sequence[str] | None = None) -> int:
    """The owner's command line."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description="Run an embedded ZooKeeper.")
    parser.add_argument("data_dir", type=Path, help="where it keeps its data, its port and its logs")
    parser.add_argument("--host", default=LOOPBACK, help="the address to listen on")
    parser.add_argument("--auth-file", type=Path, help="the credentials to which no znode is closed")
    parser.add_argument("--detach", action="store_true", help="go to the background, if nothing stands against it")
    options = parser.parse_args(arguments)
    try:
        superuser = digest_of(read_credentials(options.auth_file)) if options.auth_file else ""
        owner = _Owner(options.data_dir.absolute(), options.host, superuser)
    except RaylogError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if options.detach and _detach(options.data_dir / "owner.log"):
        return 0
    owner.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
