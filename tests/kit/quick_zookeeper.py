"""ZooKeeper's JVM starts quickly in tests: it loads its classes from an archive, and computes two thirds as long.

At night JVMs run as users' do.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

import pytest

from kit.forms import NIGHTLY
from kit.quick_java import VARIABLE, archive_of, publish, used
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper
from raylog.coordination.zookeeper.server import class_path

__all__ = ["start"]


def start(server: EmbeddedZooKeeper) -> None:
    """Start it; its JVM loads classes from the archive, also when its owner starts it again."""
    if NIGHTLY:
        server.start()
    else:
        _start(server, f"-XX:SharedArchiveFile={_archive()}")


def _start(server: EmbeddedZooKeeper, option: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(VARIABLE, f"{os.environ.get(VARIABLE, '')} {option} -Xlog:disable".strip())
        server.start()


@cache
def _archive() -> Path:
    """For this Java and these jars, written by a JVM that serves and ends, if there was none.

    It appears whole or not at all, since several test runs may want it at the same time.
    """
    archive = archive_of("zookeeper", [Path(jar) for jar in class_path().split(":")])
    if not used(archive):
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
            fresh, server = Path(directory, archive.name), EmbeddedZooKeeper(Path(directory, "zookeeper"))
            try:
                _start(server, f"-XX:ArchiveClassesAtExit={fresh}")
            finally:
                server.stop()
            if fresh.exists():
                publish(fresh, archive)
    return archive
