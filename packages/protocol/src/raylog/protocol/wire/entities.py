"""Reads kio's message types from bytes that may be hostile.

kio brings a native reader, but that one reserves memory for as many array items as a message claims, and ends
the process when it gets none: nine bytes from anybody would take the broker down. So kio gives us the types,
their schemas and the writers, and reading is done here, field by field, with every length checked against
what is there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from kio.schema.errors import ErrorCode

from raylog.protocol.wire.primitives import INT16, INT32, INT64, ZERO_UUID, Reader

Read = Callable[[Reader], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BY_CODE = {int(code): code for code in ErrorCode}


@cache
def entity_reader(kind: Any) -> Read:
    """Reads one ``kind``, a kio type: ``entity_reader(MetadataRequest)(reader)``.

    The reader must be flexible if the type is. Malformed bytes raise the reader's error.
    """
    plain: list[tuple[str, Read]] = []
    tagged: dict[int, tuple[str, Read]] = {}
    needed: set[str] = set()  # tagged, and yet kio knows no default: in three messages of KRaft's
    for field in fields(kind):
        tag = field.metadata.get("tag")
        if tag is None:
            plain.append((field.name, _field_reader(field, field.type)))
        else:
            tagged[tag] = (field.name, _field_reader(field, _without_none(field.type)))
            if field.default is MISSING:
                needed.add(field.name)

    def read(reader: Reader) -> Any:
        values = {name: read_field(reader) for name, read_field in plain}

        def known(tag: int, value: Reader) -> None:
            if tag in tagged:
                name, read_field = tagged[tag]
                values[name] = read_field(value)
                value.finish()

        reader.tags(known)
        if needed and not needed <= values.keys():
            raise reader.error(f"{kind.__name__} lacks a tagged field: {', '.join(needed - values.keys())}")
        return kind(**values)

    return read


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) is UnionType:
        (annotation,) = (each for each in get_args(annotation) if each is not NoneType)
    return annotation


def _field_reader(field: Field[Any], annotation: Any) -> Read:
    inner = _without_none(annotation)
    nullable = inner is not annotation
    kind: str | None = field.metadata.get("kafka_type")  # structures have none
    if get_origin(inner) is tuple:
        item = _PLAIN[kind] if kind else entity_reader(get_args(inner)[0])
        return _nullable_array(item) if nullable else _array(item)
    if kind:
        return _NULLABLE[kind] if nullable else _PLAIN[kind]
    return _nullable_entity(entity_reader(inner)) if nullable else entity_reader(inner)


def _array(item: Read) -> Read:
    return lambda reader: tuple(reader.array(lambda: item(reader)))


def _nullable_array(item: Read) -> Read:
    def read(reader: Reader) -> Any:
        items = reader.nullable_array(lambda: item(reader))
        return None if items is None else tuple(items)

    return read


def _nullable_entity(read_entity: Read) -> Read:
    """A structure that may be null has a byte before it: -1 for null (KIP-893)."""
    return lambda reader: None if reader.unpack(_INT8)[0] < 0 else read_entity(reader)


def _number(layout: struct.Struct) -> Read:
    return lambda reader: reader.unpack(layout)[0]


def _bytes(reader: Reader) -> bytes:
    data = reader.bytes()
    if data is None:
        raise reader.error(f"the bytes before byte {reader.pos} are null")
    return bytes(data)


def _nullable_bytes(reader: Reader) -> bytes | None:
    data = reader.bytes()
    return None if data is None else bytes(data)


def _uuid(reader: Reader) -> Any:
    value = reader.uuid()
    return None if value == ZERO_UUID else value


def _error_code(reader: Reader) -> ErrorCode:
    """A code that is newer than we are is an error that nobody knows."""
    return _BY_CODE.get(reader.unpack(INT16)[0], ErrorCode.unknown_server_error)


def _milliseconds(layout: struct.Struct) -> Read:
    def read(reader: Reader) -> timedelta:
        value = reader.unpack(layout)[0]
        try:
            return timedelta(milliseconds=value)
        except OverflowError:
            raise reader.error(f"the duration before byte {reader.pos} is {value} ms") from None

    return read


def _time(reader: Reader) -> datetime:
    value = reader.unpack(INT64)[0]
    try:
        return _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        raise reader.error(f"the time before byte {reader.pos} is {value} ms after 1970") from None


def _nullable_time(reader: Reader) -> datetime | None:
    time = _time(reader)
    return None if time < _EPOCH else time


_INT8 = struct.Struct(">b")

_PLAIN: dict[str, Read] = {
    "bool": _number(struct.Struct(">?")),
    "int8": _number(_INT8),
    "int16": _number(INT16),
    "int32": _number(INT32),
    "int64": _number(INT64),
    "uint16": _number(struct.Struct(">H")),
    "float64": _number(struct.Struct(">d")),
    "string": Reader.string,
    "bytes": _bytes,
    "records": _bytes,
    "error_code": _error_code,
    "timedelta_i32": _milliseconds(INT32),
    "timedelta_i64": _milliseconds(INT64),
    "datetime_i64": _time,
    "uuid": _uuid,
}

_NULLABLE: dict[str, Read] = {
    "string": Reader.nullable_string,
    "bytes": _nullable_bytes,
    "records": _nullable_bytes,
    "uuid": _uuid,
    "datetime_i64": _nullable_time,
}
