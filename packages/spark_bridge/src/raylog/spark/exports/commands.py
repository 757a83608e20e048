"""``raylog spark export``: plugged into the `raylog` command line, which reports its errors.

pyspark is imported when a command runs, so that help stays quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from raylog.client.cli.terminal.common import (
    Bootstrap,
    Config,
    DataDir,
    Output,
    OutputOption,
    Topic,
    client_settings,
    count_of,
    milliseconds,
    servers_of,
    show_json,
    show_table,
    tell,
)
from raylog.client.cli.terminal.progress import Progress
from raylog.coordination.host.java import find_java

__all__ = ["register"]

APP_NAME = "raylog export"

spark = typer.Typer(no_args_is_help=True, help="Jobs on Spark.", rich_markup_mode=None)


class Format(StrEnum):
    """What files are written as."""

    PARQUET = "parquet"


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.add_typer(spark, name="spark")


@spark.callback()
def jobs() -> None:
    """Jobs on Spark."""


@spark.command()
def export(
    topic: Topic,
    to: Annotated[
        str,
        typer.Option("--to", metavar="DIR", help="A directory that all nodes see; made when it isn't there."),
    ],
    format_: Annotated[Format, typer.Option("--format", help="What the files are.")] = Format.PARQUET,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="MS|ISO",
            help="Where DIR has nothing yet, begin with the first record at or after this time. Default: all.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="MS|ISO", help="End before the first record at or after this time. Default: the end."),
    ] = None,
    fail_on_data_loss: Annotated[
        bool, typer.Option(help="Fail when records were deleted before they were exported, or leave them out.")
    ] = True,
    max_records_per_file: Annotated[int, typer.Option(min=1, help="A file ends after so many offsets.")] = 1_000_000,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Spark's, such as local[2]. Default: executors on the Ray cluster of the brokers."
        ),
    ] = None,
    executors: Annotated[int, typer.Option(min=1, help="On the Ray cluster.")] = 1,
    cores: Annotated[int, typer.Option(min=1, help="Of each executor: partitions that it exports at once.")] = 1,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Of each executor, as 600m or 2g.")] = "1g",
    config: Config = None,
    output: OutputOption = Output.TABLE,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Write a topic's records to Parquet files, each record once; run again, it goes on where it ended.

    The files are DIR/topic=T/partition=P/OFFSET.parquet. A run that was killed leaves nothing that the next one does
    not know how to go on from, and two runs at once share the work.
    """
    since_ms = None if since is None else milliseconds(since, "--since")
    until_ms = None if until is None else milliseconds(until, "--until")
    servers = servers_of(data_dir, bootstrap_server)
    settings = {name.replace(".", "_"): value for name, value in client_settings(config).items()}
    job = import_module("raylog.spark.exports.exports").export
    started = (
        local_session(master)
        if master is not None
        else ray_session(data_dir, executors=executors, cores=cores, memory=memory)
    )
    with started as session, Bar() as bar:
        done = job(
            session,
            topic,
            to=to,
            bootstrap_servers=servers,
            since_ms=since_ms,
            until_ms=until_ms,
            fail_on_data_loss=fail_on_data_loss,
            max_records_per_file=max_records_per_file,
            consumer=settings,
            on_planned=bar.begin,
            on_progress=bar.add,
        )
    rows = [partition._asdict() for partition in done]
    if output is Output.JSON:
        show_json(rows)
    else:
        show_table(rows)
    records = sum(partition.records for partition in done)
    tell(f"{records:,} records of {topic} exported to {to} from {count_of(done, 'partition')}")


class Bar:
    """A progress bar from when it is known how much there is to do; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def __enter__(self) -> Bar:
        return self

    def begin(self, offsets: int) -> None:
        """So many records at most."""
        self._progress = Progress(offsets, of_bytes=False)

    def add(self, records: int, size: int) -> None:
        """So many more."""
        if self._progress is not None:
            self._progress.add(records, size)

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.end()


@contextmanager
def local_session(master: str) -> Iterator[Any]:
    """Spark at the given master, without Ray; its JVM ends with it."""
    jvm = import_module("raylog.spark.sessions.jvm")
    with ExitStack() as stack:
        stack.enter_context(jvm.environment(local_environment(os.environ)))
        scratch = stack.enter_context(TemporaryDirectory(prefix="raylog-spark-"))
        log4j = Path(scratch) / "log4j2.properties"
        log4j.write_text(jvm.LOGGING)
        settings = {
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j} -Djava.io.tmpdir={scratch}",
            "spark.local.dir": scratch,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        builder = import_module("pyspark.sql").SparkSession.builder
        stack.callback(jvm.end_jvm)
        stack.push(jvm.keep_texts)
        session = builder.master(master).appName(APP_NAME).config(map=settings).getOrCreate()
        stack.callback(session.stop)
        yield session


def local_environment(given: Mapping[str, str]) -> dict[str, str]:
    """What Spark without Ray needs in its environment, where there is ``given``. Raises NoJava."""
    return {"JAVA_HOME": str(find_java(given).path), "PYSPARK_PYTHON": given.get("PYSPARK_PYTHON", sys.executable)}


def ray_session(data_dir: Path | None, **wanted: Any) -> Any:
    """Spark on the Ray cluster of the brokers of ``data_dir``, or of the only ones that run here."""
    configs = {"spark.ui.showConsoleProgress": "false"}
    return import_module("raylog.spark.sessions.sessions").session(
        app_name=APP_NAME, data_dir=data_dir, configs=configs, **wanted
    )
