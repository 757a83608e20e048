"""Writes docs/configuration.md from the settings that the packages declare: ``config_reference.py OUT``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from raylog.broker.config import BROKER_SETTINGS, TOPIC_SETTINGS
from raylog.client.config import PRODUCER_SETTINGS
from raylog.client.consumer_config import CONSUMER_SETTINGS
from raylog.client.group_handler_config import HANDLER_SETTINGS
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
    ("Producer", "Keyword arguments of `Cluster.producer`, with underscores for dots.", PRODUCER_SETTINGS),
    ("Consumer", "Keyword arguments of `Cluster.consumer`, with underscores for dots.", CONSUMER_SETTINGS),
    (
        "Group handlers",
        "Keyword arguments of `raylog.client.group`, with underscores for dots, beside the consumer's. The names are "
        "Kafka Streams' and Kafka Connect's.",
        HANDLER_SETTINGS,
    ),
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
    return "\n".join(parts)


def _row(row: Setting[Any]) -> str:
    default = f"`{row.format(row.default)}`" if row.format(row.default) else "none"
    if row.broker_default:
        default += f" (`{row.broker_default}`)"
    kind = f"{row.type.value}, {row.unit}" if row.unit else row.type.value
    doc = " ".join(row.doc.split()).replace("|", "\\|")
    return f"| `{row.name}` | {kind} | {default} | {row.scope.value} | {doc} |"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render())
