"""How settings look in Kafka's responses: their type, their source, their synonyms."""

from __future__ import annotations

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
    sources = (DYNAMIC_TOPIC,) if row.scope is Scope.TOPIC else BROKER_LAYERS[-len(settings.layers) :]
    found = [
        _synonym(row, layer[row.name], source)
        for layer, source in zip(settings.layers, sources, strict=True)
        if row.name in layer
    ]
    parent = settings.parent
    if parent is not None and row.broker_default:
        return found + synonyms(parent.table[row.broker_default], parent)
    return [*found, _synonym(row, row.default, DEFAULT)]


def _synonym(row: Setting[Any], value: Any, source: int) -> Synonym:
    return Synonym(row.name, None if row.sensitive else row.format(value), source)


def config_source(row: Setting[Any], settings: Settings) -> int:
    """Where the value in force comes from (KIP-226)."""
    return synonyms(row, settings)[0].source


def is_read_only(row: Setting[Any]) -> bool:
    """True when the setting cannot be changed while the broker runs."""
    return row.scope is Scope.STATIC
