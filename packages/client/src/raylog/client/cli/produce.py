"""``raylog produce``: lines of a file or of stdin as records."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, BinaryIO

import typer

from raylog import client
from raylog.client.cli.terminal.common import (
    TIMEOUT_MS,
    Bootstrap,
    Config,
    DataDir,
    Topic,
    client_settings,
    servers_of,
    tell,
)
from raylog.client.cli.terminal.endings import ended_by_signals
from raylog.client.cli.terminal.progress import Progress
from raylog.client.cli.terminal.records import NewRecord, json_reader, line_reader, parsed_headers
from raylog.protocol.errors import (
    InvalidPartitions,
    InvalidRecord,
    InvalidRequest,
    MessageTooLarge,
    RaylogError,
    UnknownTopicOrPartition,
)


class Format(StrEnum):
    """What a line of input is."""

    VALUE = "value"
    JSON = "json"


def produce(
    topic: Topic,
    file: Annotated[
        Path | None, typer.Option("--file", help="Read this file; default, and -: stdin.", allow_dash=True)
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", metavar="TEXT", help="What stands between key and value.")
    ] = None,
    null_marker: Annotated[
        str | None,
        typer.Option(
            "--null-marker",
            metavar="TEXT",
            help="A key, value or header that is this text is null, a tombstone for one; '': what is empty.",
        ),
    ] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--headers", metavar="NAME=VALUE", help="A header of each record; repeatable.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, help="Send all to this partition; default: by key, or spread.")
    ] = None,
    format_: Annotated[
        Format, typer.Option("--format", help="A line is a value, or JSON as `raylog consume --format json` writes it.")
    ] = Format.VALUE,
    config: Config = None,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Send each line of a file or of stdin as a record."""
    servers = servers_of(data_dir, bootstrap_server)
    if format_ is Format.JSON and key_separator is not None:
        raise InvalidRequest("--key-separator is for --format value; a line of JSON has its key in it")
    if format_ is Format.JSON and null_marker is not None:
        raise InvalidRequest("--null-marker is for --format value; JSON has null")
    fixed = parsed_headers(headers, null_marker)
    read = json_reader(fixed) if format_ is Format.JSON else line_reader(key_separator, fixed, null_marker)
    count = _partition_count(servers, topic)
    if partition is not None and partition >= count:
        raise InvalidPartitions(f"{topic} has partitions 0 to {count - 1}, not {partition}")
    settings = client_settings(config)
    with ExitStack() as stack:
        source, size = _opened(file, stack)
        stack.enter_context(ended_by_signals())
        progress = Progress(size, of_bytes=True, quiet=source.isatty())
        stack.callback(progress.end)
        sent, failed = _send_lines(servers, topic, partition, source, read, settings, progress)
    if failed:
        raise type(failed[0])(f"{len(failed)} of {sent} records were not delivered: {failed[0]}")
    tell(f"sent {sent} records to {topic}")


def _partition_count(servers: str, topic: str) -> int:
    with client.Admin(servers, default_api_timeout_ms=TIMEOUT_MS) as admin:
        try:
            return len(admin.describe_topic(topic).partitions)
        except UnknownTopicOrPartition as error:
            raise UnknownTopicOrPartition(f"{error}; `raylog topics create {quote(topic)}` makes it") from error


def _opened(file: Path | None, stack: ExitStack) -> tuple[BinaryIO, int | None]:
    """The input, and its size in bytes if that is known."""
    if file is None or str(file) == "-":
        if sys.stdin is None:
            raise InvalidRequest("stdin is closed; give --file, or send records to it")
        return sys.stdin.buffer, None
    try:
        source = stack.enter_context(file.open("rb"))
    except OSError as error:
        raise InvalidRequest(f"--file {file}: {error.strerror}") from error
    return source, file.stat().st_size


def _send_lines(
    servers: str,
    topic: str,
    partition: int | None,
    source: BinaryIO,
    read: Callable[[bytes], NewRecord],
    settings: dict[str, Any],
    progress: Progress,
) -> tuple[int, list[RaylogError]]:
    """How many records were sent, and the errors of those that were not delivered.

    A bad line or a signal ends it once the records before it are settled.
    """
    failed: list[RaylogError] = []

    def note(delivery: client.Delivery) -> None:
        error = delivery.exception()
        if error is not None:
            failed.append(error)

    sent = 0
    interrupted: KeyboardInterrupt | None = None
    with client.Producer(servers, **settings) as producer:
        try:
            for line in source:
                value, key, headers, timestamp = read(line.removesuffix(b"\n"))
                delivery = producer.send(topic, value, key, partition=partition, headers=headers, timestamp=timestamp)
                delivery.add_done_callback(note)
                sent += 1
                progress.add(1, len(line))
        except (InvalidRecord, MessageTooLarge) as error:
            raise type(error)(f"line {sent + 1}: {error}; {sent} records before it were sent") from error
        except KeyboardInterrupt as ctrl_c:
            interrupted = ctrl_c
    if interrupted is not None:
        tell(f"interrupted; sent {sent - len(failed)} records to {topic}")
        raise interrupted
    return sent, failed
