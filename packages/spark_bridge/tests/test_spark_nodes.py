"""What a session makes of the nodes' reports, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylog.coordination.host.java import WANTED, find_java
from raylog.spark.sessions.nodes import prepare_node
from raylog.spark.sessions.plan import (
    EXECUTOR_RESOURCE,
    GIB,
    NodeReport,
    NodeRoom,
    SparkNotStarted,
    check_nodes,
    check_total,
    executors_wanted,
    major_version,
    memory_bytes,
    occupied,
)
from raylog.spark.sessions.ray import same_ray

GOOD = NodeReport("/venv/bin/python", 'openjdk version "17.0.9" 2023-10-17', 17)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ('openjdk version "17.0.9" 2023-10-17', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("Error: could not find libjava.so", 0),
        ("", 0),
    ],
)
def test_versions_of_java_are_read(line: str, version: int) -> None:
    assert major_version(line) == version


def test_java_that_picked_up_options_is_still_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(find_java().executable.parent))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx64m")
    report = prepare_node(str(tmp_path / "scratch"), [])
    assert report.java_version == WANTED
    assert "version" in report.java


def test_nodes_alike_are_taken() -> None:
    assert check_nodes([("a", GOOD), ("b", GOOD)]) == "/venv/bin/python"


@pytest.mark.parametrize(
    ("report", "complaint"),
    [
        (NodeReport(GOOD.python, "", 0), "node b has no `java` on the PATH"),
        (
            NodeReport(GOOD.python, 'java version "1.8.0_402"', 8),
            'node b has java version "1.8.0_402" .* wants Java 17',
        ),
        (NodeReport("/other/python", GOOD.java, 17), "Python from different places"),
    ],
)
def test_one_unfit_node_refuses_all_in_one_sentence(report: NodeReport, complaint: str) -> None:
    with pytest.raises(SparkNotStarted, match=complaint) as caught:
        check_nodes([("a", GOOD), ("b", report)])
    assert "\n" not in str(caught.value)


def test_ray_is_known_by_its_loopback_address_too() -> None:
    assert same_ray("10.0.0.1:6379", "10.0.0.1:6379")
    assert same_ray("127.0.0.1:6379", "10.0.0.1:6379")
    assert not same_ray("127.0.0.1:6380", "10.0.0.1:6379")
    assert not same_ray("10.0.0.2:6379", "10.0.0.1:6379")


def node(
    host: str, cpus: float, gib: float, *, free_cpus: float | None = None, free_gib: float | None = None
) -> NodeRoom:
    total = {"CPU": cpus, "memory": gib * GIB}
    left = {
        "CPU": cpus if free_cpus is None else free_cpus,
        "memory": (gib if free_gib is None else free_gib) * GIB,
    }
    return NodeRoom(host, total, left)


@pytest.mark.parametrize(
    ("memory", "size"),
    [("1g", GIB), ("600m", 600 << 20), ("2GB", 2 * GIB), ("3000k", 2 << 20), (" 1t ", 1 << 40)],
)
def test_memory_is_read_as_spark_reads_it(memory: str, size: int) -> None:
    assert memory_bytes(memory) == size


@pytest.mark.parametrize("memory", ["", "lots", "1", "1.5g", "-1g", "0m", "100k"])
def test_unfit_memory_is_named(memory: str) -> None:
    with pytest.raises(ValueError, match=f"memory='{memory}'"):
        executors_wanted(1, 1, memory, {})


@pytest.mark.parametrize("unfit", [{"executors": 0, "cores": 1}, {"executors": 1, "cores": -1}])
def test_unfit_numbers_are_named(unfit: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"(executors=0|cores=-1): Spark needs at least 1"):
        executors_wanted(unfit["executors"], unfit["cores"], "1g", {})


def test_an_executor_takes_what_raydp_asks_for() -> None:
    configs = {f"{EXECUTOR_RESOURCE}cpu": "0.5", f"{EXECUTOR_RESOURCE}GPU": "1", "spark.executor.cores": "9"}
    assert executors_wanted(1, 2, "1g", {}).resources == {"CPU": 2.0, "memory": GIB}
    assert executors_wanted(1, 2, "1g", configs).resources == {"CPU": 0.5, "memory": GIB, "GPU": 1.0}


def test_executors_fit_on_single_nodes_or_not_at_all() -> None:
    wanted = executors_wanted(2, 2, "1g", {})
    check_total(wanted, [node("a", 4, 8)])
    check_total(wanted, [node("a", 2, 1), node("b", 3, 1.5)])
    with pytest.raises(SparkNotStarted, match=r"2 executors of 2 CPUs and 1g .* has CPU for 1 of them .*add a node"):
        check_total(wanted, [node("a", 3, 8), node("b", 1, 8)])  # four CPUs, in the wrong places
    with pytest.raises(SparkNotStarted, match=r"has memory for 1 of them \(node a has 4 of 4 CPU, 1.5 of 1.5 GiB"):
        check_total(wanted, [node("a", 4, 1.5)])
    with pytest.raises(SparkNotStarted, match="has CPU and memory for 0 of them"):
        check_total(wanted, [node("a", 1, 0.5)])
    with pytest.raises(SparkNotStarted, match="has CPU and memory for 0 of them"):
        check_total(wanted, [node("a", 8, 0.5), node("b", 1, 8)])  # each has what the other has not


def test_what_others_use_is_told() -> None:
    busy = [node("a", 4, 8, free_cpus=1), node("b", 2, 8, free_gib=0.2)]
    error = str(occupied(executors_wanted(2, 2, "1g", {}), busy, 30))
    assert "for 30 s the Ray cluster had CPU free for 0 of them" in error
    assert "node a has 1 of 4 CPU, 8 of 8 GiB of memory free; node b has 2 of 2 CPU, 0.2 of 8 GiB" in error
    assert "ray status" in error
    assert "\n" not in error
