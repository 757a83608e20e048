"""Apache Kafka's own brokers, each of which is a controller, too (KRaft), for what they answer.

They run where ``java``, ``javac`` and ``mvn`` are (see ``kit.maven``), and can be killed, and started again.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from kit import process_logs
from kit.kafka_java import KAFKA_4
from kit.machine import scaled
from kit.maven import jars
from kit.opened import Opened
from kit.waiting import wait_until
from kit.wire import WireClient
from raylog.coordination.host.free_ports import free_port

__all__ = ["KAFKA_VERSION", "KafkaCluster", "running_kafka"]

KAFKA_VERSION = KAFKA_4.version
START_S = 120.0
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
HOST = "127.0.0.1"
METADATA = 3
NO_FEATURES: Mapping[str, int] = MappingProxyType({})


@contextmanager
def running_kafka(
    root: Path, config: Mapping[str, str], *, broker_id: int = 1, features: Mapping[str, int] = NO_FEATURES
) -> Iterator[tuple[str, int]]:
    """The address of one broker, once it answers. Its things are below ``root``."""
    with KafkaCluster(root, config, broker_ids=[broker_id], features=features) as cluster:
        yield cluster.address(broker_id)


class KafkaCluster(Opened):
    """Brokers of these ids, each with its data and its output below ``root/ID``."""

    def __init__(
        self,
        root: Path,
        config: Mapping[str, str],
        *,
        broker_ids: Sequence[int] = (0, 1, 2),
        features: Mapping[str, int] = NO_FEATURES,
    ) -> None:
        self.size = len(broker_ids)
        self._root = root
        self._features = features
        self._java = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars(KAFKA_4)}/*"]
        self._ports = {broker_id: free_port(HOST) for broker_id in broker_ids}
        controllers = {broker_id: free_port(HOST) for broker_id in broker_ids}
        voters = ",".join(f"{broker_id}@{HOST}:{port}" for broker_id, port in controllers.items())
        for broker_id, port in self._ports.items():
            settings = {
                "process.roles": "broker,controller",
                "node.id": str(broker_id),
                "controller.quorum.voters": voters,
                "controller.listener.names": "CONTROLLER",
                "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controllers[broker_id]}",
                "log.dirs": str(self.log_dir(broker_id)),
                "offsets.topic.num.partitions": "1",
                "offsets.topic.replication.factor": "1",
                "auto.create.topics.enable": "false",
                **config,
            }
            self._home(broker_id).mkdir(parents=True)
            self._properties(broker_id).write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def open(self) -> None:
        process_logs.watch(self._root, "*/output")
        for broker_id in self._ports:
            self._format(broker_id)
            self.start(broker_id)
        for broker_id in self._ports:
            self.wait_serving(broker_id)

    def close(self) -> None:
        """Kill what runs."""
        process_logs.forget(self._root)
        for broker_id in list(self._processes):
            self.kill(broker_id)

    def start(self, broker_id: int) -> None:
        """Start a broker on its directory and ports; :meth:`wait_serving` waits for it."""
        assert broker_id not in self._processes, f"broker {broker_id} runs"
        with self._output(broker_id).open("ab") as output:
            self._processes[broker_id] = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._properties(broker_id))], stdout=output, stderr=output
            )

    def wait_serving(self, broker_id: int) -> None:
        """Until it tells of all brokers that run."""
        wait_until(
            lambda: self._answers(broker_id),
            START_S,
            f"Kafka's broker {broker_id} answers",
            instead=lambda: self._output(broker_id),
        )

    def kill(self, broker_id: int) -> None:
        """SIGKILL, and wait for the end."""
        process = self._processes.pop(broker_id)
        process.kill()
        process.wait()

    def address(self, broker_id: int) -> tuple[str, int]:
        """Where clients reach it: the same after every start."""
        return HOST, self._ports[broker_id]

    def log_dir(self, broker_id: int) -> Path:
        return self._home(broker_id) / "logs"

    def _home(self, broker_id: int) -> Path:
        return self._root / str(broker_id)

    def _output(self, broker_id: int) -> Path:
        return self._home(broker_id) / "output"

    def _properties(self, broker_id: int) -> Path:
        return self._home(broker_id) / "server.properties"

    def _format(self, broker_id: int) -> None:
        command = [*self._java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID]
        command += ["-c", str(self._properties(broker_id))]
        for feature, level in self._features.items():
            command += ["--feature", f"{feature}={level}"]
        with self._output(broker_id).open("ab") as output:
            subprocess.run(command, check=True, timeout=scaled(START_S), stdout=output, stderr=output)

    def _answers(self, broker_id: int) -> bool:
        assert self._processes[broker_id].poll() is None, self._output(broker_id).read_text()[-2000:]
        try:
            with WireClient(self.address(broker_id)) as client:
                return len(client.ask(METADATA, 12, topics=[]).brokers) == len(self._processes)
        except (OSError, EOFError):
            return False
