"""Jars from Maven, kept outside the tree.

``RAYLOG_JARS`` names the directory that keeps them (``~/.cache/raylog/jars`` else); Maven fills it on first use.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from kit.machine import scaled

SOURCES = Path(__file__).parent.parent / "conformance" / "java"
PROGRAMS = ("java", "javac", "mvn")
TIMEOUT_S = 600


class Release(NamedTuple):
    """What Maven resolves: an artifact and all that it needs."""

    artifact: str
    version: str
    group: str = "org.apache.kafka"

    @property
    def name(self) -> str:
        return f"java-{self.version.partition('.')[0]}"


def missing_programs() -> list[str]:
    """Those of the programs that are not on this machine."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


def jars(release: Release) -> Path:
    """The directory with the release's jars; resolved by Maven when it is not there yet.

    It appears whole or not at all, since several test runs may want it at the same time.
    """
    cache = Path(os.environ.get("RAYLOG_JARS", Path.home() / ".cache" / "raylog" / "jars"))
    home = cache / f"{release.artifact}-{release.version}"
    if not home.exists():
        cache.mkdir(parents=True, exist_ok=True)
        fresh = cache / f".{home.name}-{os.getpid()}"
        try:
            resolve(release, fresh)
            fresh.rename(home)
        except OSError:
            if not home.exists():
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return home


def resolve(release: Release, target: Path) -> None:
    """Let Maven copy the release's jars to ``target``. CalledProcessError with Maven's words when it cannot."""
    coordinates = [f"-Dgroup={release.group}", f"-Dartifact={release.artifact}", f"-Drelease={release.version}"]
    command = ["mvn", "-q", "-B", "-f", str(SOURCES / "pom.xml"), "dependency:copy-dependencies", *coordinates]
    subprocess.run([*command, f"-DoutputDirectory={target}"], check=True, timeout=scaled(TIMEOUT_S))
