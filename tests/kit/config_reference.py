"""Writes docs/configuration.md from the settings that the packages declare: ``config_reference.py OUT``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from raylog.broker.config import BROKER_SETTINGS, TOPIC_SETTINGS
from raylog.client.config.client import ADMIN_SETTINGS, PRODUCER_SETTINGS
from raylog.client.config.kafka import KAFKA_SETTINGS, LIBRDKAFKA_NAMES, NOT_HERE, NOT_HERE_OF_LIBRDKAFKA
from raylog.client.fetch.consumer_config import CONSUMER_SETTINGS
from raylog.client.handlers.config import HANDLER_SETTINGS
from raylog.protocol.settings import Setting, SettingsTable

SECTIONS: tuple[tuple[str, str, SettingsTable], ...] = (
    (
        "Topics",
        "Set with `raylog topics create --config name=value`, changed with `raylog configs alter` or any Kafka admin "
        "client. A topic without an override follows its brokers' setting, which stands in brackets.",
        TOPIC_SETTINGS,
    ),
    (
        "Brokers",
        "Set with `raylog up --config name=value`. Those of scope cluster change while brokers run, for all brokers or "
        "for one, with `raylog configs alter` or any Kafka admin client.",
        BROKER_SETTINGS,
    ),
    (
        "Group handlers",
        "Keyword arguments of `raylog.client.group`, with underscores for dots, beside the consumer's. The names are "
        "Kafka Streams' and Kafka Connect's.",
        HANDLER_SETTINGS,
    ),
)
CLIENTS: tuple[tuple[str, str, SettingsTable], ...] = (
    ("producer", "Keyword arguments of `Cluster.producer`, with underscores for dots.", PRODUCER_SETTINGS),
    ("consumer", "Keyword arguments of `Cluster.consumer`, with underscores for dots.", CONSUMER_SETTINGS),
    ("admin", "Keyword arguments of `Cluster.admin`, with underscores for dots.", ADMIN_SETTINGS),
)
_COLUMNS = (
    " *Java* is the default of Kafka 4.2's client, — where it has no such setting; *librdkafka* another name of the "
    "setting there."
)
_NOT_HERE = (
    "What Java's clients can be told and these not, for no client or not for all that have it there, and of "
    "librdkafka's settings those that people use. A client that is given one refuses it with the reason."
)


def render() -> str:
    """The whole page."""
    parts = [
        "# Configuration\n",
        "Generated from the settings' declarations by `make docs`; names and meanings are Kafka's.\n",
    ]
    for title, intro, table in SECTIONS:
        parts.append(f"## {title}\n\n{intro}\n")
        rows = sorted(table, key=lambda row: row.name)
        lines = ["| setting | type | default | scope | meaning |", "|---|---|---|---|---|"]
        lines += [_row(row) for row in rows]
        parts.append("\n".join(lines) + "\n")
        if title == "Brokers":
            parts += [_client(*client) for client in CLIENTS]
    parts.append(f"## Kafka's settings that are not here\n\n{_NOT_HERE}\n")
    for of, names in (("Java's clients", NOT_HERE), ("librdkafka", NOT_HERE_OF_LIBRDKAFKA)):
        rows = [f"| `{name}` | {reason} |" for name, reason in names.items()]
        parts.append("\n".join([f"| of {of} | because |", "|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def _client(client: str, intro: str, table: SettingsTable) -> str:
    names = {ours: theirs for theirs, ours in LIBRDKAFKA_NAMES.items()}
    lines = ["| setting | type | default | Java | librdkafka | meaning |", "|---|---|---|---|---|---|"]
    for row in sorted(table, key=lambda row: row.name):
        java = KAFKA_SETTINGS.get(row.name)
        theirs = "—" if java is None else f"`{java.of(client)}`" if java.of(client) else "none"
        alias = f"`{names[row.name]}`" if row.name in names else ""
        name, kind, default, _, doc = _cells(row)
        lines.append(f"| {name} | {kind} | {default} | {theirs} | {alias} | {doc} |")
    return f"## {client.capitalize()}\n\n{intro}{_COLUMNS}\n\n" + "\n".join(lines) + "\n"


def _row(row: Setting[Any]) -> str:
    return f"| {' | '.join(_cells(row))} |"


def _cells(row: Setting[Any]) -> tuple[str, str, str, str, str]:
    default = f"`{row.format(row.default)}`" if row.format(row.default) else "none"
    if row.broker_default:
        default += f" (`{row.broker_default}`)"
    kind = f"{row.type.value}, {row.unit}" if row.unit else row.type.value
    doc = " ".join(row.doc.split()).replace("|", "\\|")
    return f"`{row.name}`", kind, default, row.scope.value, doc


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render())
