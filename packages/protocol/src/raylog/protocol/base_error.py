"""The base of all errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from raylog.protocol.texts import safe_text


class RaylogError(Exception):
    """Base of all errors that raylog raises on purpose; alone it means a defect: UNKNOWN_SERVER_ERROR on the wire.

    What it says can be written and sent (see ``texts``). Every one of them can be pickled, with its attributes,
    whatever the arguments that it is made with.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(safe_text(message))

    def __reduce__(self) -> tuple[Callable[..., RaylogError], tuple[Any, ...]]:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[RaylogError], args: tuple[Any, ...], attributes: Mapping[str, Any]) -> RaylogError:
    """An error as it was: made anew, it would want the arguments that its message is made of."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error
