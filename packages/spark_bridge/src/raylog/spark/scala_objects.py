"""Scala's objects through py4j, which knows Java's classes alone."""

from __future__ import annotations

from typing import Any


def scala_object(package: Any, name: str) -> Any:
    """The object of that name, of which Java sees a class with a field."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")
