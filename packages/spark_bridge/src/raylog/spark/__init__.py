"""Topics as Spark DataFrames, through RayDP on the cluster of the brokers.

``sessions`` starts Spark, ``reading`` has ``read`` and ``stream``, ``writing`` has ``write`` and ``sink``, ``exports``
loads offline. What is named here is imported when it is used first: executors import modules of this package, and need
neither pyspark nor Ray. So no room or module here has the name of a function: imported, it would take the function's
place.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raylog.spark.exports.exports import export
    from raylog.spark.reading.source import read
    from raylog.spark.reading.stream_source import stream
    from raylog.spark.sessions.plan import SparkNotStarted
    from raylog.spark.sessions.sessions import session
    from raylog.spark.writing.sinks import sink
    from raylog.spark.writing.writes import write

__all__ = ["SparkNotStarted", "export", "read", "session", "sink", "stream", "write"]

_HOME = {
    "SparkNotStarted": "sessions.plan",
    "export": "exports.exports",
    "read": "reading.source",
    "session": "sessions.sessions",
    "sink": "writing.sinks",
    "stream": "reading.stream_source",
    "write": "writing.writes",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"raylog.spark.{_HOME[name]}"), name)
