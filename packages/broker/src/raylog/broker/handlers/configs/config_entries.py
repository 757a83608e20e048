"""How settings look in Kafka's responses: their type, their source, their synonyms."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from raylog.protocol.settings import Scope, Setting, Settings, ValueType


class ResourceType(IntEnum):
    """What has settings, as DescribeConfigs and its kin number it."""

    TOPIC = 2
    BROKER = 4


DYNAMIC_TOPIC = 1
DYNAMIC_BROKER = 2
DYNAMIC_DEFAULT_BROKER = 3
STATIC_BROKER = 4
DEFAULT = 5

BROKER_LAYERS = (DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER, STATIC_BROKER)
"""The sources of a broker's layers (dynamic_config.broker_settings), the strongest first; the last is always there."""

TYPE_CODES = {
    ValueType.BOOLEAN: 1,
    ValueType.STRING: 2,
    ValueType.INT: 3,
    ValueType.LONG: 5,
    ValueType.DOUBLE: 6,
    ValueType.LIST: 7,
    ValueType.PASSWORD: 9,
}


class Synonym(NamedTuple):
    """A setting that gives, or could give, the value."""

    name: str
    value: str | None
    """None when it is sensitive."""
    source: int


def synonyms(row: Setting[Any], settings: Settings) -> list[Synonym]:
    """Every setting that could give the value, strongest first: the first one does (KIP-226)."""
    if row.scope is not Scope.TOPIC:
        found = _of_broker([row, *(settings.table[name] for name, _ in row.coarser)], settings)
        return found if found and found[0].name == row.name else []  # what is unset has none, as in Kafka
    own = [_synonym(row, layer[row.name], DYNAMIC_TOPIC) for layer in settings.layers if row.name in layer]
    parent = settings.parent
    if parent is None or not row.broker_default:
        return own
    names = (row.broker_default, *(name for name, _ in row.coarser))
    return own + _of_broker([parent.table[name] for name in names], parent)


def _of_broker(rows: Sequence[Setting[Any]], settings: Settings) -> list[Synonym]:
    """As Kafka, none where there is but the default of one that is not the first."""
    sources = BROKER_LAYERS[-len(settings.layers) :]
    found = [
        _synonym(row, layer[row.name], source)
        for layer, source in zip(settings.layers, sources, strict=True)
        for row in rows
        if row.name in layer
    ]
    if not found and value_text(rows[0], rows[0].default) is None:
        return []
    return found + [_synonym(row, row.default, DEFAULT) for row in rows if value_text(row, row.default) is not None]


def _synonym(row: Setting[Any], value: Any, source: int) -> Synonym:
    return Synonym(row.name, value_text(row, value), source)


def value_text(row: Setting[Any], value: Any) -> str | None:
    """None when it is sensitive or unset: an empty default of a broker's is none."""
    is_unset = value is None or (value == row.default and value in ("", ()) and row.scope is not Scope.TOPIC)
    return None if row.sensitive or is_unset else row.format(value)


def config_source(found: Sequence[Synonym]) -> int:
    """Where the value in force comes from (KIP-226)."""
    return found[0].source if found else DEFAULT


def is_read_only(row: Setting[Any]) -> bool:
    """True when the setting cannot be changed while the broker runs."""
    return row.scope is Scope.STATIC
