"""The JSON of nodes: what cannot be read raises CorruptMetadata, which names the node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from raylog.protocol.errors import RaylogError


class CorruptMetadata(RaylogError):
    """A node holds what cannot be read; another program wrote it, or a much newer raylog."""


def dump(value: Mapping[str, Any]) -> bytes:
    """As short as JSON can be."""
    return json.dumps(value, separators=(",", ":")).encode()


def load(path: str, data: bytes) -> dict[str, Any]:
    """The JSON object that the node holds."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise CorruptMetadata(f"{path} holds no JSON: {data[:80]!r}") from error
    if not isinstance(value, dict):
        raise CorruptMetadata(f"{path} should hold a JSON object, but holds {data[:80]!r}")
    return value


class Reading:
    """Turns a missing or misshapen field into CorruptMetadata that names the node."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, (KeyError, ValueError, TypeError, AttributeError)):
            raise CorruptMetadata(f"{self._path} lacks a field or has a wrong one: {error!r}") from error


def number(path: str, data: bytes) -> int:
    """The bare decimal number that the node holds."""
    with Reading(path):
        return int(data)
