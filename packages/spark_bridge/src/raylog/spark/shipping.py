"""Functions on their way to executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from raylog.spark.versions import run_here, versions


def shipped(function: Callable[[Any, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], task: Any) -> Any:
    """``function`` of ``task`` and batches, for ``mapInArrow``: executors of other versions refuse it."""
    pickles: Any = cloudpickle
    return partial(run_here, versions(), pickles.dumps(partial(function, task)))
