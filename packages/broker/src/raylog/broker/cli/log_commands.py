"""``raylog log``: look into the files of a log directory, and check them. No broker is needed, none is disturbed."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from raylog.broker.storage.directories.stored import Row, rows_of
from raylog.broker.storage.directories.verify import Finding, Level, Verifier
from raylog.broker.storage.segments.segment import LOG
from raylog.protocol.errors import CorruptMessage, InvalidRequest
from raylog.protocol.tables import as_json, table

__all__ = ["register"]


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", help="A table for people, or a JSON object a line.")]
Paths = Annotated[list[Path], typer.Argument(metavar="PATH...", exists=True, show_default=False)]

app = typer.Typer(no_args_is_help=True, help="Look into the files of a log directory, and check them.")


def register(root: typer.Typer) -> None:
    """Add the commands to ``root``."""
    root.add_typer(app, name="log")


@app.command()
def dump(
    paths: Paths,
    records: Annotated[bool, typer.Option("--records", help="The records of .log files, not their batches.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show batches or records of .log files, and entries of .index, .timeindex, .snapshot and checkpoint files.

    A partition's directory stands for its .log files.
    """
    files = [file for path in paths for file in _files(path)]
    for number, file in enumerate(files):
        if output is Output.TABLE and len(files) > 1:
            typer.echo(f"{'' if number == 0 else chr(10)}{file}")
        try:
            _print(rows_of(file, records=records), output, file if len(files) > 1 else None)
        except (CorruptMessage, ValueError) as error:
            raise CorruptMessage(f"{file}: {error}") from error


@app.command()
def verify(
    paths: Paths,
    records: Annotated[bool, typer.Option("--records", help="Decode every record, too; takes longer.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check every batch's checksum and offsets, and that indexes, snapshots and checkpoints agree with the logs.

    A path is a data directory, a log directory, a partition's directory or a .log file. Exit code 1 when something is
    damaged; what a crash or a running broker may leave is noted only.
    """
    verifier = Verifier(records=records)
    damaged = 0

    def rows() -> Iterable[Row]:
        nonlocal damaged
        for path in paths:
            for finding in verifier.check(path):
                damaged += finding.level is Level.DAMAGED
                yield _finding_row(finding)

    _print(rows(), output, None)
    typer.echo(
        f"raylog: checked {verifier.batches} batches ({verifier.records} records, {verifier.bytes} bytes) in "
        f"{verifier.segments} segments of {verifier.partitions} partitions: "
        f"{f'{damaged} damaged' if damaged else 'all sound'}",
        err=True,
    )
    if damaged:
        raise typer.Exit(1)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    logs = sorted(path.glob(f"*{LOG}"))
    if not logs:
        raise InvalidRequest(f"there is no {LOG} file in {path}; give files, or a partition's directory")
    return logs


def _finding_row(finding: Finding) -> Row:
    return {
        "level": finding.level.value,
        "path": str(finding.path),
        "position": finding.position,
        "problem": finding.problem,
        "remedy": finding.remedy,
    }


def _print(rows: Iterable[Row], output: Output, file: Path | None) -> None:
    if output is Output.JSON:
        for row in rows:
            typer.echo(as_json(row if file is None else {"path": str(file), **row}))
    else:
        for line in table(rows):
            typer.echo(line)
