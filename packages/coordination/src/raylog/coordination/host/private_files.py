"""Files and directories that only their owner may read: they hold records, secrets, and which processes to end."""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["close_to_others", "private_directory", "write_private"]

FILE_MODE, DIRECTORY_MODE = 0o600, 0o700


def write_private(path: Path, text: str) -> None:
    """Replace the file in one step: a reader sees the old or the new text, a crash leaves one of them.

    Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def private_directory(path: Path) -> None:
    """Make the directory, with its parents, or close an existing one to all but its owner. Raises OSError."""
    path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    close_to_others(path)


def close_to_others(path: Path) -> None:
    """Let only its owner into the directory. Raises OSError.

    Left as it is: one that belongs to another user, who decides, and one that all share, as /tmp (its sticky bit).
    """
    found = path.stat()
    if found.st_uid == os.geteuid() and found.st_mode & 0o77 and not found.st_mode & stat.S_ISVTX:
        path.chmod(DIRECTORY_MODE)
