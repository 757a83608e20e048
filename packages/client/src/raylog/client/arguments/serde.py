"""◆ Python values to bytes and back.

A producer's *default* sends bytes and None as they are and everything else as msgpack (compact, typed, readable from
any language); a consumer's default is the bytes, since nothing in a record tells how it was written. Named, both
sides agree: what ``msgpack``, ``bytes``, ``str`` or ``json`` wrote, the deserializer of that name gives back. So
a *named* ``msgpack`` also packs bytes, and ``str`` and ``json`` refuse them. None, a tombstone, is never serialized.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgpack

from raylog.client.arguments.arguments import does_nothing_yet
from raylog.client.read_errors import RecordDeserializationError
from raylog.client.results import ConsumerRecord
from raylog.protocol.errors import InvalidConfig, InvalidRecord

Serializer = Callable[[Any], bytes | None]
Deserializer = Callable[[bytes], Any]
F = TypeVar("F", bound=Callable[..., Any])


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidRecord(f"the bytes serializer got a {type(value).__name__}; choose msgpack, json or str instead")


def _str(value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeError as error:
            raise InvalidRecord(f"a str can't be written as UTF-8: {error}") from error
    raise InvalidRecord(f"the str serializer got a {type(value).__name__}; choose msgpack, json or bytes instead")


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRecord(f"a {type(value).__name__} can't be written as JSON: {error}") from error


def _msgpack(value: Any) -> bytes:
    try:
        packed: bytes = msgpack.packb(value, datetime=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRecord(f"a {type(value).__name__} can't be written as msgpack: {error}") from error
    return packed


def _default(value: Any) -> bytes:
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else _msgpack(value)


def _decode_msgpack(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data, timestamp=0, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:  # TypeError: a list as a map's key
        raise InvalidRecord(f"not msgpack: {error}") from error


def _decode_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"not JSON, or nested too deeply: {error}") from error


def _decode_str(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRecord(f"not UTF-8: {error}") from error


SERIALIZERS: Mapping[str, Serializer] = {"msgpack": _msgpack, "bytes": _bytes, "str": _str, "json": _json}
DESERIALIZERS: Mapping[str, Deserializer | None] = {
    "bytes": None,
    "msgpack": _decode_msgpack,
    "str": _decode_str,
    "json": _decode_json,
}


def _called(choice: F, argument: str) -> F:
    if does_nothing_yet(choice):
        raise InvalidConfig(f"{argument}: {choice!r} is a coroutine or a generator, for which nothing waits here")
    return choice


def serializer(choice: str | Serializer | None, argument: str = "serializer") -> Serializer:
    """The serializer called ``choice``, ``choice`` itself when it is callable, the default for None.

    Raises InvalidConfig, with the argument's name, for an unknown one.
    """
    if choice is None:
        return _default
    if callable(choice):
        return _called(choice, argument)
    if not isinstance(choice, str) or choice not in SERIALIZERS:
        raise InvalidConfig(f"{argument}: unknown serializer {choice!r}; give {', '.join(SERIALIZERS)} or a function")
    return SERIALIZERS[choice]


def deserializer(choice: str | Deserializer | None, argument: str = "deserializer") -> Deserializer | None:
    """The deserializer called ``choice``, or ``choice`` itself; None for plain bytes. Null stays None. Raises as
    :func:`serializer`."""
    if choice is None:
        return None
    if callable(choice):
        return _called(choice, argument)
    if not isinstance(choice, str) or choice not in DESERIALIZERS:
        raise InvalidConfig(
            f"{argument}: unknown deserializer {choice!r}; give {', '.join(DESERIALIZERS)} or a function"
        )
    return DESERIALIZERS[choice]


def deserialized(
    record: ConsumerRecord, key_deserializer: Deserializer | None, value_deserializer: Deserializer | None
) -> ConsumerRecord:
    """``record``, read as bytes, with what the deserializers make of its key and value. Raises
    RecordDeserializationError, whatever a deserializer raises."""
    topic, partition, offset, timestamp, timestamp_type, key, value, headers = record
    origin = "key"
    try:
        if key is not None and key_deserializer is not None:
            key = key_deserializer(key)
        origin = "value"
        if value is not None and value_deserializer is not None:
            value = value_deserializer(value)
    except Exception as error:
        raise RecordDeserializationError(record, origin, error) from error
    new = (topic, partition, offset, timestamp, timestamp_type, key, value, headers)
    return tuple.__new__(ConsumerRecord, new)
