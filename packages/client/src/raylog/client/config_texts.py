"""◆ The text of a setting, from what a user gives for it."""

from __future__ import annotations

from numbers import Real
from typing import Any

from raylog.protocol.errors import InvalidConfig


def setting_text(name: str, value: Any) -> str:
    """Raises InvalidConfig for what is no text, number, truth or list of them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(setting_text(name, item) for item in value)
    if not isinstance(value, str | Real):
        raise InvalidConfig(
            f"{name}: a {type(value).__name__} is no value of a setting; give a str, a number or a list"
        )
    try:
        str(value).encode()
    except UnicodeError as error:
        raise InvalidConfig(f"{name}={value!r}: {error}") from error
    return str(value)
