"""Replicated clusters of broker processes over a real ZooKeeper, to be killed, stopped, cut off and damaged.

with ReplicatedCluster(tmp_path) as cluster:
    cluster.create_topic("t", partitions=3)
    cluster.kill(cluster.leader("t", 0))
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kit import process_logs, quick_zookeeper, replica_process, segments
from kit.cluster import KEEPS
from kit.machine import scaled, scaled_ms
from kit.namespaces import Network
from kit.opened import Opened
from kit.replica_process import STACKS, Orders
from kit.waiting import wait_until
from raylog.client.admin import Admin
from raylog.coordination.metadata import paths
from raylog.coordination.metadata.model import PartitionState
from raylog.coordination.store.port import Session, SessionState
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper
from raylog.coordination.zookeeper.store import ZkStore
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import BrokerId, PartitionIndex, TopicName, TopicPartition

__all__ = ["CONFIG", "ReplicatedCluster"]

WAIT_S = 60.0
REFUSED = re.compile("the broker is refused: (.*)")
KIT = str(Path(__file__).parents[1])
CONFIG = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.backoff.ms": "50",
    "auto.create.topics.enable": "false",
    **KEEPS,
}
"""Three replicas, two of which must have a record; a follower is given up soon, for tests are short."""


class _Twin(NamedTuple):
    """A second process with a broker's id, and where its things are."""

    home: Path
    process: subprocess.Popen[bytes]


def _refusal(output: Path, process: subprocess.Popen[bytes], begin: int = 0) -> str:
    """The last refusal that follows the first ``begin`` bytes."""

    def refusals() -> list[str]:
        said = output.read_bytes()[begin:].decode()
        assert process.poll() is None, said[-2000:]
        return REFUSED.findall(said)

    return wait_until(refusals, WAIT_S, f"a refusal in {output}")[-1]


class ReplicatedCluster(Opened):
    """``brokers`` processes, numbered from 0, each with its data in ``root/broker-N`` and its log in ``root/N.out``."""

    def __init__(
        self,
        root: Path,
        *,
        brokers: int = 3,
        config: Mapping[str, str] | None = None,
        session_ms: int = scaled_ms(2_000),
        notes_syncs: bool = False,
        network: Network | None = None,
    ) -> None:
        """``network``: each broker on a node of its own there, entered already; None: all at 127.0.0.1."""
        self.root = root
        self.session_ms = session_ms
        self.size = brokers
        self._config = {**CONFIG, **(config or {})}
        self._overrides: dict[int, dict[str, str]] = {}
        self._network = network
        self._notes_syncs = notes_syncs
        self._boot_ids: dict[int, Path] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._said_before: dict[int, int] = {}
        """The bytes of each broker's output at its last start."""
        self._homes: dict[int, Path] = {}
        """Where a broker's things are, if not in ``root``."""
        self._twins: dict[int, _Twin] = {}
        host = network.services if network else "127.0.0.1"
        self.zookeeper = EmbeddedZooKeeper(root / "zookeeper", host=host)
        self._store: ZkStore | None = None

    # --- life ---

    def open(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        process_logs.watch(self.root, "*.out", "twin-*/*.out", "zookeeper/*.log")
        quick_zookeeper.start(self.zookeeper)
        for broker_id in range(self.size):
            if self._network:
                self._network.add(broker_id)
            self.start(broker_id)
        for broker_id in range(self.size):
            self.wait_serving(broker_id)

    def close(self) -> None:
        """Kill what runs."""
        process_logs.forget(self.root)
        if self._store is not None:
            self._store.close()
        for broker_id in list(self._twins):
            self.kill_twin(broker_id)
        for broker_id in list(self._processes):
            self.kill(broker_id)
        with contextlib.suppress(ProcessLookupError):
            if jvm := self.zookeeper.jvm:
                os.kill(jvm.pid, signal.SIGCONT)
        self.zookeeper.stop()

    def configure(self, broker_id: int, config: Mapping[str, str]) -> None:
        """Settings of this broker alone, from its next start on."""
        self._overrides.setdefault(broker_id, {}).update(config)

    def start(self, broker_id: int) -> None:
        """Start a broker on its directory; :meth:`wait_serving` waits for it."""
        assert broker_id not in self._processes, f"broker {broker_id} runs"
        output = self.output(broker_id)
        self._said_before[broker_id] = output.stat().st_size if output.exists() else 0
        self._processes[broker_id] = self._run(self._home(broker_id), broker_id)

    def _run(self, home: Path, broker_id: int) -> subprocess.Popen[bytes]:
        host = self._network.address(broker_id) if self._network else "127.0.0.1"
        config = {
            "listeners": f"PLAINTEXT://{host}:0",
            "broker.rack": f"rack-{broker_id}",
            **self._config,
            **self._overrides.get(broker_id, {}),
        }
        orders = Orders(config, self.zookeeper.address, self.session_ms, host, self._notes_syncs)
        orders.save(home, broker_id)
        command = [sys.executable, replica_process.__file__, str(home), str(broker_id)]
        if self._network:
            command = ["ip", "netns", "exec", self._network.name(broker_id), *command]
        if boot_id := self._boot_ids.get(broker_id):
            inside = f'mount --bind "{boot_id}" /proc/sys/kernel/random/boot_id && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", inside, "sh", *command]
        with (home / f"{broker_id}.out").open("ab") as output:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": KIT}
            )

    def wait_serving(self, broker_id: int, timeout_s: float = WAIT_S) -> None:
        """Until clients can connect to it."""

        def serves() -> bool:
            assert self._processes[broker_id].poll() is None, self.output(broker_id).read_text()[-2000:]
            return self._registered(broker_id) and self._port(broker_id) is not None and self._takes_clients(broker_id)

        wait_until(serves, timeout_s, f"broker {broker_id} serves")

    def kill(self, broker_id: int) -> float:
        """SIGKILL, and wait for the end; when it was sent, monotonic seconds."""
        process = self._processes.pop(broker_id)
        sent = time.monotonic()
        process.kill()
        process.wait()
        return sent

    def stop(self, broker_id: int) -> None:
        """An orderly stop."""
        process = self._processes.pop(broker_id)
        process.terminate()
        try:
            process.wait(scaled(WAIT_S))
        except subprocess.TimeoutExpired:
            process.send_signal(STACKS)
            time.sleep(1)
            raise
        finally:
            process.kill()
            process.wait()

    def pause(self, broker_id: int) -> None:
        os.kill(self._processes[broker_id].pid, signal.SIGSTOP)

    def resume(self, broker_id: int) -> None:
        os.kill(self._processes[broker_id].pid, signal.SIGCONT)

    def crash_machine(self, broker_id: int) -> int:
        """Kill a broker and lose what it had not synced; its next start is after a boot. The bytes lost."""
        assert self._notes_syncs, "ReplicatedCluster(notes_syncs=True)"
        if broker_id in self._processes:
            self.kill(broker_id)
        boot_id = self.root / f"boot-id-{broker_id}"
        boot_id.write_text(f"{uuid.uuid4()}\n")
        self._boot_ids[broker_id] = boot_id
        return replica_process.lose_unsynced_writes(self._home(broker_id), broker_id)

    def empty(self, broker_id: int) -> None:
        """Lose the disk of a broker that does not run; its ports stay."""
        shutil.rmtree(self.data_dir(broker_id) / "log")

    def expire_session(self, broker_id: int) -> None:
        """End the broker's session with ZooKeeper while it runs, as the server does."""
        saved = json.loads((self.data_dir(broker_id) / "session.json").read_text())
        session = Session(saved["id"], bytes.fromhex(saved["password"]))

        def ended() -> bool:  # not at once where the broker takes its session back before it is closed
            self.store.end_session(session)
            node = self.store.exists(paths.broker(BrokerId(broker_id)))
            return node is None or node.ephemeral_owner != session.id

        wait_until(ended, WAIT_S, f"the session of broker {broker_id} has ended")

    # --- two of one id ---

    def start_twin(self, broker_id: int, *, copied: bool) -> None:
        """Start a second process of that id: on a copy of the broker's directory as it is, or on an empty one.

        Ports are its own, as on another machine. The others do not hear of it before :meth:`give_way_to_twin`.
        """
        home = Path(tempfile.mkdtemp(prefix=f"twin-{broker_id}-", dir=self.root))
        for other in set(range(self.size)) - {broker_id}:
            replica_process.address_file(home, other).symlink_to(replica_process.address_file(self._home(other), other))
        if copied:
            not_copied = shutil.ignore_patterns("ports.json", "*.new", "*.tmp")
            shutil.copytree(self.data_dir(broker_id), replica_process.data_dir(home, broker_id), ignore=not_copied)
        self._twins[broker_id] = _Twin(home, self._run(home, broker_id))

    def wait_twin_refused(self, broker_id: int) -> str:
        """Why it does not serve."""
        home, process = self._twins[broker_id]
        return _refusal(home / f"{broker_id}.out", process)

    def wait_refused(self, broker_id: int) -> str:
        """Why the broker does not serve since its last start."""
        return _refusal(self.output(broker_id), self._processes[broker_id], self._said_before[broker_id])

    def kill_twin(self, broker_id: int) -> None:
        _, process = self._twins.pop(broker_id)
        process.kill()
        process.wait()

    def give_way_to_twin(self, broker_id: int) -> float:
        """Kill the first; from now on the other is the broker. When it was killed, monotonic seconds."""
        killed = self.kill(broker_id)
        home, process = self._twins.pop(broker_id)
        self._homes[broker_id], self._processes[broker_id], self._said_before[broker_id] = home, process, 0
        for file in (replica_process.address_file, replica_process.serves_file):
            file(self.root, broker_id).unlink(missing_ok=True)
            file(self.root, broker_id).symlink_to(file(home, broker_id))
        return killed

    @property
    def running(self) -> list[int]:
        return sorted(self._processes)

    # --- places ---

    def _home(self, broker_id: int) -> Path:
        return self._homes.get(broker_id, self.root)

    def output(self, broker_id: int) -> Path:
        return self._home(broker_id) / f"{broker_id}.out"

    def data_dir(self, broker_id: int) -> Path:
        return replica_process.data_dir(self._home(broker_id), broker_id)

    def partition_dir(self, broker_id: int, topic: str, partition: int) -> Path:
        return self.data_dir(broker_id) / "log" / f"{topic}-{partition}"

    def log_bytes(self, broker_id: int, topic: str, partition: int) -> bytes:
        """The log of a partition as it is on that broker's disk."""
        return segments.log_bytes(self.partition_dir(broker_id, topic, partition))

    def address(self, broker_id: int) -> tuple[str, int]:
        """Where clients reach it: the same after every start."""
        host = self._network.address(broker_id) if self._network else "127.0.0.1"
        port = self._port(broker_id)
        assert port is not None, f"broker {broker_id} has no port yet"
        return host, port

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in map(self.address, range(self.size)))

    def _port(self, broker_id: int) -> int | None:
        try:
            return int(replica_process.serves_file(self._home(broker_id), broker_id).read_text().rpartition(":")[2])
        except FileNotFoundError:
            return None

    def _takes_clients(self, broker_id: int) -> bool:
        try:
            with Admin("{}:{}".format(*self.address(broker_id)), request_timeout_ms=scaled_ms(5_000)) as admin:
                admin.list_topics()
        except RaylogError:
            return False
        return True

    # --- what ZooKeeper says ---

    @property
    def store(self) -> ZkStore:
        """A session of the test's own, once it is connected: after an outage it comes back when it comes."""
        store = self._store
        if store is None:
            store = self._store = ZkStore(self.zookeeper.address, session_timeout_ms=scaled_ms(20_000))
            store.start()
        wait_until(lambda: store.session_state is SessionState.CONNECTED, WAIT_S, "the test's session is connected")
        return store

    def _registered(self, broker_id: int) -> bool:
        return self.store.exists(paths.broker(BrokerId(broker_id))) is not None

    def epoch(self, broker_id: int) -> int:
        """The broker's incarnation: that of its last registration, or of its fencing."""
        found = self.store.get(paths.broker_epoch(BrokerId(broker_id)))
        assert found is not None, f"broker {broker_id} was never there"
        return found.version

    def intact_since(self, broker_id: int) -> int:
        """The oldest incarnation of the broker whose data is all there, as its last registration says."""
        found = self.store.get(paths.raylog_broker(BrokerId(broker_id)))
        assert found is not None, f"broker {broker_id} was never there"
        return paths.decode_former_life(BrokerId(broker_id), found.data).intact_since

    def state(self, topic: str, partition: int) -> PartitionState:
        """The partition's state as the controller wrote it last."""
        tp = TopicPartition(TopicName(topic), PartitionIndex(partition))
        found, assignment = self.store.get(paths.partition_state(tp)), self.store.get(paths.topic(tp.topic))
        assert found is not None, f"{tp} has no state"
        assert assignment is not None, f"there is no topic {topic}"
        replicas = paths.decode_topic(tp.topic, assignment.data).replicas[partition]
        return paths.decode_partition_state(tp, found.data, found.version, replicas)

    def leader(self, topic: str, partition: int) -> int:
        """Who leads, once somebody does."""

        def elected() -> list[int]:
            leader = self.state(topic, partition).leader
            return [leader] if leader >= 0 else []

        return wait_until(elected, WAIT_S, f"a leader of {topic}-{partition}")[0]

    def controller(self) -> int:
        """Who is the controller, once somebody is."""

        def elected() -> list[int]:
            node = self.store.get(paths.CONTROLLER)
            return [] if node is None else [paths.decode_controller(node.data)]

        return wait_until(elected, WAIT_S, "a controller")[0]

    def wait_in_sync(self, topic: str, partitions: int, *, timeout_s: float = WAIT_S) -> None:
        """Until every replica of the topic is in sync again."""

        def complete() -> bool:
            states = [self.state(topic, partition) for partition in range(partitions)]
            return all(set(state.isr) == set(state.replicas) for state in states)

        wait_until(complete, timeout_s, f"every replica of {topic} is in sync")

    def create_topic(self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic, and wait until its leaders lead."""
        with Admin(self.bootstrap_servers) as admin:
            admin.create_topic(name, partitions, configs=dict(config or {}))
        self.wait_in_sync(name, partitions)
