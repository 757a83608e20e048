"""What a session decides before anything starts: are the nodes fit, is there room for the executors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raylog.client.arguments.record_values import whole_number
from raylog.coordination.host.java import WANTED
from raylog.protocol.errors import RaylogError

GIB = 1 << 30
EXECUTOR_RESOURCE = "spark.ray.raydp_spark_executor.actor.resource."
"""RayDP's prefix of what an executor asks Ray for beside cores and memory, as ``…resource.GPU``."""

_MEMORY = re.compile(r"(\d+)([kmgt])b?", re.IGNORECASE)
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class SparkNotStarted(RaylogError):
    """Spark can't run on this Ray cluster as it is; the message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a task saw on one node."""

    python: str
    java: str
    """What ``java -version`` calls its version; empty when there is no ``java`` on the raylet's PATH."""
    java_version: int
    """Its major version; 0 when there is none."""


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """What Ray's scheduler counts on one node, by resource: CPUs, bytes of ``memory``, and what else was declared."""

    host: str
    total: Mapping[str, float]
    free: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Executors:
    """The executors that a session asks for."""

    count: int
    cores: int
    memory: str
    """As Spark writes it: ``1g``, ``600m``."""
    resources: Mapping[str, float]
    """What each takes of its node by Ray's count, ``CPU`` and ``memory`` (bytes) among it."""

    def __str__(self) -> str:
        return f"{self.count} executors of {self.cores} CPUs and {self.memory} of memory each"


def executors_wanted(count: int, cores: int, memory: str, configs: Mapping[str, str]) -> Executors:
    """What to ask Ray for, as RayDP asks for each executor. Raises ValueError naming the unfit argument."""
    for name, number in (("executors", count), ("cores", cores)):
        if (whole_number(number) or 0) < 1:
            raise ValueError(f"{name}={number!r}: Spark needs at least 1")
    resources = {"CPU": float(cores), "memory": float(memory_bytes(memory))}
    for key, value in configs.items():
        if key.startswith(EXECUTOR_RESOURCE):
            name = key.removeprefix(EXECUTOR_RESOURCE)
            try:
                resources["CPU" if name.lower() == "cpu" else name] = float(value)
            except ValueError:
                raise ValueError(f"configs: {key}={value!r} is no number") from None
    return Executors(count, cores, memory, {name: amount for name, amount in resources.items() if amount})


def memory_bytes(memory: str) -> int:
    """Bytes of ``1g`` or ``600m``, in whole MiB as Spark counts them. Raises ValueError."""
    found = _MEMORY.fullmatch(memory.strip()) if isinstance(memory, str) else None
    size = int(found[1]) * _UNITS[found[2].lower()] >> 20 << 20 if found else 0
    if not size:
        raise ValueError(f"memory={memory!r}: write a number and a unit, as '1g' or '600m'")
    return size


def check_total(wanted: Executors, nodes: Sequence[NodeRoom]) -> None:
    """Raises SparkNotStarted when the nodes could not hold the executors even if nothing else ran there."""
    room = sum(_room(wanted.resources, node.total) for node in nodes)
    if room < wanted.count:
        missing = _missing(wanted, [node.total for node in nodes])
        raise SparkNotStarted(
            f"Spark needs {wanted}, and the Ray cluster has {missing} for {room} of them "
            f"({'; '.join(_node(wanted, node) for node in nodes)}): ask for less, or add a node"
        )


def occupied(wanted: Executors, nodes: Sequence[NodeRoom], waited_s: float) -> SparkNotStarted:
    """The error when the nodes have room enough, and others did not free it within ``waited_s`` seconds."""
    room = sum(_room(wanted.resources, node.free) for node in nodes)
    missing = _missing(wanted, [node.free for node in nodes])
    return SparkNotStarted(
        f"Spark needs {wanted}, and for {waited_s:g} s the Ray cluster had {missing} free for {room} of them "
        f"({'; '.join(_node(wanted, node) for node in nodes)}): ask for less, or end what uses them (see `ray status`)"
    )


def _room(each: Mapping[str, float], has: Mapping[str, float]) -> int:
    """How many times a node holds ``each``."""
    return min(int(has.get(name, 0.0) // amount) for name, amount in each.items())


def _missing(wanted: Executors, nodes: Sequence[Mapping[str, float]]) -> str:
    """The resources of which there is too little, whatever the others: ``CPU and memory``."""
    scarce = [
        name
        for name, amount in wanted.resources.items()
        if sum(_room({name: amount}, node) for node in nodes) < wanted.count
    ]
    return " and ".join(scarce or wanted.resources)


def _node(wanted: Executors, node: NodeRoom) -> str:
    amounts = []
    for name in wanted.resources:
        unit, scale = ("GiB of memory", GIB) if name == "memory" else (name, 1)
        free, total = node.free.get(name, 0.0) / scale, node.total.get(name, 0.0) / scale
        amounts.append(f"{round(free, 1):g} of {round(total, 1):g} {unit}")
    return f"node {node.host} has {', '.join(amounts)} free"


def check_nodes(reports: Sequence[tuple[str, NodeReport]]) -> str:
    """The Python that executors use, once every node has a fit Java. Raises SparkNotStarted."""
    for host, report in reports:
        if not report.java:
            raise SparkNotStarted(
                f"node {host} has no `java` on the PATH of its raylet, which would abort with every "
                f"broker on it: put Java {WANTED} on the PATH and start Ray there again"
            )
        if report.java_version != WANTED:
            raise SparkNotStarted(
                f"node {host} has {report.java} on the PATH of its raylet, and this Spark wants "
                f"Java {WANTED}: put it on the PATH and start Ray there again"
            )
    pythons = sorted({report.python for _, report in reports})
    if len(pythons) > 1:
        raise SparkNotStarted(
            f"the nodes run Python from different places ({', '.join(pythons)}), and Spark needs one path on "
            "all: install the same environment everywhere"
        )
    return pythons[0]


def version_line(shown: str) -> str:
    """The line of ``java -version`` with the version, else the first. Java tells of JAVA_TOOL_OPTIONS before it."""
    lines = shown.splitlines()
    return next(filter(major_version, lines), lines[0] if lines else "")


def major_version(line: str) -> int:
    """17 for ``openjdk version "17.0.9"``, 8 for ``java version "1.8.0_402"``, 0 without a version."""
    found = re.search(r'version "(?:1\.)?(\d+)', line)
    return int(found[1]) if found else 0
