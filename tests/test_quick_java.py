"""The archives of classes that tests keep between runs."""

from __future__ import annotations

import os
from pathlib import Path

from kit.quick_java import KEPT_ARCHIVES, publish, used


def test_archives_used_last_stay(tmp_path: Path) -> None:
    archives = [tmp_path / f"spark-{number}.jsa" for number in range(KEPT_ARCHIVES + 2)]
    for age, archive in enumerate(archives):
        archive.write_bytes(b"")
        os.utime(archive, (1_000 - age, 1_000 - age))
    other = tmp_path / "zookeeper-0.jsa"
    other.write_bytes(b"")
    os.utime(other, (1, 1))
    assert used(archives[-1])
    assert not used(tmp_path / "spark-9.jsa")
    fresh = tmp_path / "fresh"
    fresh.write_bytes(b"new")
    publish(fresh, tmp_path / "spark-9.jsa")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"spark-9.jsa", archives[-1].name, "spark-0.jsa", "spark-1.jsa", other.name}
