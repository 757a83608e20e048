"""The files below infra/ are what Ray and ZooKeeper accept."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from raylog.coordination.zookeeper.server import write_settings

INFRA = Path(__file__).parent.parent / "infra"


@pytest.fixture(scope="module")
def cluster() -> dict[str, Any]:
    """What `ray up` makes of the cluster YAML before it starts anything."""
    loaded = yaml.safe_load((INFRA / "ray/local.yaml").read_text())
    prepared: dict[str, Any] = prepare_config(loaded)
    return prepared


def test_ray_accepts_the_cluster(cluster: dict[str, Any]) -> None:
    validate_config(cluster)
    assert cluster["provider"]["type"] == "local"


@pytest.mark.parametrize("key", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_ray_starts_with_java_and_a_label(cluster: dict[str, Any], key: str) -> None:
    [command] = cluster[key]
    subprocess.run(["bash", "-n", "-c", command], check=True)
    assert command.index("find_java") < command.index("ray start")
    assert "--labels=" in command
    assert "raylog.io/place=" in command
    assert "ray stop" not in command


def settings_of(path: Path) -> dict[str, str]:
    lines = (line.strip() for line in path.read_text().splitlines())
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_zookeepers_settings_are_those_of_the_embedded_one(tmp_path: Path) -> None:
    written = settings_of(write_settings(tmp_path, "127.0.0.1", 2181, superuser=""))
    shown = settings_of(INFRA / "zookeeper/zoo.cfg")
    assert shown | {"dataDir": written["dataDir"]} == written
