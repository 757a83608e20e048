"""Spark's own Kafka connector (``format("kafka")``): its jars, from Maven."""

from __future__ import annotations

import re
from pathlib import Path

import pyspark

from kit.maven import Release, jars

CONNECTOR = Release("spark-sql-kafka-0-10_2.12", pyspark.__version__, "org.apache.spark")


def connector_jars() -> str:
    """For ``spark.jars``: the connector's jars and what they need, but for that which Spark has already."""
    own = {_artifact(jar) for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    return ",".join(str(jar) for jar in sorted(jars(CONNECTOR).glob("*.jar")) if _artifact(jar) not in own)


def _artifact(jar: Path) -> str:
    """A jar's name without its version."""
    return re.sub(r"-\d[^_]*$", "", jar.stem)
