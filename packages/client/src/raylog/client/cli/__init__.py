"""The command line, ``raylog``: topics, settings, brokers, consumer groups, records and measurements.

Other packages add commands.

Answers go to stdout, everything else to stderr. An error is one line that says what to do, with exit code 1, or 2 when
the command line itself is wrong; Ctrl-C ends with 130, SIGTERM with 143, and a reader of a pipe that has enough ends a
command quietly.

Commands take the client's classes from the package ``raylog.client``, which loads them when they are first used: help
and completion stay quick.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from raylog.client.cli import brokers, configs, consume, groups, measure, produce
from raylog.client.cli.plugins import plugins
from raylog.client.cli.terminal.endings import Ended
from raylog.client.cli.topics import topics
from raylog.protocol.batches.compiled import RECORD_CODEC
from raylog.protocol.errors import RaylogError
from raylog.protocol.texts import safe_text, told

__all__ = ["app", "main"]

_INTERRUPTED = 130
_TRACEBACK = "RAYLOG_TRACEBACK"
"""Set in the environment: an error that nobody foresaw ends a command with its traceback."""


class Root(TyperGroup):
    """The commands here, and those of other packages, which are loaded only when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(dict.fromkeys((*super().list_commands(ctx), *plugins(None).list_commands(ctx))))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        here = super().get_command(ctx, cmd_name)
        return here or plugins(cmd_name).get_command(ctx, cmd_name) or plugins(None).get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        if sys.stdout is None:
            raise OSError("stdout is closed; send it to /dev/null if nobody is to read it")
        try:
            answer = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _forget_stdout()
            raise typer.Exit(0) from None
        except OSError:
            try:
                sys.stdout.flush()
            except OSError:
                _forget_stdout()
            raise
        except Ended as signalled:
            raise typer.Exit(128 + signalled.number) from None
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
        return answer


def _forget_stdout() -> None:
    """What is still to be written there goes nowhere: else Python tries again at its end, and tells that it fails."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    cls=Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="A Kafka-compatible distributed log on Ray.",
)
app.add_typer(topics.app, name="topics")
app.add_typer(configs.app, name="configs")
app.add_typer(brokers.app, name="brokers")
app.add_typer(groups.app, name="groups")
app.command()(produce.produce)
app.command()(consume.consume)
app.add_typer(measure.app, name="perf")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"raylog {version('raylog-client')} (record codec: {RECORD_CODEC})")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A Kafka-compatible distributed log on Ray."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_is_shown)
    logging.basicConfig(format="raylog: %(message)s", level=logging.WARNING, handlers=[handler])


def _is_shown(record: logging.LogRecord) -> bool:
    """A command's error says where nobody answers."""
    return record.name != "raylog.client.telemetry.client_log" or record.levelno >= logging.ERROR


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script ``raylog``; ``arguments`` are those of the process unless given. Ends by SystemExit."""
    try:
        code = app(arguments, prog_name="raylog", standalone_mode=False)
    except TyperException as error:
        code = _report_usage(error)
    except (RaylogError, OSError) as error:
        code = _report(str(error), 1)
    except UnicodeEncodeError as error:
        code = _report(f"{error.object!r} is not UTF-8, as all text is here but for the names of files", 1)
    except typer.Abort:
        code = _INTERRUPTED
    except Exception as error:
        if _TRACEBACK in os.environ:
            raise
        code = _report(f"a defect of raylog: {told(error)}; with {_TRACEBACK}=1 in the environment it says where", 1)
    sys.exit(code)


def _report(message: str, code: int) -> int:
    typer.echo(f"raylog: {' '.join(safe_text(message).split())}", err=True)
    return code


def _report_usage(error: TyperException) -> int:
    """What is wrong with the command line, and where its help is; the help itself for a bare ``raylog`` or group."""
    context = getattr(error, "ctx", None)
    message = error.format_message()
    if context is None:
        return _report(message, error.exit_code)
    if message == context.get_help():
        typer.echo(message)
        return 0
    return _report(f"{message.rstrip('.')}; see `{context.command_path} --help`", error.exit_code)
