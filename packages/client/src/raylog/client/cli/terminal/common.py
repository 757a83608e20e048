"""What the commands share: options, the way to the cluster, and the way answers are printed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from raylog import client
from raylog.client.config.texts import INT32_MAX, digits
from raylog.client.network.registry import cluster_in, only_running_cluster
from raylog.protocol.errors import BrokerNotAvailable, InvalidConfig, InvalidRequest, RaylogError
from raylog.protocol.ids import BrokerId
from raylog.protocol.tables import Row, as_json, table
from raylog.protocol.texts import safe_text

TIMEOUT_MS = 8_000
"""How long a command waits for brokers: as long as one takes to come back, and not longer."""
_COMPLETION_TIMEOUT_MS = 1_000


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"


def topic_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics to complete a word with; none when no cluster answers at once."""
    try:
        servers = servers_of(ctx.params.get("data_dir"), ctx.params.get("bootstrap_server"))
        with client.Admin(servers, default_api_timeout_ms=_COMPLETION_TIMEOUT_MS) as admin:
            return [topic.name for topic in admin.list_topics() if topic.name.startswith(incomplete)]
    except (RaylogError, OSError):
        return []


def group_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Consumer groups to complete a word with; none when no cluster answers at once."""
    try:
        servers = servers_of(ctx.params.get("data_dir"), ctx.params.get("bootstrap_server"))
        with client.Admin(servers, default_api_timeout_ms=_COMPLETION_TIMEOUT_MS) as admin:
            return [group.group_id for group in admin.list_groups() if group.group_id.startswith(incomplete)]
    except (RaylogError, OSError):
        return []


DataDir = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="The directory that `raylog up` was given.")
]
Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap-server", metavar="HOST:PORT,…", help="Addresses of any brokers.")
]
Config = Annotated[list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A setting; repeatable.")]
OutputOption = Annotated[Output, typer.Option("--output", help="A table for people, or JSON for programs.")]
Group = Annotated[str, typer.Argument(help="The group's id.", autocompletion=group_names)]
Topic = Annotated[str, typer.Argument(help="The topic's name.", autocompletion=topic_names)]


def servers_of(data_dir: Path | None, bootstrap_server: str | None) -> str:
    """The addresses of the cluster that the options name, or of the only one that runs."""
    if bootstrap_server is not None:
        return bootstrap_server
    found = cluster_in(data_dir) if data_dir is not None else only_running_cluster()
    return found.bootstrap_servers


def admin_of(data_dir: Path | None, bootstrap_server: str | None) -> client.Admin:
    """An admin client for that cluster."""
    return client.Admin(servers_of(data_dir, bootstrap_server), default_api_timeout_ms=TIMEOUT_MS)


def log_dirs_of(admin: client.Admin, broker_id: int) -> list[client.LogDirDescription]:
    """The broker's; none when it stopped answering after the list of brokers was made."""
    try:
        return admin.describe_log_dirs(broker_id)
    except BrokerNotAvailable:
        return []


def raise_refusal(results: Mapping[Any, RaylogError | None], what: str = "partitions") -> None:
    """Raise the first error, which says how many more there are."""
    refused = [error for error in results.values() if error is not None]
    if len(refused) == 1:
        raise refused[0]
    if refused:
        raise type(refused[0])(f"{refused[0]}; {len(refused) - 1} more of {len(results)} {what} were refused")


def name_values(items: Iterable[str] | None, option: str = "--config") -> dict[str, str]:
    """``NAME=VALUE`` options as a mapping. Raises InvalidConfig."""
    values = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise InvalidConfig(f"{option} {item!r} is not name=value")
        values[name.strip()] = value
    return values


def client_settings(items: Iterable[str] | None) -> dict[str, str]:
    """``--config`` options for a producer or consumer; names with underscores are settings, too, as in Python."""
    return {name.replace("_", "."): value for name, value in name_values(items).items()}


def parsed_number(text: str) -> int | None:
    """The number that ``text`` is, if it is one of 64 bits, as Kafka's offsets and times are."""
    number = digits(text.removeprefix("-"))
    return -number if number is not None and text.startswith("-") else number


def ids_of(text: str, separator: str) -> list[BrokerId]:
    """Numbers of brokers. Raises ValueError."""
    numbers = [parsed_number(part.strip()) for part in text.split(separator)]
    if any(number is None or not 0 <= number <= INT32_MAX for number in numbers):
        raise ValueError(f"{text!r}: brokers have whole numbers from 0 to {INT32_MAX}")
    return [BrokerId(number) for number in numbers if number is not None]


def milliseconds(text: str, option: str) -> int:
    """Milliseconds since 1970 of such a number, or of an ISO date and time (local unless it names a zone)."""
    number = parsed_number(text)
    if number is not None and number >= 0:
        return number
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1_000)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidRequest(
            f"{option} {text!r} is neither milliseconds since 1970 nor a time such as 2026-01-31T18:30"
        ) from error


def check_settings(target: str, names: Iterable[str], known: Iterable[client.ConfigEntry]) -> None:
    """Raises InvalidConfig for a setting that ``target`` has not. Brokers let it be taken away, as Kafka's do; Kafka's
    tools refuse it, for it is a slip."""
    there = {entry.name for entry in known}
    for name in sorted(set(names) - there):
        near = get_close_matches(name, there, 1)
        raise InvalidConfig(f"{target} has no setting {name!r}" + (f": did you mean {near[0]}?" if near else ""))


def count_of(things: Sized, what: str) -> str:
    """``1 partition``, ``2 partitions``."""
    return f"{len(things)} {what}{'s' if len(things) != 1 else ''}"


def show_table(rows: Iterable[Row], *columns: str) -> None:
    """Print rows for people."""
    for line in table(rows, columns):
        typer.echo(line)


def show_json(value: Any) -> None:
    """Print a value for programs."""
    typer.echo(as_json(value))


def tell(message: str) -> None:
    """Say what was done, where it is in nobody's way."""
    typer.echo(safe_text(message), err=True)
