"""◆ What a user gives for one record, checked at the call: met later, in the sender, it would fail a whole batch."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from raylog.client.batches.accumulator import header_size
from raylog.client.config.texts import INT32_MAX, INT64_MAX
from raylog.protocol.errors import InvalidPartitions, InvalidRecord

Headers = Sequence[tuple[str, bytes | None]]


def whole_number(given: Any) -> int | None:
    """``given`` as an int, if it is one of any library's; None for everything else, True and False among it."""
    if isinstance(given, bool):
        return None
    try:
        return operator.index(given)
    except TypeError:
        return None


def serialized(given: Any, what: str) -> bytes | None:
    """What the serializer of ``what`` gave, as bytes; None is null. Raises InvalidRecord."""
    if given is None:
        return None
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise InvalidRecord(f"the {what} serializer gave a {type(given).__name__}; it has to give bytes or None")


def timestamp_ms(given: Any, topic: str) -> int:
    """Raises InvalidRecord for what is no time in ms since 1970."""
    number = whole_number(given)
    if number is None or not 0 <= number <= INT64_MAX:
        raise InvalidRecord(f"{topic}: timestamp {given!r} is not in milliseconds since 1970, a whole number")
    return number


def partition_index(given: Any, topic: str) -> int:
    """Raises InvalidPartitions for what can be no partition's number."""
    number = whole_number(given)
    if number is None or not 0 <= number <= INT32_MAX:
        raise InvalidPartitions(f"{topic}: partition {given!r} is not a whole number from 0 on")
    return number


def checked_headers(given: Any, topic: str) -> tuple[Headers, int]:
    """The headers as a tuple of pairs, and the most bytes they take. Raises InvalidRecord.

    ``given``: pairs of a str and bytes or None, or a dict of them.
    """
    size = 0
    kept = []
    try:
        for name, value in given if type(given) is list or type(given) is tuple else _pairs(given):
            if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
                raise TypeError(f"{name!r} has a {type(value).__name__}")
            size += header_size(name, value)
            kept.append((name, value))
    except (TypeError, ValueError) as error:
        raise InvalidRecord(f"{topic}: headers must be pairs of a str and bytes or None: {error}") from error
    return tuple(kept), size


def _pairs(given: Any) -> Any:
    if isinstance(given, str | bytes | bytearray | memoryview):
        raise TypeError(f"they are one {type(given).__name__}")
    return given.items() if isinstance(given, Mapping) else given
