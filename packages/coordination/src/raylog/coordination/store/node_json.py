"""The JSON of nodes: what cannot be read raises CorruptMetadata, which names the node, and nothing else.

A field is of exactly its kind and in its range, or it is wrong: 1.0, true and "1" are no numbers, "12" is no list of
brokers, and a text is one that UTF-8 can hold. So what was read can be written, sent and made a path of.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import BrokerId

INT32, INT64 = 2**31 - 1, 2**63 - 1
"""The largest."""

_SHOWN = 200
"""Characters of a foreign value in an error's text."""
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]{0,18})")


class CorruptMetadata(RaylogError):
    """The node at ``path`` holds what cannot be read, or has a name that says nothing: another program made it, or a
    much newer raylog.
    """

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path} {what}")
        self.path = path
        self.what = what


def dump(value: Mapping[str, Any]) -> bytes:
    """As short as JSON can be."""
    return json.dumps(value, separators=(",", ":")).encode()


def load(path: str, data: bytes) -> dict[str, Any]:
    """The JSON object that the node holds."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptMetadata(path, f"holds no JSON: {data[:80]!r}") from error
    if type(value) is not dict:
        raise CorruptMetadata(path, f"should hold a JSON object, but holds {data[:80]!r}")
    return value


class Reading:
    """Turns a missing or misshapen field into CorruptMetadata that names the node."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, (LookupError, ValueError, TypeError, AttributeError)):
            what = f"lacks a field or has a wrong one: {error!r}"
            raise CorruptMetadata(self._path, what[:_SHOWN]) from error


def number(path: str, data: bytes) -> int:
    """The bare decimal number that the node holds, with blanks around it perhaps, as people type."""
    with Reading(path):
        return decimal(data.decode().strip(), -INT64)


# --- fields: each raises ValueError or TypeError


def integer(value: Any, low: int = 0, high: int = INT32) -> int:
    """A JSON number without a fraction, in this range."""
    if type(value) is not int:
        raise TypeError(f"{value!r:.80} is no whole number")
    if not low <= value <= high:
        raise ValueError(f"{value} is not between {low} and {high}")
    return value


def decimal(value: Any, low: int = 0, high: int = INT64) -> int:
    """A number as text, in the one way in which it is written."""
    if not _DECIMAL.fullmatch(text(value)):
        raise ValueError(f"{value!r:.80} is no decimal number")
    return integer(int(value), low, high)


def text(value: Any) -> str:
    """Text that can be encoded: JSON can hold half a character."""
    if type(value) is not str:
        raise TypeError(f"{value!r:.80} is no text")
    value.encode()
    return value


def flag(value: Any) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise TypeError(f"{value!r:.80} is neither true nor false")
    return value


def array(value: Any) -> list[Any]:
    """A JSON array."""
    if type(value) is not list:
        raise TypeError(f"{value!r:.80} is no array")
    return value


def fields(value: Any) -> dict[str, Any]:
    """A JSON object."""
    if type(value) is not dict:
        raise TypeError(f"{value!r:.80} is no object")
    return value


def texts(value: Any) -> dict[str, str]:
    """A JSON object from text to text."""
    return {text(name): text(each) for name, each in fields(value).items()}


def broker_ids(value: Any) -> tuple[BrokerId, ...]:
    """Different brokers."""
    found: tuple[BrokerId, ...] = tuple(array(value))
    for each in found:
        if type(each) is not int or not 0 <= each <= INT32:
            integer(each)  # which says what is wrong
    if len({*found}) != len(found):
        raise ValueError(f"{value!r:.80} repeats a broker")
    return found


def host(value: Any) -> str:
    """A name or an address, as far as a resolver can be asked for it."""
    if len(text(value)) > 255 or not value.isprintable() or any(each.isspace() for each in value):
        raise ValueError(f"{value!r:.80} is no host")
    return str(value)


def port(value: Any) -> int:
    """A TCP port."""
    return integer(value, 0, 65_535)


def encode_topic_id(topic_id: UUID) -> str:
    """Kafka's way to write a UUID: base64 for URLs, 22 characters."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def decode_topic_id(encoded: str) -> UUID:
    """Raises ValueError when it is none."""
    return UUID(bytes=base64.urlsafe_b64decode(encoded + "=="))
