"""A log's files, read while its broker may delete some: waits for equal logs look at them all the time."""

from __future__ import annotations

from pathlib import Path

__all__ = ["log_bytes", "segment_bytes"]


def log_bytes(directory: Path) -> bytes:
    """The log in a partition's directory as it is on disk."""
    return b"".join(map(segment_bytes, sorted(directory.glob("*.log"))))


def segment_bytes(path: Path) -> bytes:
    """What is in the segment; nothing when it was deleted meanwhile."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
