"""What is asked: requests in order, each as a tree of plain values.

A request's tree has its fields by kio's names: structures are dicts, arrays lists, times milliseconds, bytes bytes.
Texts may hold ``#``, which becomes the number of the sequence, so that each has subjects of its own. What only a broker
knows is a :class:`Ref`.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin

from kio.schema.errors import ErrorCode

from raylog.protocol.wire.messages import encode_request, request_type

__all__ = [
    "LATER", "NOT_UTF8", "NOT_UTF8_BYTES", "Batch", "Compressed", "Ref", "RefKind", "Sequence", "Step", "Tree",
    "encode", "filled", "kind_of", "parts_of",
]  # fmt: skip

Tree = Any
NOT_UTF8 = "\x01not\x01utf8\x01"
"""Stands for bytes that are no UTF-8, of the same length."""
NOT_UTF8_BYTES = b"\xff\xfe\xc0" + b"\x80" * (len(NOT_UTF8) - 3)
CLIENT_ID = "judge"
LATER = "later"
"""The client whose steps are asked once what a clock decides has happened."""


class RefKind(Enum):
    """What a broker chooses."""

    TOPIC_ID = "topic id"
    MEMBER_ID = "member id"
    PRODUCER_ID = "producer id"
    PRODUCER_EPOCH = "producer epoch"
    SESSION_ID = "session id"
    GENERATION = "generation"
    OFFSET = "offset"


class Ref(NamedTuple):
    """A value that the broker gave earlier in the sequence: a topic's id by the topic's name, another by the client
    that was given it last, an offset by the client and the partition, as ``z-0``."""

    kind: RefKind
    name: str
    plus: int = 0
    """For a number: so much more than it."""


class Batch(NamedTuple):
    """Records of a producer, whose id the broker chose."""

    producer: str
    """The client that was given the id; empty: none."""
    sequence: int
    records: int = 1
    epoch_plus: int = 0
    transactional: bool = False


class Compressed(NamedTuple):
    """Records under a codec, by its name, so that no library's version tells what is asked; ``garbage``: under it is
    nothing that it can decompress."""

    codec: str
    garbage: bool = False


class Step(NamedTuple):
    """One request."""

    api: int
    version: int
    tree: Tree
    client: str = "a"
    """Whose connection it is sent on."""
    waits: bool = False
    """Its answer comes after later requests of other clients: it is read before this client's next request, or at the
    end."""
    settles: bool = False
    """What it changes is known everywhere before the next request: it changes metadata."""


class Sequence(NamedTuple):
    """Requests in order; ``name`` says what is tried."""

    name: str
    steps: tuple[Step, ...]
    is_life: bool = False
    """Each step may hang on those before: behind the first difference the others say nothing."""


@cache
def parts_of(field: Field[Any]) -> tuple[Any, bool, bool]:
    """The type of a field's value, whether there is an array of them, and whether there may be none."""
    annotation: Any = field.type
    nullable = get_origin(annotation) is UnionType
    if nullable:
        (annotation,) = (each for each in get_args(annotation) if each is not NoneType)
    is_array = get_origin(annotation) is tuple
    return (get_args(annotation)[0] if is_array else annotation), is_array, nullable


def kind_of(field: Field[Any]) -> str:
    """The primitive's name in Kafka's schemas; empty for a structure."""
    kind: str = field.metadata.get("kafka_type", "")
    return kind


def filled(kind: Any, values: dict[str, Tree]) -> dict[str, Tree]:
    """The tree of a structure with all fields of its version: ``values``, else the default, else nothing."""
    return {field.name: _filled(field, values) for field in fields(kind)}


def _filled(field: Field[Any], values: dict[str, Tree]) -> Tree:
    type_, is_array, nullable = parts_of(field)
    if field.name not in values:
        if field.default is not MISSING:
            return _plain(field.default)
        if nullable:
            return None
        return [] if is_array else filled(type_, {}) if is_dataclass(type_) else _ZEROS.get(kind_of(field), 0)
    value = values[field.name]
    if not is_dataclass(type_) or value is None:
        return value
    return [filled(type_, each) for each in value] if is_array else filled(type_, value)


_ZEROS: dict[str, Any] = {"bool": False, "string": "", "bytes": b"", "records": b"", "uuid": None}


def _plain(value: Any) -> Tree:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    match value:
        case tuple():
            return [_plain(each) for each in value]
        case timedelta():
            return value // timedelta(milliseconds=1)
        case ErrorCode():
            return value.value
    return value


def encode(step: Step, tree: Tree, correlation_id: int) -> bytes:
    """The frame of a request whose references are resolved. Raises what kio raises for a value that has no bytes."""
    kind: Any = request_type(step.api, step.version)
    frame = encode_request(_entity(kind, tree), correlation_id, CLIENT_ID)
    return frame.replace(NOT_UTF8.encode(), NOT_UTF8_BYTES)


@cache
def _parts(kind: Any) -> tuple[tuple[str, Any, str, bool], ...]:
    """Of each field its name, its structure or None, its primitive's name, and whether it is an array."""
    return tuple(
        (field.name, type_ if is_dataclass(type_) else None, kind_of(field), is_array)
        for field, (type_, is_array, _) in ((each, parts_of(each)) for each in fields(kind))
    )


def _entity(kind: Any, tree: Tree) -> Any:
    return kind(
        **{
            name: tuple(_one(structure, primitive, each) for each in tree[name])
            if is_array and tree[name] is not None
            else _one(structure, primitive, tree[name])
            for name, structure, primitive, is_array in _parts(kind)
        }
    )


def _one(structure: Any, primitive: str, value: Tree) -> Any:
    if value is None:
        return None
    if structure:
        return _entity(structure, value)
    match primitive:
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(milliseconds=value)
        case "datetime_i64":
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=value)
        case "error_code":
            return ErrorCode(value)
    return value
