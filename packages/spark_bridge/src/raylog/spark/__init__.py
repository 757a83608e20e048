"""Topics as Spark DataFrames, through RayDP on the cluster of the brokers.

What is named here is imported when it is used first: executors import modules of this package, and need neither
pyspark nor Ray. So no module here has the name of a function: imported, it would take the function's place.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raylog.spark.exports import export
    from raylog.spark.session_plan import SparkNotStarted
    from raylog.spark.sessions import session
    from raylog.spark.sinks import sink
    from raylog.spark.source import read
    from raylog.spark.stream_source import stream
    from raylog.spark.writes import write

__all__ = ["SparkNotStarted", "export", "read", "session", "sink", "stream", "write"]

_HOME = {
    "SparkNotStarted": "session_plan",
    "export": "exports",
    "read": "source",
    "session": "sessions",
    "sink": "sinks",
    "stream": "stream_source",
    "write": "writes",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"raylog.spark.{_HOME[name]}"), name)
