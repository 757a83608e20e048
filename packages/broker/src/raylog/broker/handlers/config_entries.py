"""How settings look in Kafka's responses: their type, their source, their synonyms."""

from __future__ import annotations

from typing import Any

from raylog.protocol.settings import Scope, Setting, Settings, ValueType

DYNAMIC_TOPIC = 1
DYNAMIC_BROKER = 2
DYNAMIC_DEFAULT_BROKER = 3
STATIC_BROKER = 4
DEFAULT = 5

TYPE_CODES = {
    ValueType.BOOLEAN: 1,
    ValueType.STRING: 2,
    ValueType.INT: 3,
    ValueType.LONG: 5,
    ValueType.DOUBLE: 6,
    ValueType.LIST: 7,
    ValueType.PASSWORD: 9,
}


def config_source(row: Setting[Any], settings: Settings) -> int:
    """Where the value in force comes from (KIP-226)."""
    if not settings.is_default(row):
        return DYNAMIC_TOPIC if row.scope is Scope.TOPIC else STATIC_BROKER
    parent = settings.parent
    if parent is not None and row.broker_default and not parent.is_default(parent.table[row.broker_default]):
        return STATIC_BROKER
    return DEFAULT


def is_read_only(row: Setting[Any]) -> bool:
    """True when the setting cannot be changed while the broker runs."""
    return row.scope is Scope.STATIC


def synonyms(row: Setting[Any], settings: Settings) -> list[tuple[str, str | None, int]]:
    """(name, value, source) of every setting that could give the value, strongest first."""
    found: list[tuple[str, str | None, int]] = []

    def add(which: Setting[Any], value: Any, source: int) -> None:
        found.append((which.name, None if which.sensitive else which.format(value), source))

    if not settings.is_default(row):
        add(row, settings[row], DYNAMIC_TOPIC if row.scope is Scope.TOPIC else STATIC_BROKER)
    parent = settings.parent
    if parent is not None and row.broker_default:
        broker_row = parent.table[row.broker_default]
        if not parent.is_default(broker_row):
            add(broker_row, parent[broker_row], STATIC_BROKER)
        add(broker_row, broker_row.default, DEFAULT)
    else:
        add(row, row.default, DEFAULT)
    return found
