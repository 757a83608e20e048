"""What an append costs besides its checksum and its pwritev: the last line is one JSON object, in microseconds.

``python tests/bench/bench_append.py``; takes some seconds and 800 MB below the temporary directory.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from crc32c import crc32c

from kit.partitions import NOW, batch, open_shelf

ROUNDS, APPENDS = 7, 800
FROM_PRODUCER = bytes(8)
"""The base offset that a producer sends."""


def microseconds(work: Callable[[int], object]) -> float:
    """One call's time, in the best of several rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for n in range(APPENDS):
            work(n)
        best = min(best, (time.perf_counter() - start) / APPENDS)
    return best * 1e6


def main() -> None:
    data = batch(*[b"x" * 100] * 595)
    with tempfile.TemporaryDirectory() as directory:
        shelf = open_shelf(Path(directory) / "logs")

        def append_again(_: int) -> None:
            data[:8] = FROM_PRODUCER  # the last append stamped its base offset
            shelf.partition.append(data, now_ms=NOW)

        append = microseconds(append_again)
        read = microseconds(lambda n: shelf.partition.read(n * 595, 1 << 20).data.release())  # type: ignore[arg-type, union-attr]
        checksum = microseconds(lambda _: crc32c(data[21:]))
        fd = os.open(Path(directory) / "plain", os.O_RDWR | os.O_CREAT)
        positions = itertools.count(step=len(data))
        write = microseconds(lambda _: os.pwritev(fd, (data,), next(positions)))
        os.close(fd)
        shelf.dirs.close()
    figures = {
        "append_64k_us": append, "crc_64k_us": checksum, "pwritev_64k_us": write,
        "append_64k_rest_us": append - checksum - write, "read_us": read,
    }  # fmt: skip
    print(json.dumps({name: round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
