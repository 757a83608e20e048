"""A request with one value changed: each field of its tree, each value at the edge of what the field's type allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from typing import Any, NamedTuple

from judge.steps import NOT_UTF8, Compressed, Ref, RefKind, Tree, kind_of, parts_of

__all__ = ["Edge", "edges"]

LONG = 255
VERY_LONG = 32_000
KEPT = ("transactional_id",)
"""Texts that Kafka keeps for ever, each in this sequence alone."""
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "timedelta_i32": 32, "timedelta_i64": 57}


CODECS = ("gzip", "snappy", "lz4", "zstd")


class Edge(NamedTuple):
    """``name`` says what was changed, as ``topics.partitions.timestamp=-2``."""

    name: str
    tree: Tree


def edges(kind: Any, tree: dict[str, Tree]) -> Iterator[Edge]:
    """All changes of one value in a request's tree, or in the first item of its arrays."""
    for field in fields(kind):
        value = tree[field.name]
        for name, changed in _of_field(field, value):
            yield Edge(f"{field.name}{name}", {**tree, field.name: changed})


def _of_field(field: Field[Any], value: Tree) -> Iterator[tuple[str, Tree]]:
    type_, is_array, nullable = parts_of(field)
    if nullable and value is not None:
        yield "=null", None
    if is_array:
        yield from _of_array(field, type_, value)
    elif is_dataclass(type_):
        if value is not None:
            yield from ((f".{edge.name}", edge.tree) for edge in edges(type_, value))
    else:
        for name, changed in _of_primitive(kind_of(field), value):
            yield name, f"{changed}#" if field.name in KEPT and changed else changed


def _of_array(field: Field[Any], type_: Any, value: list[Tree] | None) -> Iterator[tuple[str, Tree]]:
    if value != []:
        yield "=[]", []
    if not value:
        return
    yield "=twice", [value[0], *value]
    rest = value[1:]
    if is_dataclass(type_):
        yield from ((f".{edge.name}", [edge.tree, *rest]) for edge in edges(type_, value[0]))
    else:
        yield from ((f"[0]{name}", [changed, *rest]) for name, changed in _of_primitive(kind_of(field), value[0]))


def _of_primitive(kind: str, value: Tree) -> Iterator[tuple[str, Tree]]:
    for name, changed in _values(kind, value):
        if changed != value:
            yield f"={name}", changed


def _values(kind: str, value: Tree) -> Iterator[tuple[str, Tree]]:
    match kind:
        case "bool":
            yield str(not value), not value
        case "string":
            yield from _texts(value)
        case "bytes":
            yield from {"empty": b"", "garbage": b"\xff\x00garbage"}.items()
        case "records":
            yield from _records(value)
        case "uuid":
            yield "zero", None
            yield "absent", Ref(RefKind.TOPIC_ID, "absent")
        case _ if kind in BITS:
            top = 1 << BITS[kind] - 1
            for number in (-top, -2, -1, 0, 1, 2, top - 1):
                yield str(number), number


def _texts(value: Any) -> Iterator[tuple[str, Tree]]:
    yield "empty", ""
    yield "absent", "absent"
    yield "blank", " "
    yield "dots", ".."
    yield "slash", "a/b"
    yield "umlaut", "ä☃"
    yield "long", "l" * LONG
    yield "very-long", "v" * VERY_LONG
    yield "not-utf8", NOT_UTF8
    if isinstance(value, str) and value.upper() != value:
        yield "upper-case", value.upper()


def _records(value: Any) -> Iterator[tuple[str, Tree]]:
    yield "empty", b""
    yield "garbage", b"\xff\x00garbage" * 10
    if isinstance(value, bytes) and len(value) > 70:
        yield "cut-short", value[:-1]
        yield "cut-in-header", value[:40]
        yield "bytes-behind", value + b"\0\0\0"
        yield "two-batches", value + value
        yield "flipped-bit", value[:-1] + bytes([value[-1] ^ 1])
        yield "magic-3", value[:16] + b"\3" + value[17:]
        yield "magic-1", value[:16] + b"\1" + value[17:]
        yield "leader-epoch-9", value[:12] + b"\0\0\0\x09" + value[16:]
        yield "base-offset-9", b"\0" * 7 + b"\x09" + value[8:]
        for codec in CODECS:
            yield f"compressed-{codec}", Compressed(codec)
            yield f"compressed-{codec}-garbage", Compressed(codec, garbage=True)
