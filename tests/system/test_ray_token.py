"""Who gets into the Ray cluster that `raylog up` starts: whoever can read the file with its token."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kit.cli import RunningCluster
from kit.forms import some
from kit.machine import scaled

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

DRIVER = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False); print('it is in')"


def join(address: str, home: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """A user's own driver, whose environment tells of Ray what ``settings`` are, and that gives up soon."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    environment |= {"HOME": str(home), "RAY_NUM_REDIS_GET_RETRIES": "1", **settings}
    command = [sys.executable, "-c", DRIVER, address]
    return subprocess.run(command, capture_output=True, text=True, timeout=scaled(60), env=environment, check=False)


def test_only_the_owner_can_read_the_token(three_brokers: RunningCluster) -> None:
    path = Path(three_brokers.file()["ray"]["auth_token_path"])
    assert path.is_relative_to(three_brokers.data_dir)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text()) == 64
    assert three_brokers.status()["ray_auth_token_path"] == str(path)


@pytest.mark.parametrize(
    "settings", some([{}, {"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a guess"}], 3)
)
def test_a_driver_without_the_token_is_refused(
    three_brokers: RunningCluster, tmp_path: Path, settings: dict[str, str]
) -> None:
    refused = join(three_brokers.file()["ray"]["address"], tmp_path, **settings)
    assert refused.returncode != 0
    assert "it is in" not in refused.stdout
    assert "Authentication token is missing or incorrect" in refused.stderr


def test_a_driver_with_the_token_gets_in(three_brokers: RunningCluster, tmp_path: Path) -> None:
    facts = three_brokers.file()["ray"]
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": facts["auth_token_path"]}
    assert "it is in" in join(facts["address"], tmp_path, **settings).stdout
