"""JVMs of tests start quickly: they compile less, and Spark's load its classes from an archive.

A JVM of Spark lives for seconds in most tests, and computes more for its compilers and collectors than for Spark. At
night JVMs run as users' do.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

from kit.forms import NIGHTLY
from raylog.coordination.host.java import find_java

VARIABLE = "JAVA_TOOL_OPTIONS"
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
"""The first compiler only, no threads that collect beside the program, and no word of an archive that does not fit."""

KEPT_ARCHIVES = 4


def options() -> str:
    """For :data:`VARIABLE`: what all JVMs of the tests are told."""
    given = os.environ.get(VARIABLE, "").partition(OPTIONS)[0].strip()
    archive = class_archive()
    shared = f"-XX:SharedArchiveFile={archive}" if used(archive) else ""
    return " ".join(filter(None, [given, OPTIONS, shared]))


@contextmanager
def quick_java() -> Iterator[None]:
    """For the processes that this one starts meanwhile."""
    before = os.environ.get(VARIABLE)
    if NIGHTLY:
        yield
        return
    os.environ[VARIABLE] = options()
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def class_archive() -> Path:
    """Where classes of Spark's driver are kept, loaded and checked, for this Java and this environment's Spark."""
    return archive_of("spark", sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar")))


def archive_of(program: str, jars: Sequence[Path]) -> Path:
    """Where the classes of a program of these jars are kept for this Java.

    The JVM looks itself whether the jars are the same, and goes without an archive that does not fit. ``RAYLOG_JARS``
    is the directory, as for jars from Maven.
    """
    java = find_java().executable.resolve()
    known = [f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in (java, *jars)]
    name = hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]
    return Path(os.environ.get("RAYLOG_JARS", Path.home() / ".cache" / "raylog" / "jars")) / f"{program}-{name}.jsa"


def used(archive: Path) -> bool:
    """Whether it is there; then it counts as used now, for :func:`publish`."""
    with suppress(FileNotFoundError):
        os.utime(archive)
        return True
    return False


def publish(fresh: Path, archive: Path) -> None:
    """Put ``fresh`` in its place. Of the program's archives only those stay that were used last: each environment has
    one of its own, of up to 137 MB.
    """
    fresh.replace(archive)
    program = archive.name.rpartition("-")[0]
    known = {found: found.stat().st_mtime for found in archive.parent.glob(f"{program}-*.jsa")}
    for old in sorted(known, key=known.__getitem__)[:-KEPT_ARCHIVES]:
        old.unlink(missing_ok=True)


class ArchiveWriter:
    """Lets the driver's JVM write the archive at its end, if there is none yet.

    It appears whole or not at all, since several test runs may want it at the same time.
    """

    def __init__(self) -> None:
        self._archive = class_archive()
        self._fresh = self._archive.with_name(f".{self._archive.name}-{os.getpid()}")
        self._needed = not NIGHTLY and not self._archive.exists()

    @property
    def java_options(self) -> str:
        """For the driver's JVM."""
        if not self._needed:
            return ""
        self._archive.parent.mkdir(parents=True, exist_ok=True)
        return f"-XX:ArchiveClassesAtExit={self._fresh}"

    def publish(self, exit_code: int | None) -> None:
        """Once the JVM has ended with ``exit_code``."""
        if exit_code == 0 and self._fresh.exists():
            publish(self._fresh, self._archive)
        self._fresh.unlink(missing_ok=True)
