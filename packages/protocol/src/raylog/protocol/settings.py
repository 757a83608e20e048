"""Settings: each declared once, in Kafka's own name, with unit, default, check and doc.

A package declares its rows in its ``config.py``; a :class:`Settings` holds the values in force. Texts (from a
command line, a file, ZooKeeper or an AlterConfigs request) are parsed and checked here and nowhere else, and
the reference page ``docs/configuration.md`` is generated from the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from raylog.protocol.errors import InvalidConfig

T = TypeVar("T")


class Scope(StrEnum):
    """Where a setting may be changed."""

    STATIC = "static"  # at the broker's start
    CLUSTER = "cluster"  # while brokers run, for all of them or for one
    TOPIC = "topic"
    CLIENT = "client"


class ValueType(StrEnum):
    """How a setting's text is read; the names are those that DescribeConfigs reports (KIP-569)."""

    BOOLEAN = "boolean"
    STRING = "string"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    LIST = "list"
    PASSWORD = "password"


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """One setting.

    ``check`` answers None or what is wrong with a value, as a phrase: «must be at least 1».
    """

    name: str
    type: ValueType
    default: T
    scope: Scope
    doc: str
    unit: str = ""
    check: Callable[[T], str | None] | None = None
    sensitive: bool = False
    broker_default: str = ""
    """For a topic's setting: the broker setting that gives its default (``log.segment.bytes``)."""
    coarser: tuple[tuple[str, int], ...] = ()
    """Of a broker's setting and its topic's row: the broker settings that count where the broker's is unset (None), the
    strongest first, each with the size of its unit in units of this one: log.retention.hours, 3,600,000."""

    def parse(self, text: str) -> T:
        """The value that ``text`` stands for.

        Raises InvalidConfig, naming the setting, when it is not of the type or fails the check.
        """
        try:
            value = cast(T, _PARSERS[self.type](text.strip()))
        except ValueError as error:
            raise InvalidConfig(f"{self.name}={text!r}: {error}") from error
        return self.checked(value)

    def checked(self, value: T) -> T:
        """``value`` itself, or InvalidConfig when the check refuses it."""
        complaint = self.check(value) if self.check else None
        if complaint:
            raise InvalidConfig(f"{self.name}={self.format(value)!r} {complaint}")
        return value

    def format(self, value: T) -> str:
        """The text that Kafka's tools show for ``value``."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(str(item) for item in value)
        return str(value)


def _parse_boolean(text: str) -> bool:
    match text.lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise ValueError("must be true or false")


def _parse_int(bits: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise ValueError(f"must fit {bits} bits")
        return value

    return parse


_PARSERS: Mapping[ValueType, Callable[[str], Any]] = {
    ValueType.BOOLEAN: _parse_boolean,
    ValueType.STRING: str,
    ValueType.INT: _parse_int(32),
    ValueType.LONG: _parse_int(64),
    ValueType.DOUBLE: float,
    ValueType.LIST: lambda text: tuple(item.strip() for item in text.split(",") if item.strip()),
    ValueType.PASSWORD: str,
}


def at_least(low: float) -> Callable[[Any], str | None]:
    """A check for numbers."""
    return lambda value: None if value >= low else f"must be at least {low:g}"


def between(low: float, high: float) -> Callable[[Any], str | None]:
    """A check for numbers, both ends included."""
    return lambda value: None if low <= value <= high else f"must be from {low:g} to {high:g}"


def only(value: object, why: str) -> Callable[[Any], str | None]:
    """A check for a setting that cannot be changed yet: ``why`` follows «must be …:»."""
    return lambda given: None if given == value else f"must be {str(value).lower()}: {why}"


def one_of(*allowed: str) -> Callable[[Any], str | None]:
    """A check for strings, and for lists item by item."""

    def check(value: str | tuple[str, ...]) -> str | None:
        items = (value,) if isinstance(value, str) else value
        wrong = [item for item in items if item not in allowed]
        return f"must be {' or '.join(allowed)}" if wrong else None

    return check


class SettingsTable:
    """All rows that one package declares, by name."""

    def __init__(self, rows: Iterable[Setting[Any]]) -> None:
        self._rows: dict[str, Setting[Any]] = {}
        for row in rows:
            if row.name in self._rows:
                raise ValueError(f"{row.name} is declared twice")
            self._rows[row.name] = row

    def __iter__(self) -> Iterator[Setting[Any]]:
        return iter(self._rows.values())

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def __getitem__(self, name: str) -> Setting[Any]:
        """The row called ``name``; InvalidConfig when there is none."""
        try:
            return self._rows[name]
        except KeyError:
            raise InvalidConfig(f"unknown setting {name!r}; the known ones are in docs/configuration.md") from None

    def parse(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Values by name; InvalidConfig for an unknown name or an unfit value."""
        return {name: self[name].parse(text) for name, text in texts.items()}

    def parse_known(self, texts: Mapping[str, str]) -> tuple[dict[str, Any], list[InvalidConfig]]:
        """As :meth:`parse`, but what cannot be taken is left out, and told beside the values.

        For texts that were checked when they were written, by a newer or an older release perhaps.
        """
        values: dict[str, Any] = {}
        refused: list[InvalidConfig] = []
        for name, text in texts.items():
            try:
                values[name] = self[name].parse(text)
            except InvalidConfig as error:
                refused.append(error)
        return values, refused

    def settings(self, texts: Mapping[str, str] | None = None) -> Settings:
        """The settings in force when ``texts`` override the defaults."""
        return Settings(self, self.parse(texts or {}))


class Settings:
    """Values in force: overrides over defaults. Read with ``settings[ROW]``, which has the row's type.

    Immutable, so any thread may read: a change makes another object, and the owner hands that out from then on.
    """

    __slots__ = ("_overrides", "_parent", "layers", "table")

    def __init__(
        self,
        table: SettingsTable,
        overrides: Mapping[str, Any] | None = None,
        *,
        base: Settings | None = None,
        parent: Settings | None = None,
    ) -> None:
        """``base``: settings of the same table that the overrides are laid over.

        ``parent``: the settings that give those rows a value that name a ``broker_default``.
        """
        self.table = table
        own: Mapping[str, Any] = MappingProxyType(dict(overrides or {}))
        self.layers: tuple[Mapping[str, Any], ...] = (own, *base.layers) if base else (own,)
        """Overrides by name, the strongest first."""
        self._overrides: Mapping[str, Any] = MappingProxyType({**base.overrides, **own}) if base else own
        self._parent = parent

    def __getitem__(self, setting: Setting[T]) -> T:
        overrides = self._overrides
        if setting.name in overrides:
            return cast(T, overrides[setting.name])
        parent = self._parent
        if parent is not None and setting.broker_default:
            return parent._default_of(setting)
        return setting.default

    def _default_of(self, setting: Setting[T]) -> T:
        """What a topic's ``setting`` is on this broker where the topic does not override it."""
        for name, factor in ((setting.broker_default, 1), *setting.coarser):
            value = self[self.table[name]]
            if value is not None:
                return cast(T, value if factor == 1 else max(value * factor, -1))
        return setting.default

    @property
    def parent(self) -> Settings | None:
        return self._parent

    @property
    def overrides(self) -> Mapping[str, Any]:
        """What was set explicitly, in whichever layer, by name."""
        return self._overrides

    def is_default(self, setting: Setting[Any]) -> bool:
        """True when nothing overrides the setting here."""
        return setting.name not in self._overrides
