"""Directories and files that nobody but their owner may read."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from raylog.coordination.host.private_files import close_to_others, private_directory, write_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("before", [None, 0o755, 0o700, 0o777, 0o2775])
def test_private_directory_is_its_owners_alone(tmp_path: Path, before: int | None) -> None:
    path = tmp_path / "data" if before else tmp_path / "parent" / "data"
    if before:
        path.mkdir()
        path.chmod(before)
    private_directory(path)
    assert mode(path) == 0o700
    assert tmp_path.is_dir()


def test_directory_that_all_share_stays_open(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    private_directory(tmp_path)
    assert mode(tmp_path) == 0o1777


def test_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        close_to_others(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_private_file_replaces_an_open_one(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, "new")
    assert (path.read_text(), mode(path)) == ("new", 0o600)
    assert list(tmp_path.iterdir()) == [path]
