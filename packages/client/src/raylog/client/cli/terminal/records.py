"""Records as lines of text, both ways: what ``raylog consume`` writes and ``raylog produce`` reads."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from raylog.client.cli.terminal.json_input import a_list, a_number, a_text, an_object, parsed
from raylog.client.results import ConsumerRecord
from raylog.protocol.errors import InvalidRecord, InvalidRequest
from raylog.protocol.ids import NO_TIMESTAMP
from raylog.protocol.tables import as_json

Headers = tuple[tuple[str, bytes | None], ...]


class NewRecord(NamedTuple):
    """A record to send, as it was read."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None


# --- out -------------------------------------------------------------------------------------------------------------


def formatter(template: str) -> Callable[[ConsumerRecord], bytes]:
    """How to write a record: ``value``, ``json``, or a template as kcat's. Raises InvalidRequest.

    A template has ``%t`` topic, ``%p`` partition, ``%o`` offset, ``%k`` key, ``%s`` or ``%v`` value, ``%T`` timestamp
    (ms), ``%h`` headers, ``%K`` and ``%S`` the sizes of key and value, ``%%``, and the escapes ``\\n \\t \\r \\0``.
    """
    if template == "value":
        return _value_line
    if template == "json":
        return lambda record: _json(facts(record)) + b"\n"
    if "%" not in template:
        raise InvalidRequest(f"--format {template!r} is neither value, json nor a template such as '%p %o %k %s\\n'")
    parts = [_part(token) for token in _TOKEN.findall(template)]
    return lambda record: b"".join([part if isinstance(part, bytes) else part(record) for part in parts])


_TOKEN = re.compile(r"%.?|\\.?|[^%\\]+", re.DOTALL)
_ESCAPES = {"\\n": b"\n", "\\t": b"\t", "\\r": b"\r", "\\0": b"\0", "\\\\": b"\\", "%%": b"%"}
_FIELDS: dict[str, Callable[[ConsumerRecord], bytes]] = {
    "%t": lambda record: record.topic.encode(),
    "%p": lambda record: b"%d" % record.partition,
    "%o": lambda record: b"%d" % record.offset,
    "%k": lambda record: _shown(record.key),
    "%s": lambda record: _shown(record.value),
    "%v": lambda record: _shown(record.value),
    "%T": lambda record: b"%d" % record.timestamp,
    "%h": lambda record: b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers),
    "%K": lambda record: _size(record.key),
    "%S": lambda record: _size(record.value),
}


def _part(token: str) -> bytes | Callable[[ConsumerRecord], bytes]:
    if token in _ESCAPES:
        return _ESCAPES[token]
    if token in _FIELDS:
        return _FIELDS[token]
    if token.startswith("%"):
        raise InvalidRequest(f"--format: {token} is unknown; known are {' '.join(_FIELDS)} and %%")
    return token.encode()


def _size(value: Any) -> bytes:
    """As kcat: -1 for null."""
    return b"-1" if value is None else b"%d" % len(_shown(value))


def _value_line(record: ConsumerRecord) -> bytes:
    return _shown(record.value) + b"\n"


def _shown(value: Any) -> bytes:
    """Bytes as they are, null as nothing, text as UTF-8, and what else was deserialized as JSON."""
    if type(value) is bytes:
        return value
    if value is None:
        return b""
    return value.encode() if isinstance(value, str) else _json(value)


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRecord(f"a record cannot be shown as JSON ({error}); read its key or value as bytes") from error


def _plain(value: Any) -> Any:
    """What JSON has no form for: bytes inside a value, or a type of msgpack's own."""
    return text(value) if isinstance(value, bytes) else str(value)


def facts(record: ConsumerRecord) -> dict[str, Any]:
    """Everything about a record, for JSON."""
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": "LogAppendTime" if record.timestamp_type else "CreateTime",
        "headers": [[name, text(value)] for name, value in record.headers],
        "key": text(record.key),
        "value": text(record.value),
    }


def text(value: Any) -> Any:
    """For JSON: UTF-8 as text, other bytes as {"base64": …}, what was deserialized as it is."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


# --- in --------------------------------------------------------------------------------------------------------------


def line_reader(
    key_separator: str | None, headers: Headers, null_marker: str | None = None
) -> Callable[[bytes], NewRecord]:
    """How to read a line (without its end) whose value comes after ``key_separator``, if one is given. A key or value
    that is ``null_marker`` is null (KIP-810)."""
    separator = None if key_separator is None else _unescaped(key_separator)
    if separator == b"":
        raise InvalidRequest("--key-separator is empty; give what stands between key and value, such as '\\t'")

    null = None if null_marker is None else null_marker.encode()

    def read(line: bytes) -> NewRecord:
        if separator is None:
            return NewRecord(None if line == null else line, headers=headers)
        key, found, value = line.partition(separator)
        if not found:
            raise InvalidRecord(f"no {key_separator!r} between a key and a value in {_start(line)}")
        return NewRecord(None if value == null else value, None if key == null else key, headers)

    return read


def json_reader(headers: Headers) -> Callable[[bytes], NewRecord]:
    """How to read what ``raylog consume --format json`` wrote: key, value, headers, timestamp; not where it was. A
    timestamp of -1 says that the record had none: it gets the time at which it is sent."""

    def read(line: bytes) -> NewRecord:
        try:
            found = an_object(parsed(line), "it")
            if "value" not in found:
                raise ValueError("it has no value; null is one")
            timestamp = found.get("timestamp")
            if timestamp is not None:
                timestamp = a_number(timestamp, "timestamp")
            if timestamp == NO_TIMESTAMP:
                timestamp = None
            own = _own_headers(found.get("headers"))
            return NewRecord(data(found["value"], "value"), data(found.get("key"), "key"), own + headers, timestamp)
        except ValueError as error:
            raise InvalidRecord(f"{_start(line)} is no record: {error}; write one like {_EXAMPLE}") from None

    return read


_EXAMPLE = '{"key": "k", "value": "v", "headers": [["name", "value"]], "timestamp": 1767225600000}'


def _own_headers(items: Any) -> Headers:
    headers: list[tuple[str, bytes | None]] = []
    for item in [] if items is None else a_list(items, "headers"):
        if len(a_list(item, "a header")) != 2:
            raise ValueError("a header is a list of a name and a value")
        headers.append((a_text(item[0], "a header's name"), data(item[1], "a header's value")))
    return tuple(headers)


def data(value: Any, what: str) -> bytes | None:
    """The bytes that :func:`text` stands for; anything else of JSON as its text. ValueError for what has no bytes."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and value.keys() == {"base64"}:
            return base64.b64decode(a_text(value["base64"], "base64"), validate=True)
        return as_json(value).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} has half a surrogate pair, which is no text") from None
    except ValueError as error:
        raise ValueError(f"{what} is no base64 ({error})") from None


def parsed_headers(items: list[str] | None, null_marker: str | None = None) -> Headers:
    """``NAME=VALUE`` options, in order; a name may come more than once. Raises InvalidRequest."""
    headers: list[tuple[str, bytes | None]] = []
    for item in items or ():
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise InvalidRequest(f"--headers {item!r} is not name=value")
        headers.append((name, None if value == null_marker else value.encode()))
    return tuple(headers)


def _unescaped(separator: str) -> bytes:
    return b"".join(_ESCAPES.get(token, token.encode()) for token in _TOKEN.findall(separator))


def _start(line: bytes) -> str:
    shown = line[:60].decode("utf-8", "replace")
    return repr(shown + "…" if len(line) > 60 else shown)
