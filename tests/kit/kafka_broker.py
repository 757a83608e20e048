"""Apache Kafka's own broker, one process that is its controller, too (KRaft), for what it answers.

It runs where ``java``, ``javac`` and ``mvn`` are (see ``kit.maven``).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from kit.kafka_java import KAFKA_4
from kit.maven import jars
from kit.waiting import wait_until
from kit.wire import WireClient
from raylog.coordination.free_ports import free_port

__all__ = ["KAFKA_VERSION", "running_kafka"]

KAFKA_VERSION = KAFKA_4.version
START_S = 120.0
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
HOST = "127.0.0.1"


@contextmanager
def running_kafka(
    root: Path, config: Mapping[str, str], *, broker_id: int = 1, features: Mapping[str, int] = MappingProxyType({})
) -> Iterator[tuple[str, int]]:
    """Its address, once it answers. Its data and its output are below ``root``, which is empty."""
    port, controller_port = free_port(HOST), free_port(HOST)
    settings = {
        "process.roles": "broker,controller",
        "node.id": str(broker_id),
        "controller.quorum.voters": f"{broker_id}@{HOST}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "log.dirs": str(root / "logs"),
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "auto.create.topics.enable": "false",
        **config,
    }
    file = root / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars(KAFKA_4)}/*"]
    with (root / "output").open("wb") as output:
        storage = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(file)]
        for feature, level in features.items():
            storage += ["--feature", f"{feature}={level}"]
        subprocess.run(storage, check=True, timeout=START_S, stdout=output, stderr=output)
        broker = subprocess.Popen([*java, "kafka.Kafka", str(file)], stdout=output, stderr=output)
        try:
            wait_until(lambda: _answers((HOST, port)), START_S, "Kafka answers", instead=lambda: root / "output")
            yield HOST, port
        finally:
            broker.kill()
            broker.wait()


def _answers(address: tuple[str, int]) -> bool:
    try:
        with WireClient(address) as client:
            return len(client.ask(3, 12, topics=[]).brokers) == 1
    except (OSError, EOFError):
        return False
