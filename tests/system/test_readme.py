"""What the README shows works as shown: its command lines and its Python, against a cluster of broker actors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kit.cli import RunningCluster
from kit.machine import scaled

pytestmark = pytest.mark.system

README = (Path(__file__).parents[2] / "README.md").read_text()
BIN = Path(sys.executable).parent


def blocks(language: str) -> list[str]:
    """The README's code blocks of that language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def run(cluster: RunningCluster, *command: str, timeout_s: float = 120) -> str:
    environment = {
        **os.environ,
        "RAYLOG_HOME": str(cluster.home),
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        command, env=environment, cwd=cluster.home, capture_output=True, text=True, timeout=scaled(timeout_s)
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def test_the_tour(three_brokers: RunningCluster) -> None:
    (shell,) = [block for block in blocks("") if "raylog produce" in block]
    lines = [line for line in shell.splitlines() if not re.match(r"raylog (up|down)\b", line)]
    printed = run(three_brokers, "bash", "-euo", "pipefail", "-c", "\n".join(lines))
    assert printed.count('"topic": "clicks"') == 3
    assert "bootstrap_servers" in printed

    address = three_brokers.status()["bootstrap_servers"].partition(",")[0]
    confluent, ours, columns, groups, handles, spark, datasets = blocks("python")
    run(three_brokers, sys.executable, "-c", confluent.replace("127.0.0.1:9092", address))
    printed = run(three_brokers, sys.executable, "-c", ours)
    assert len(printed.splitlines()) == 100
    assert "{'page': 99}" in printed
    assert int(run(three_brokers, sys.executable, "-c", columns)) > 0
    assert len(run(three_brokers, sys.executable, "-c", groups).splitlines()) == 100
    described = json.loads(run(three_brokers, "raylog", "groups", "describe", "billing", "--output", "json"))
    assert {partition["lag"] for partition in described["partitions"]} == {0}
    assert sum(partition["committed"] for partition in described["partitions"]) > 100_000
    printed = run(three_brokers, sys.executable, "-c", handles + "print(high_watermark - offsets[-1])")
    assert printed == "1\n"
    printed = run(three_brokers, sys.executable, "-c", spark, timeout_s=180)
    assert "|partition|" in printed
    pages = [
        json.loads(line)["page"]
        for line in run(
            three_brokers, "raylog", "consume", "even-visits", "--from-beginning", "--until-end"
        ).splitlines()
    ]
    assert sorted(pages) == list(range(0, 100, 2))
    printed = run(three_brokers, sys.executable, "-c", datasets, timeout_s=120)
    *_, clicks, visits = printed.splitlines()
    assert int(clicks) > 100_000
    assert visits == "100"
