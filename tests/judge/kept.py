"""Answers that are kept in a file, each with a digest of what was asked, so that a later question finds no old answer.

Lines of JSON, compressed: who answered, in which version; then of each question its name, its digest and the answer.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["current", "digest", "read", "write"]

K = TypeVar("K", str, int)


def read(path: Path) -> tuple[str, dict[Any, tuple[str, Any]]]:
    """Kafka's version, and digest and answer by the questions' names."""
    first, *lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    return json.loads(first)["kafka"], {name: (digest, answer) for name, digest, answer in map(json.loads, lines)}


def write(path: Path, version: str, kept: Mapping[Any, tuple[str, Any]]) -> None:
    """Keep these in place of what was kept."""
    lines = [_line({"kafka": version}), *(_line([name, *each]) for name, each in kept.items())]
    path.write_bytes(lzma.compress("\n".join(lines).encode(), preset=6))


def current(kept: Mapping[K, tuple[str, Any]], asked: Mapping[K, str], what: str, command: str) -> dict[K, Any]:
    """The answers to what is asked: names of ``what`` with digests. ValueError where something else was asked."""
    stale = [name for name, digest in asked.items() if name not in kept or kept[name][0] != digest]
    if stale:
        raise ValueError(f"{len(stale)} {what}, as {stale[0]!r}, were not asked so: {command}")
    return {name: kept[name][1] for name in asked}


def digest(question: object) -> str:
    """Of what is asked, by all that it says of itself."""
    return hashlib.sha256(repr(question).encode()).hexdigest()[:8]


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
