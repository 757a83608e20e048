"""What holds for every test: unit tests reach neither a network nor Ray, property tests have two profiles."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

PACKAGES = Path(__file__).parent / "packages"

settings.register_profile("fast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("exhaustive", parent=settings.get_profile("fast"), max_examples=5_000)
settings.register_profile("mutation", parent=settings.get_profile("fast"), max_examples=25, derandomize=True)
settings.load_profile(os.environ.get("RAYLOG_HYPOTHESIS_PROFILE", "fast"))


@pytest.fixture(autouse=True)
def _unit_tests_stay_inside(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test beside its package that opens a socket, and so anything that Ray or ZooKeeper does, fails."""
    if not request.path.is_relative_to(PACKAGES):
        return

    def refuse(*_: Any) -> None:
        raise AssertionError("a unit test opened a socket; tests that need one stand below tests/")

    for name in ("connect", "connect_ex", "bind"):
        monkeypatch.setattr(socket.socket, name, refuse)
