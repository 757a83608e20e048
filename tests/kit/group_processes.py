"""Members of a consumer group, each in a process of its own: to be killed, stopped in mid-work, continued, sent away.

with Members(tmp_path, servers, "t", "billing", session_ms=3_000) as members:
    members.start(20)
    members.wait_stable(partitions=40)
    members.kill(members.living[0])

A member hands records out, tells so (see ``kit.group_history``), and only then commits them: at least once. They are
forked from one process that has imported everything, ``python group_processes.py``, so that starting twenty is quick;
all die with it, and it with the test.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kit.group_history import Event, parse
from kit.waiting import wait_until
from raylog.client import Consumer
from raylog.coordination.host.processes import ProcessRef
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import TopicPartition

WAIT_S = 60.0
POLL_MS = 100
MAX_POLL_RECORDS = 3
"""Fewer than there are mostly: a member that is stopped has some left that it must not hand out any more."""
COMMIT_S = 0.25
"""Between two commits of a member: the store is shared by all."""
AGAIN_S = 0.05
IN_DOUBT = "RequestTimedOut"
"""The store did not answer a commit: nobody knows whether it was taken."""
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Orders:
    """What members are told."""

    directory: str
    servers: str
    topic: str
    group: str
    session_ms: int
    instance: str = ""
    """Of a static member."""


# --- a member's process ---


class _Member:
    """Reads until it is told to leave, by SIGTERM. After SIGUSR1 it stops itself with records in hand, which it commits
    first when it goes on; after SIGUSR2, too, but then it polls first.
    """

    def __init__(self, orders: Orders, name: str) -> None:
        file = Path(orders.directory) / f"{name}.jsonl"
        self._fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._leaving = threading.Event()
        self._stop_by: int | None = None
        """Which signal has told it to stop itself."""
        self._in_hand: dict[TopicPartition, int] = {}
        """Up to where each partition was handed out, where that is not committed."""
        signal.signal(signal.SIGTERM, lambda *_: self._leaving.set())
        signal.signal(signal.SIGUSR1, self._stop_soon)
        signal.signal(signal.SIGUSR2, self._stop_soon)
        self._consumer = Consumer(
            orders.servers,
            [orders.topic],
            group_id=orders.group,
            group_instance_id=orders.instance,
            listener=self,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=orders.session_ms,
            fetch_min_bytes=1 << 20,
            fetch_max_wait_ms=POLL_MS,
            max_poll_records=MAX_POLL_RECORDS,
        )

    def run(self) -> None:
        committed = time.monotonic()
        with self._consumer as consumer:
            while not self._leaving.is_set():
                begun = time.monotonic()
                polled = consumer.poll(POLL_MS)
                if polled:
                    ranges = [[tp.partition, records[0].offset, records[-1].offset] for tp, records in polled.items()]
                    self._tell("poll", begun=begun, ranges=ranges)
                    self._in_hand |= {tp: records[-1].offset + 1 for tp, records in polled.items()}
                    if self._stop_by is not None:
                        os.kill(os.getpid(), signal.SIGSTOP)
                        committed = 0.0 if self._stop_by == signal.SIGUSR1 else time.monotonic()
                        self._stop_by = None
                if self._in_hand and time.monotonic() - committed >= COMMIT_S:
                    self._commit(tuple(self._in_hand))
                    committed = time.monotonic()

    def on_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._tell("assigned", partition=tp.partition, offset=self._consumer.position(*tp))

    def on_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """A partition whose commit was refused is lost."""
        partitions = tuple(partitions)
        in_hand = tuple(tp for tp in partitions if tp in self._in_hand)
        is_committed = self._commit(in_hand)
        for tp in partitions:
            self._in_hand.pop(tp, None)
            self._tell("revoked" if is_committed or tp not in in_hand else "lost", partition=tp.partition)

    def on_lost(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._in_hand.pop(tp, None)
            self._tell("lost", partition=tp.partition)

    def _commit(self, partitions: tuple[TopicPartition, ...]) -> bool:
        """Until it is known whether it is committed; whether it is."""
        if not partitions:
            return True
        offsets = {tp: self._in_hand[tp] for tp in partitions}
        gives_up = time.monotonic() + WAIT_S
        while (refused := self._try_to_commit(offsets)) == IN_DOUBT and time.monotonic() < gives_up:
            threading.Event().wait(AGAIN_S)
        if not refused:
            self._in_hand = {tp: offset for tp, offset in self._in_hand.items() if tp not in offsets}
        return not refused

    def _try_to_commit(self, offsets: Mapping[tuple[str, int], int]) -> str:
        """The error's name, or ""."""
        begun, refused = time.monotonic(), ""
        try:
            self._consumer.commit(offsets)
        except RaylogError as error:
            refused = type(error).__name__
        for (_, partition), offset in offsets.items():
            self._tell("commit", begun=begun, partition=partition, offset=offset, refused=refused)
        return refused

    def _stop_soon(self, number: int, _: object) -> None:
        self._stop_by = number

    def _tell(self, what: str, **fields: Any) -> None:
        line = {"t": time.monotonic(), "what": what, **fields}
        os.write(self._fd, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def _nursery() -> None:
    """Fork a member for each line of the input, ``NAME`` and the orders, and answer its process id."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        name, _, orders = line.partition(" ")
        pid = os.fork()
        if pid == 0:
            _be_a_member(Orders(**json.loads(orders)), name)
        print(pid, flush=True)


def _be_a_member(orders: Orders, name: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    output = os.open(Path(orders.directory) / f"{name}.out", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, at in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(fd, at)
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(levelname)s %(name)s %(message)s")
    status = 1
    try:
        _Member(orders, name).run()
        status = 0
    except BaseException:
        logging.exception("the member fails")
    finally:
        os._exit(status)


# --- the test's side ---


class Members:
    """Of one group; names are m1, m2, … in the order of their starts."""

    def __init__(self, directory: Path, servers: str, topic: str, group: str, *, session_ms: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._orders = Orders(str(directory), servers, topic, group, session_ms)
        self._processes: dict[str, ProcessRef] = {}
        self._born = 0
        self._stopped: set[str] = set()
        self._events: list[Event] = []
        self._read: dict[str, int] = {}
        """How many bytes of each member's file are in ``_events``."""
        self._owned: dict[str, dict[int, float]] = {}
        """What each member owns, and since when, as far as it was read: one member's file is read after another's."""
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        self._nursery = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._nursery.kill()
        self._nursery.communicate()
        _wait_gone(self._processes.values(), "all members are gone")

    # --- what happens to them ---

    def start(self, count: int = 1, *, instance: str = "") -> list[str]:
        """So many new members, which join when they are ready."""
        orders = json.dumps(asdict(replace(self._orders, instance=instance)))
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        names = [f"m{self._born + number}" for number in range(1, count + 1)]
        self._born += count
        for name in names:
            print(name, orders, file=self._nursery.stdin, flush=True)
            process = ProcessRef.of(int(self._nursery.stdout.readline()))
            assert process is not None, self.output(name)
            self._processes[name] = process
        return names

    def kill(self, name: str) -> float:
        """SIGKILL; when it was sent, monotonic seconds."""
        process = self._processes.pop(name)
        self._stopped.discard(name)
        sent = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        _wait_gone([process], f"{name} is gone")
        self._failed(name)
        return sent

    def stop_in_hand(self, name: str, *, commits_first: bool) -> None:
        """SIGSTOP, as soon as it has handed out records that it has not committed; what it does first, once resumed."""
        self._stop(name, signal.SIGUSR1 if commits_first else signal.SIGUSR2)

    def stop_at_once(self, name: str) -> None:
        """SIGSTOP, whatever it is doing."""
        self._stop(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._stopped.discard(name)
        os.kill(self._processes[name].pid, signal.SIGCONT)

    def leave(self, *names: str) -> None:
        """In good order, all at once."""
        processes = [self._processes.pop(name) for name in names]
        for process in processes:
            os.kill(process.pid, signal.SIGTERM)
        _wait_gone(processes, f"{names} have left")

    def await_end(self, name: str) -> str:
        """It ends by itself; the end of what it has logged."""
        self._stopped.discard(name)
        _wait_gone([self._processes.pop(name)], f"{name} has ended")
        return self.output(name)

    # --- what they do ---

    @property
    def living(self) -> list[str]:
        """Those that are neither killed nor sent away nor stopped, by age."""
        return [name for name in self._processes if name not in self._stopped]

    @property
    def stopped(self) -> list[str]:
        return sorted(self._stopped)

    def events(self) -> list[Event]:
        """What all have told so far, each in order, and their fates."""
        for name in (f"m{number}" for number in range(1, self._born + 1)):
            self._take_in(name)
        return self._events

    def owners(self) -> dict[int, str]:
        """Who of the living owns which partition, as they say themselves; of two that say so the later one."""
        self.events()
        claims = [(t, partition, name) for name, owned in self._owned.items() for partition, t in owned.items()]
        latest = {partition: name for _, partition, name in sorted(claims)}
        living = set(self.living)
        return {partition: name for partition, name in latest.items() if name in living}

    def is_stable(self, partitions: int) -> bool:
        """All partitions are owned, by all living members, each about as many."""
        owners = self.owners()
        counts = Counter(dict.fromkeys(self.living, 0))
        counts.update(owners.values())
        return len(owners) == partitions and max(counts.values()) - min(counts.values()) <= 1

    def wait_stable(self, partitions: int, timeout_s: float = WAIT_S) -> None:
        def stable() -> bool:
            dead = [name for name, process in self._processes.items() if not process.is_alive]
            assert not dead, f"{dead} ended by themselves: {self.output(*dead)}"
            return self.is_stable(partitions)

        def instead() -> str:
            owners = self.owners()
            idle = sorted(set(self.living) - set(owners.values()))
            return f"owners {owners}; owning nothing {idle} {self._where(*idle)}"

        wait_until(stable, timeout_s, "the group is stable", instead=instead)

    def output(self, *names: str) -> str:
        """The ends of what they have logged."""
        files = [self._directory / f"{name}.out" for name in names]
        return "\n".join(file.read_text()[-4_000:] for file in files if file.exists())

    def _where(self, *names: str) -> str:
        """Where these are at work, which ends them."""
        for name in names:
            os.kill(self._processes[name].pid, signal.SIGABRT)
        _wait_gone([self._processes[name] for name in names], f"{names} are gone")
        return self.output(*names)

    def _take_in(self, name: str) -> None:
        file = self._directory / f"{name}.jsonl"
        if not file.exists() or file.stat().st_size <= self._read.get(name, 0):
            return
        with file.open("rb") as lines:
            lines.seek(self._read.get(name, 0))
            whole = lines.read()
        whole = whole[: whole.rfind(b"\n") + 1]
        self._read[name] = self._read.get(name, 0) + len(whole)
        self._events += (events := parse(name, whole.decode()))
        owned = self._owned.setdefault(name, {})
        for event in events:
            if event.what == "assigned":
                owned[event.v["partition"]] = event.t
            elif event.what in ("revoked", "lost"):
                owned.pop(event.v["partition"], None)

    def _stop(self, name: str, number: signal.Signals) -> None:
        process = self._processes[name]
        os.kill(process.pid, number)
        wait_until(lambda: _state(process) == "T", WAIT_S, f"{name} has stopped")
        self._stopped.add(name)
        self._failed(name)

    def _failed(self, name: str) -> None:
        self._events.append(Event(time.monotonic(), name, "failed", {}))


def _wait_gone(processes: Collection[ProcessRef], what: str) -> None:
    wait_until(lambda: not any(process.is_alive for process in processes), WAIT_S, what)


def _state(process: ProcessRef) -> str:
    """As in /proc: T is stopped."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


if __name__ == "__main__":
    _nursery()
