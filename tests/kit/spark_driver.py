"""A driver that holds a Spark session until it is ended: ``python -m kit.spark_driver ADDRESS``, Ray's address."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raylog.spark import session


@contextmanager
def driver_process(address: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The driver in a process of its own, which writes ``started`` into ``log`` when it has its session."""
    tests = Path(__file__).parent.parent
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "kit.spark_driver", address],
            cwd=tests,
            env={**os.environ, "PYTHONPATH": str(tests)},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    with session(address=sys.argv[1], memory="600m") as spark:
        print("started", spark.range(10).count(), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
