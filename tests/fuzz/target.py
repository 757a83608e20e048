"""What a fuzz target is, and what several of them need."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin

from crc32c import crc32c

from kit.wire import entity
from raylog.protocol.batches.header import ATTRIBUTES_POSITION, CRC_POSITION, HEADER_SIZE, LENGTH_POSITION, LOG_OVERHEAD


class Target(NamedTuple):
    """One reader of bytes that may be hostile."""

    run: Callable[[bytes], None]
    """Feed one input. What the reader is allowed to raise is caught here; whatever gets out is a finding."""
    seeds: Callable[[], Iterable[bytes]]
    """Sound inputs to begin with, one per branch that chance would hardly find."""
    max_len: int = 4096
    """No longer inputs are tried."""


def fix_checksums(batches: bytearray | memoryview) -> None:
    """Give each batch its right checksum, in place: else the checksum is all that an input can reach."""
    pos = 0
    while len(batches) - pos >= HEADER_SIZE:
        (length,) = struct.unpack_from(">i", batches, pos + LENGTH_POSITION)
        end = pos + LOG_OVERHEAD + length
        if length < HEADER_SIZE - LOG_OVERHEAD or end > len(batches):
            return
        struct.pack_into(
            ">I", batches, pos + CRC_POSITION, crc32c(memoryview(batches)[pos + ATTRIBUTES_POSITION : end])
        )
        pos = end


def filled(kind: Any, **values: Any) -> Any:
    """An entity of a kio type with one item in each array, ``values`` by field name at every depth, zeros elsewhere."""
    return entity(kind, _one_of_each(kind, values))


def _one_of_each(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for field in fields(kind):
        if field.name in values:
            made[field.name] = values[field.name]
            continue
        for option in get_args(field.type) if get_origin(field.type) is UnionType else (field.type,):
            if option is NoneType:
                continue
            if get_origin(option) is tuple and is_dataclass(item := get_args(option)[0]):
                made[field.name] = [_one_of_each(item, values)]
            elif is_dataclass(option):
                made[field.name] = _one_of_each(option, values)
    return made
