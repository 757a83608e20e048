"""◆ The texts of settings, from what a user gives for them, and of addresses."""

from __future__ import annotations

import re
from numbers import Real
from typing import Any

from raylog.protocol.errors import InvalidConfig
from raylog.protocol.settings import between

INT16_MAX, INT32_MAX, INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1
"""The largest numbers of Kafka's types: of replicas; of partitions and brokers; of offsets and times."""
MAX_TEXT_BYTES = INT16_MAX
"""What a text may take where it is sent with a length of 16 bits."""


def not_sendable(text: str) -> str | None:
    """Why the text cannot be sent; None when it can."""
    try:
        size = len(text.encode())
    except UnicodeError as error:
        return f"is no Unicode: {error}"
    return f"has {size} bytes, and may have {MAX_TEXT_BYTES}" if size > MAX_TEXT_BYTES else None


def digits(text: str) -> int | None:
    """The number that ``text`` is, if it is nothing but ASCII digits, and at most INT64_MAX."""
    number = int(text) if re.fullmatch("[0-9]{1,19}", text) else INT64_MAX + 1
    return number if number <= INT64_MAX else None


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


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``, ``[v6]:port`` or ``LISTENER://host:port``; InvalidConfig when it is
    neither."""
    host, colon, port = text.rpartition("://")[2].rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    if not colon or not host or not is_number or between(1, 65535)(int(port)):
        raise InvalidConfig(f"bootstrap.servers: {text!r} is not host:port")
    return host.strip("[]"), int(port)
