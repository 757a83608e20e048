"""Topics as Spark DataFrames, through RayDP on the cluster of the brokers."""

from raylog.spark.session import session
from raylog.spark.source import read

__all__ = ["read", "session"]
