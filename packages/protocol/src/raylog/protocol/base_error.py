"""The base of all errors, and how long what they say may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

MAX_MESSAGE = 4_000
"""Characters: a message quotes what clients sent, which may be any length; it goes into logs and into answers, where
old versions of the protocol take 32,767 bytes.
"""


class RaylogError(Exception):
    """Base of all errors that raylog raises on purpose; alone it means a defect: UNKNOWN_SERVER_ERROR on the wire.

    Every one of them can be pickled, with its attributes, whatever the arguments that it is made with.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…")

    def __reduce__(self) -> tuple[Callable[..., RaylogError], tuple[Any, ...]]:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[RaylogError], args: tuple[Any, ...], attributes: Mapping[str, Any]) -> RaylogError:
    """An error as it was: made anew, it would want the arguments that its message is made of."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error
