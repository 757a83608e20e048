"""``raylog perf``: how fast a cluster is, measured with our own clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raylog.client.cli.terminal.common import (
    Bootstrap,
    Config,
    DataDir,
    Output,
    OutputOption,
    Topic,
    admin_of,
    client_settings,
    servers_of,
    show_json,
    show_table,
)
from raylog.client.cli.terminal.progress import Progress

if TYPE_CHECKING:
    from raylog.client.cli import perf as measuring

app = typer.Typer(no_args_is_help=True, help="Measure a cluster: records/s, MB/s, latencies, the brokers' CPU seconds.")

LARGEST = 1 << 30
NumRecords = Annotated[int, typer.Option("--num-records", min=1, help="How many records.")]
RecordSize = Annotated[
    int, typer.Option("--record-size", min=0, max=LARGEST, metavar="BYTES", help="Of each value; random bytes.")
]


@app.command("produce")
def produce(
    topic: Topic,
    num_records: NumRecords = 1_000_000,
    record_size: RecordSize = 100,
    throughput: Annotated[
        float | None, typer.Option(min=0.001, metavar="RECORDS/S", help="No more than this; default: all it takes.")
    ] = None,
    config: Config = None,
    output: OutputOption = Output.TABLE,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Send records to an existing topic; latencies are from send() to the acknowledgement."""
    with _measured(topic, num_records, data_dir, bootstrap_server) as (servers, progress):
        report = _measuring().measure_produce(
            servers, topic, records=num_records, record_size=record_size, throughput=throughput,
            step=progress.add, config=client_settings(config),
        )  # fmt: skip
    _show(report, output)


@app.command("consume")
def consume(
    topic: Topic,
    num_records: Annotated[int | None, typer.Option("--num-records", min=1, help="Default: all there are.")] = None,
    config: Config = None,
    output: OutputOption = Output.TABLE,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Read a topic from its beginning; latencies are those of polls that brought records."""
    with _measured(topic, num_records, data_dir, bootstrap_server) as (servers, progress):
        report = _measuring().measure_consume(
            servers, topic, records=num_records, step=progress.add, config=client_settings(config)
        )
    _show(report, output)


@app.command("e2e")
def e2e(
    topic: Topic,
    num_records: NumRecords = 10_000,
    record_size: RecordSize = 100,
    config: Config = None,
    output: OutputOption = Output.TABLE,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Send one record after the other and wait for each to be read; latencies are from send() until then."""
    with _measured(topic, num_records, data_dir, bootstrap_server) as (servers, progress):
        report = _measuring().measure_e2e(
            servers,
            topic,
            records=num_records,
            record_size=record_size,
            step=progress.add,
            config=client_settings(config),
        )
    _show(report, output)


def _measuring() -> Any:
    """The module that measures; it loads the clients, which help and completion need not."""
    return import_module("raylog.client.cli.perf")


@contextmanager
def _measured(
    topic: str, records: int | None, data_dir: Path | None, bootstrap_server: str | None
) -> Iterator[tuple[str, Progress]]:
    """The cluster's addresses, once the topic is known to be there, and a progress line."""
    servers = servers_of(data_dir, bootstrap_server)
    with admin_of(None, servers) as admin:
        admin.describe_topic(topic)
    progress = Progress(records, of_bytes=False)
    try:
        yield servers, progress
    finally:
        progress.end()


def _show(report: measuring.Report, output: Output) -> None:
    if output is Output.JSON:
        show_json(report._asdict())
    else:
        show_table([report._asdict()])
