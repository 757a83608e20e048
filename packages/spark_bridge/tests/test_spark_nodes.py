"""What a session makes of the nodes' reports, before anything starts."""

from __future__ import annotations

import pytest

from raylog.spark.session_plan import NodeReport, SparkNotStarted, check_nodes, major_version
from raylog.spark.session_ray import same_ray

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
