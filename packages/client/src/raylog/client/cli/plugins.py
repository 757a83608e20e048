"""Commands that other packages add to the command line, loaded only when they are asked for."""

from __future__ import annotations

from importlib.metadata import entry_points

import typer
from typer.core import TyperGroup
from typer.main import get_command

COMMANDS = "raylog.commands"
"""The entry-point group: each entry is a function that adds commands to the typer app it is given.

An entry that is named as the one command it adds is loaded alone when that command is asked for. A group of the name of
one that is here, such as ``brokers``, adds its commands to that.
"""


def plugins(name: str | None) -> TyperGroup:
    """The commands of the entry points called ``name``, or of all."""
    if name not in _loaded:
        found = typer.Typer(rich_markup_mode=None)
        found.callback()(lambda: None)
        for entry in entry_points(group=COMMANDS) if name is None else entry_points(group=COMMANDS, name=name):
            entry.load()(found)
        group = get_command(found)
        assert isinstance(group, TyperGroup)
        _loaded[name] = group
    return _loaded[name]


_loaded: dict[str | None, TyperGroup] = {}
