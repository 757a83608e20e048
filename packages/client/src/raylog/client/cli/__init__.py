"""The command line, ``raylog``: topics, produce and consume here; other packages add commands by entry point.

Answers go to stdout, everything else to stderr; an error is one line that says what to do, and exit code 1.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup
from typer.main import get_command as command_of

from raylog.client.admin import Admin
from raylog.client.consumer import Consumer
from raylog.client.delivery import Delivery
from raylog.client.producer import Producer
from raylog.client.registry import cluster_in, only_running_cluster
from raylog.client.results import ConsumerRecord, TopicDescription
from raylog.protocol.errors import InvalidConfig, RaylogError

__all__ = ["app", "main"]

P = ParamSpec("P")
COMMANDS = "raylog.commands"
"""The entry-point group: each entry is a function that adds commands to the typer app it is given."""
_TIMEOUT_MS = 8_000
"""How long a command waits for brokers: as long as one takes to come back, and not longer."""


class PluginGroup(TyperGroup):
    """Commands of other packages are loaded when they are asked for: they may take long to import."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *_plugins(ctx).list_commands(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or _plugins(ctx).get_command(ctx, cmd_name)


def _plugins(ctx: Any) -> TyperGroup:
    loaded = ctx.meta.get(COMMANDS)
    if loaded is None:
        plugins = typer.Typer()
        plugins.callback()(lambda: None)
        for entry in entry_points(group=COMMANDS):
            entry.load()(plugins)
        loaded = ctx.meta[COMMANDS] = command_of(plugins)
    assert isinstance(loaded, TyperGroup)
    return loaded


app = typer.Typer(
    cls=PluginGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A Kafka-compatible distributed log on Ray.",
)
topics = typer.Typer(no_args_is_help=True, help="Create, list, describe and delete topics.")
app.add_typer(topics, name="topics")

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="The directory that `raylog up` was given.")
]
Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap-server", metavar="HOST:PORT,…", help="Addresses of any brokers.")
]
Config = Annotated[list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A setting; repeatable.")]


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"


class Format(StrEnum):
    """How a record is printed: its value alone, or everything."""

    VALUE = "value"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", help="A table for people, or JSON for programs.")]


def _reporting(command: Callable[P, None]) -> Callable[P, None]:
    """The command with its errors as one line on stderr; a reader that closed our output ends it quietly."""

    @wraps(command)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except RaylogError as error:
            typer.echo(f"raylog: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(1) from error
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    return reporting


def _servers(data_dir: Path | None, bootstrap_server: str | None) -> str:
    """The addresses of the cluster that the options name, or of the only one that runs."""
    if bootstrap_server is not None:
        return bootstrap_server
    found = cluster_in(data_dir) if data_dir is not None else only_running_cluster()
    return found.bootstrap_servers


def _admin(data_dir: Path | None, bootstrap_server: str | None) -> Admin:
    return Admin(_servers(data_dir, bootstrap_server), default_api_timeout_ms=_TIMEOUT_MS)


def _configs(items: list[str] | None) -> dict[str, str]:
    configs = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        if not equals:
            raise InvalidConfig(f"--config {item!r} is not name=value")
        configs[name.strip()] = value
    return configs


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"raylog {version('raylog-client')} (record codec: pure Python)")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A Kafka-compatible distributed log on Ray."""


@topics.command("create")
@_reporting
def create_topic(
    name: str,
    partitions: Annotated[int, typer.Option(help="How many; default: the broker's num.partitions.")] = -1,
    replication_factor: Annotated[int, typer.Option(help="How many copies; default: the broker's.")] = -1,
    config: Config = None,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Create a topic."""
    with _admin(data_dir, bootstrap_server) as admin:
        admin.create_topic(name, partitions, replication_factor=replication_factor, configs=_configs(config))
        count = len(admin.describe_topic(name).partitions)
    typer.echo(f"created {name} with {count} partition{'s' if count != 1 else ''}", err=True)


@topics.command("list")
@_reporting
def list_topics(
    output: OutputOption = Output.TABLE, data_dir: DataDir = None, bootstrap_server: Bootstrap = None
) -> None:
    """List all topics."""
    with _admin(data_dir, bootstrap_server) as admin:
        found = admin.list_topics()
    if output is Output.JSON:
        rows = [{"topic": topic.name, "partitions": len(topic.partitions)} for topic in found]
        typer.echo(json.dumps(rows))
    elif sys.stdout.isatty():
        _table(["topic", "partitions"], [[topic.name, len(topic.partitions)] for topic in found])
    else:
        for topic in found:
            typer.echo(topic.name)


@topics.command("describe")
@_reporting
def describe_topic(
    name: str,
    output: OutputOption = Output.TABLE,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Show a topic's partitions, their leaders and offsets, and its settings that aren't defaults."""
    with _admin(data_dir, bootstrap_server) as admin:
        topic = admin.describe_topic(name)
        configs = {entry.name: entry.value for entry in admin.describe_topic_configs(name) if not entry.is_default}
        rows = _partition_rows(admin, topic)
    if output is Output.JSON:
        facts = {"topic": name, "topic_id": str(topic.topic_id), "configs": configs, "partitions": rows}
        typer.echo(json.dumps(facts))
        return
    settings = ", ".join(f"{key}={value}" for key, value in sorted(configs.items())) or "all default"
    typer.echo(f"{name} ({topic.topic_id}); settings: {settings}")
    _table(list(rows[0]) if rows else [], [[_cell(value) for value in row.values()] for row in rows])


@topics.command("delete")
@_reporting
def delete_topic(name: str, data_dir: DataDir = None, bootstrap_server: Bootstrap = None) -> None:
    """Delete a topic and all its records."""
    with _admin(data_dir, bootstrap_server) as admin:
        error = admin.delete_topics([name])[name]
    if error is not None:
        raise error
    typer.echo(f"deleted {name}", err=True)


@app.command()
@_reporting
def produce(topic: str, config: Config = None, data_dir: DataDir = None, bootstrap_server: Bootstrap = None) -> None:
    """Send each line of stdin as a record's value."""
    servers = _servers(data_dir, bootstrap_server)
    with Admin(servers, default_api_timeout_ms=_TIMEOUT_MS) as admin:
        admin.describe_topic(topic)
    failed: list[RaylogError] = []

    def note(delivery: Delivery) -> None:
        error = delivery.exception()
        if error is not None:
            failed.append(error)

    sent = 0
    with Producer(servers, **_configs(config)) as producer:
        for line in sys.stdin.buffer:
            producer.send(topic, line.removesuffix(b"\n")).add_done_callback(note)
            sent += 1
    if failed:
        raise type(failed[0])(f"{len(failed)} of {sent} records were not delivered: {failed[0]}")
    typer.echo(f"sent {sent} records to {topic}", err=True)


@app.command()
@_reporting
def consume(
    topic: str,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Begin with the oldest record.")] = False,
    max_messages: Annotated[int | None, typer.Option(min=1, help="End after this many records.")] = None,
    format_: Annotated[Format, typer.Option("--format", help="The value, or a JSON object a line.")] = Format.VALUE,
    config: Config = None,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Print records as they come, a line each, until interrupted or the given number is reached."""
    settings: dict[str, Any] = {
        "auto.offset.reset": "earliest" if from_beginning else "latest",
        "default.api.timeout.ms": _TIMEOUT_MS,
        **_configs(config),
    }
    left = max_messages
    with Consumer(_servers(data_dir, bootstrap_server), [topic], **settings) as consumer:
        while left is None or left > 0:
            for records in consumer.poll(1_000, max_records=left).values():
                sys.stdout.buffer.writelines(_line(record, format_) for record in records)
                left = None if left is None else left - len(records)
            sys.stdout.buffer.flush()


def _line(record: ConsumerRecord, format_: Format) -> bytes:
    if format_ is Format.VALUE:
        return (record.value if record.value is not None else b"") + b"\n"
    facts = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": "LogAppendTime" if record.timestamp_type else "CreateTime",
        "headers": [[name, _text(value)] for name, value in record.headers],
        "key": _text(record.key),
        "value": _text(record.value),
    }
    return json.dumps(facts, ensure_ascii=False).encode() + b"\n"


def _text(data: bytes | None) -> str | dict[str, str] | None:
    """UTF-8 as text, anything else as {"base64": …}."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _partition_rows(admin: Admin, topic: TopicDescription) -> list[dict[str, Any]]:
    led = [(topic.name, partition.partition) for partition in topic.partitions if partition.leader >= 0]
    earliest = {tp.partition: found.offset for tp, found in admin.list_offsets(dict.fromkeys(led, -2)).items()}
    latest = {tp.partition: found.offset for tp, found in admin.list_offsets(dict.fromkeys(led, -1)).items()}
    return [
        {
            "partition": partition.partition,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "replicas": list(partition.replicas),
            "isr": list(partition.isr),
            "earliest": earliest.get(partition.partition),
            "latest": latest.get(partition.partition),
        }
        for partition in topic.partitions
    ]


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "-" if value is None else str(value)


def _table(columns: list[str], rows: list[list[Any]]) -> None:
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(str, row))
    Console(soft_wrap=True, highlight=False).print(table)


def main() -> None:
    """The console script ``raylog``."""
    app()
