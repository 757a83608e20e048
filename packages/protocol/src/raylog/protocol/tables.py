"""What commands print: rows as a table for people, anything as JSON for programs.

It is here because the packages that have commands (client, broker) share nothing else. The rows of a table and the
objects of its JSON are the same, so that a column has one name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any
from uuid import UUID

Row = Mapping[str, Any]

_MEASURED = 1_000
"""So many rows set the widths; all that follow are printed as they come, so that a table can be without end."""
_GAP = "  "


def table(rows: Iterable[Row], columns: Sequence[str] = ()) -> Iterator[str]:
    """The lines of a table: names, then a line a row; columns of numbers to the right.

    ``columns`` chooses and orders, by default they are the first row's; without any row and column there is no line.
    """
    rest = iter(rows)
    first = list(islice(rest, _MEASURED))
    names = list(columns) or list(first[0] if first else ())
    if not names:
        return
    cells = [[cell(row.get(name)) for name in names] for row in first]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    numeric = [first != [] and all(_is_number(row.get(name)) for row in first) for name in names]
    for line in chain([names], cells, ([cell(row.get(name)) for name in names] for row in rest)):
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        yield _GAP.join(padded).rstrip()


def cell(value: object) -> str:
    """A value as people read it: nothing is ``-``, a list is joined by commas."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, list | tuple):
        return ",".join(map(cell, value)) or "-"
    if isinstance(value, Mapping):
        return ",".join(f"{name}={cell(part)}" for name, part in value.items()) or "-"
    return str(value)


def as_json(value: object) -> str:
    """One line of JSON; names and ids (UUID) as text."""
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _plain(value: object) -> str:
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"a {type(value).__name__} has no place in JSON")
