"""A process of ``serve.py`` and what it tells: for the benchmark, and for tests that need a broker of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["Served"]

END_S = 20


class Served:
    """``serve.py ARGUMENTS``, from its first line to the end of its stdin."""

    def __init__(self, *arguments: str) -> None:
        here = Path(__file__).parent
        environment = {**os.environ, "PYTHONPATH": str(here.parent)}
        self._process = subprocess.Popen(
            [sys.executable, str(here / "serve.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.facts = self._line()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run_on(self, cpus: set[int]) -> None:
        """Let all threads of the process run on these processors."""
        for thread in os.listdir(f"/proc/{self._process.pid}/task"):
            try:
                os.sched_setaffinity(int(thread), cpus)
            except ProcessLookupError:
                pass  # it has ended

    def address(self, name: str = "port") -> tuple[str, int]:
        return self.facts["host"], self.facts[name]

    def tell(self, command: str = "") -> dict[str, float]:
        """Have a command carried out; CPU seconds so far, resident bytes now."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._line()

    def cpu_s(self) -> float:
        return self.tell()["cpu_s"]

    @contextmanager
    def topic(self, name: str, partitions: int = 1) -> Iterator[str]:
        """A topic for as long as it is measured, so that the page cache holds no more than that."""
        self.tell(f"create {name} {partitions}")
        try:
            yield name
        finally:
            self.tell(f"delete {name}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a process of the benchmark ended early; its error is above")
        facts: dict[str, Any] = json.loads(line)
        return facts
