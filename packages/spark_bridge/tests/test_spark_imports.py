"""What executors' Python workers import needs neither Spark's Python nor Ray."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kit.machine import scaled


@pytest.mark.parametrize("module", ["reading.reader", "writing.write_task", "exports.task", "writing.sink_task"])
def test_workers_import_neither_pyspark_nor_ray(module: str) -> None:
    script = (
        f"import sys, raylog.spark.{module}; print(*sorted({{'pyspark', 'py4j', 'ray', 'raydp'}} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=scaled(60))
    assert ran.stdout.split() == []
