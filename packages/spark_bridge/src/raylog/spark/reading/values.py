"""◆ Values decoded as they are read: text, JSON and msgpack to Arrow, and what becomes of those that do not fit.

Runs in executors' Python workers. A batch's values are decoded at once; only where one of them does not fit, they are
looked at one by one.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, tzinfo
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import msgpack
import pyarrow as pa

from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import TopicPartition

Convert = Callable[[Any], Any]

_MALFORMED = (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException, InvalidOperation)
"""What decoding and Arrow raise for values that do not fit; Arrow's errors are ValueErrors and TypeErrors."""

_TIMESTAMP_AS_DATETIME = 3
_NUMBERS = (int, float, Decimal)


class ValueFormat(StrEnum):
    """How producers wrote values."""

    STRING = "string"
    JSON = "json"
    MSGPACK = "msgpack"


class ParseMode(StrEnum):
    """What becomes of a value that does not fit, by the names of Spark's readers."""

    FAILFAST = "failfast"
    """The task fails with MalformedValue."""
    PERMISSIVE = "permissive"
    """It is null, and its bytes are in a column beside it."""
    DROPMALFORMED = "dropmalformed"
    """Its record is left out and counted."""


class MalformedValue(RaylogError):
    """A value is not what the reader was told that values are: the one at ``offset`` of ``tp``."""

    def __init__(self, message: str, tp: TopicPartition | None = None, offset: int = -1) -> None:
        super().__init__(message)
        self.tp = tp
        self.offset = offset


@dataclass(frozen=True, slots=True)
class ValueDecoding:
    """How values are decoded, the same for all of a DataFrame; it travels to executors pickled."""

    format: ValueFormat
    type: pa.DataType
    """What they become: string, or the struct of the schema."""
    mode: ParseMode
    time_zone: str
    """Of Spark's session, what a time without a zone is in: a name of the tz database, or as far from UTC as +03:00."""
    corrupt_column: str = "_corrupt_record"
    """Where ``PERMISSIVE`` keeps the bytes of values that do not fit."""


def decode_values(
    decoding: ValueDecoding, tp: TopicPartition, values: pa.Array, offsets: pa.Array
) -> tuple[pa.Array, pa.Array | None]:
    """Binary ``values`` decoded, null where they are null or do not fit; and which rows do not fit, None for none.

    Raises MalformedValue, naming the record by its offset, for the first that does not with ``FAILFAST``.
    """
    if decoding.format is ValueFormat.STRING:
        try:
            return values.cast(pa.string()), None
        except pa.ArrowInvalid:
            pass  # found below
    decode = _decoder(decoding)
    rows = values.to_pylist()
    try:
        return pa.array([None if row is None else decode(row) for row in rows], decoding.type), None
    except _MALFORMED:
        pass
    found: list[Any] = []
    unfit: list[bool] = []
    for number, row in enumerate(rows):
        try:
            value = None if row is None else decode(row)
            pa.array([value], decoding.type)
        except _MALFORMED as error:
            if decoding.mode is ParseMode.FAILFAST:
                raise MalformedValue(
                    f"{tp} offset {offsets[number]}: the value is not {decoding.format} of type {decoding.type}: "
                    f"{error}; read such values as null with mode=PERMISSIVE, or leave them out with DROPMALFORMED",
                    tp,
                    offsets[number].as_py(),
                ) from error
            value = None
            unfit.append(True)
        else:
            unfit.append(False)
        found.append(value)
    return pa.array(found, decoding.type), pa.array(unfit, pa.bool_())


def _decoder(decoding: ValueDecoding) -> Convert:
    """Bytes to what Arrow takes for the type."""
    load: Convert
    match decoding.format:
        case ValueFormat.STRING:
            return bytes.decode
        case ValueFormat.JSON:
            exact = Decimal if "decimal" in str(decoding.type) else float
            load = partial(_load_json, json.JSONDecoder(parse_float=exact).decode)
        case ValueFormat.MSGPACK:
            load = partial(msgpack.unpackb, timestamp=_TIMESTAMP_AS_DATETIME, strict_map_key=False)
    convert = _converter(decoding.type, decoding)
    return load if convert is None else lambda row: convert(load(row))


def _load_json(parse: Callable[[str], Any], row: bytes) -> Any:
    return parse(row.decode())


def _converter(type_: pa.DataType, decoding: ValueDecoding) -> Convert | None:
    """What a decoded value of the type goes through before Arrow takes it; None: nothing. Null stays null."""
    convert = _strict(type_, decoding)
    return None if convert is None else lambda value: None if value is None else convert(value)


def _strict(type_: pa.DataType, decoding: ValueDecoding) -> Convert | None:
    """Arrow alone would read text as a list of characters and whole numbers as times, and cut fractions off."""
    is_json = decoding.format is ValueFormat.JSON
    if pa.types.is_struct(type_):
        fields = [(field.name, _strict(field.type, decoding)) for field in type_]
        return partial(_struct, [(name, convert) for name, convert in fields if convert is not None])
    if pa.types.is_list(type_):
        return partial(_list, _converter(type_.value_type, decoding))
    if pa.types.is_map(type_):
        return partial(_map, _converter(type_.item_type, decoding))
    if pa.types.is_timestamp(type_):
        return partial(_time, None if type_.tz is None else _zone(decoding.time_zone))
    if pa.types.is_date(type_):
        return lambda day: date.fromisoformat(day) if isinstance(day, str) else _be(date, day)
    if pa.types.is_decimal(type_):
        return lambda number: number if isinstance(number, Decimal) else Decimal(str(number))
    if pa.types.is_integer(type_):
        return partial(_be, int)
    if pa.types.is_floating(type_):
        return lambda number: float(number) if type(number) in _NUMBERS else _be(float, number)
    if pa.types.is_binary(type_) and is_json:
        return lambda text: b64decode(_be(str, text), validate=True)  # as Spark's JSON source
    return None


def _struct(fields: Sequence[tuple[str, Convert]], value: Any) -> Any:
    found = _be(dict, value)
    for name, convert in fields:
        inner = found.get(name)
        if inner is not None:
            found[name] = convert(inner)
    return found


def _list(convert: Convert | None, value: Any) -> Any:
    items = _be(list, value)
    return items if convert is None else [convert(item) for item in items]


def _map(convert: Convert | None, value: Any) -> Any:
    items = _be(dict, value).items()
    return list(items) if convert is None else [(key, convert(item)) for key, item in items]


def _zone(name: str) -> tzinfo | None:
    return datetime.strptime(name, "%z").tzinfo if name[0] in "+-" else ZoneInfo(name)


def _time(zone: tzinfo | None, value: Any) -> datetime:
    """A time from a datetime or ISO 8601 text. ``zone``: what it is in where it says nothing; None: it must not say."""
    time: datetime = datetime.fromisoformat(value) if isinstance(value, str) else _be(datetime, value)
    if zone is None and time.tzinfo is not None:
        raise ValueError(f"{value!r} has a time zone, timestamp_ntz has none")
    return time if zone is None or time.tzinfo is not None else time.replace(tzinfo=zone)


def _be(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r:.100} is no {kind.__name__}")
    return value
