"""Clients outside Python: left out where they are not installed, unless this run demands them."""

from __future__ import annotations

import os

import pytest

from kit import maven

DEMANDED = set(filter(None, os.environ.get("RAYLOG_REQUIRE_CLIENTS", "").split(",")))
"""Clients whose absence is a failure: ``kcat``, ``java``."""


def left_out(name: str, missing: bool) -> bool:
    """Whether a client outside Python is to be left out. Fails when it is demanded and not there."""
    if missing and name in DEMANDED:
        pytest.fail(f"RAYLOG_REQUIRE_CLIENTS demands {name}, which is not installed")
    return missing


def java_left_out() -> bool:
    """Whether what runs in a JVM is to be left out."""
    return left_out("java", bool(maven.missing_programs()))
