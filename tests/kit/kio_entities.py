"""Hypothesis strategies for kio's message types, from their schemas."""

from __future__ import annotations

from dataclasses import Field, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.static.primitive import Records


def integers(bits: int) -> st.SearchStrategy[int]:
    """Signed, with the edges likely."""
    top = 1 << bits - 1
    return st.sampled_from([-1, 0, 1, top - 1, -top]) | st.integers(-top, top - 1)


TEXTS = st.text(max_size=20)
MILLISECONDS = st.integers(-(2**31), 2**31 - 1).map(lambda value: timedelta(milliseconds=value))

PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": integers(8),
    "int16": integers(16),
    "int32": integers(32),
    "int64": integers(64),
    "uint16": st.integers(0, 65_535),
    "float64": st.floats(allow_nan=False),
    "string": TEXTS | st.text(min_size=130, max_size=140),
    "bytes": st.binary(max_size=40),
    "records": st.binary(max_size=200).map(Records),
    "uuid": st.none() | st.uuids(),
    "error_code": st.sampled_from(list(ErrorCode)),
    "timedelta_i32": MILLISECONDS,
    "timedelta_i64": MILLISECONDS,
    "datetime_i64": st.integers(0, 2**41).map(
        lambda value: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=value)
    ),
}


@cache
def entities(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a kio type."""
    return st.builds(kind, **{field.name: _field(field) for field in fields(kind)})


def _field(field: Field[Any]) -> st.SearchStrategy[Any]:
    annotation: Any = field.type
    nullable = get_origin(annotation) is UnionType
    if nullable:
        (annotation,) = (each for each in get_args(annotation) if each is not NoneType)
    if get_origin(annotation) is tuple:
        some = st.lists(_one(field, get_args(annotation)[0]), max_size=3).map(tuple)
    else:
        some = _one(field, annotation)
    if "tag" in field.metadata:
        return st.just(field.default) | some
    return st.none() | some if nullable else some


def _one(field: Field[Any], annotation: Any) -> st.SearchStrategy[Any]:
    kind = field.metadata.get("kafka_type")  # structures have none
    return PRIMITIVES[kind] if kind else entities(annotation)
