"""Kafka's Java clients and its log reader: a JVM behind a line protocol.

They run where ``java``, ``javac`` and ``mvn`` are.
"""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import IO, NamedTuple, Self

from kit.clients import Row, Whole
from kit.machine import SLOWNESS
from kit.maven import SOURCES, Release, jars
from kit.streams import ProgramStream, feed

TIMEOUT_S = 60 * SLOWNESS
TOOLS = "org.apache.kafka.tools"
JVM = ("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp")


KAFKA_4 = Release("kafka_2.13", "4.2.0")
"""The broker's own package: the client and, beside it, DumpLogSegments."""
KAFKA_TOOLS = Release("kafka-tools", "4.2.0")
"""What the scripts in Kafka's ``bin`` run."""
KAFKA_3 = Release("kafka-clients", "3.9.1")
RELEASES = (KAFKA_4, KAFKA_3)


def dump_log(*files: Path) -> str:
    """What Kafka's DumpLogSegments says of segments or indexes, records included: on stdout, mismatches on stderr."""
    done = subprocess.run(
        [
            *JVM, f"{jars(KAFKA_4)}/*", "kafka.tools.DumpLogSegments",
            "--deep-iteration", "--print-data-log", "--files", ",".join(map(str, files)),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    mismatches = [line for line in done.stderr.splitlines(keepends=True) if not line.startswith("SLF4J")]
    return "".join([done.stdout, *mismatches])


class JavaClient(Whole):
    """One release of the Java client in a JVM that is started on first use; see ``conformance/java/Rows.java``."""

    idempotent = True

    def __init__(self, release: Release, classes: Path) -> None:
        """``classes``: an empty directory of this test run, for what javac makes."""
        self.name = release.name
        self._release = release
        self._classes = classes
        self._jvm: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._jvm is not None:
            stdin, stdout = self._pipes()
            stdin.close()
            try:
                self._jvm.wait(TIMEOUT_S)
            finally:
                self._jvm.kill()
                self._jvm.wait()
                stdout.close()

    def write(self, servers: str, topic: str, partition: int, rows: Sequence[Row], compression: str) -> None:
        self._ask(["write", servers, topic, partition, compression, "true", len(rows)], [_text(row) for row in rows])

    def read(self, servers: str, topic: str, partition: int, count: int) -> list[Row]:
        return [_row(line) for line in self._ask(["read", servers, topic, partition, count])]

    def _ask(self, words: Sequence[object], rows: Sequence[str] = ()) -> list[str]:
        stdin, stdout = self._pipes()
        stdin.write("\n".join([" ".join(map(str, words)), *rows]) + "\n")
        stdin.flush()
        kind, _, rest = stdout.readline().rstrip("\n").partition(" ")
        assert kind == "ok", f"{self.name}: {rest or 'the JVM ended'}"
        return [stdout.readline().rstrip("\n") for _ in range(int(rest))]

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        if self._jvm is None:
            path = f"{jars(self._release)}/*"
            subprocess.run(
                ["javac", "-cp", path, "-d", self._classes, SOURCES / "Rows.java"], check=True, timeout=TIMEOUT_S
            )
            self._jvm = subprocess.Popen(
                [*JVM, f"{self._classes}:{path}", "Rows"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        return self._jvm.stdin, self._jvm.stdout


@cache
def classes(program: str) -> TemporaryDirectory[str]:
    """What javac makes of ``conformance/java/PROGRAM.java``, for both releases, as long as this process runs."""
    target = TemporaryDirectory(prefix="raylog-java-")
    source = SOURCES / f"{program}.java"
    subprocess.run(["javac", "-cp", f"{jars(KAFKA_3)}/*", "-d", target.name, source], check=True, timeout=TIMEOUT_S)
    return target


class Told(NamedTuple):
    """What a tool answered."""

    code: int
    """0: all went well."""
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class KafkaTools:
    """Kafka's command line tools against one cluster, in one JVM; see ``conformance/java/Tools.java``."""

    def __init__(self, servers: Callable[[], str]) -> None:
        """``servers``: those that run when a command does."""
        self._servers = servers
        command = [*JVM, f"{jars(KAFKA_TOOLS)}/*", str(SOURCES / "Tools.java")]
        pipe = subprocess.PIPE
        self._jvm = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._jvm:  # waits for its end, and closes its pipes
            self._jvm.kill()

    def run(self, tool: str, *arguments: object) -> Told:
        """Run ``org.apache.kafka.tools.TOOL`` with the cluster's address and these arguments."""
        stdin, stdout = self._jvm.stdin, self._jvm.stdout
        assert stdin is not None
        assert stdout is not None
        words = [f"{TOOLS}.{tool}", "--bootstrap-server", self._servers(), *map(str, arguments)]
        stdin.write("\t".join(words) + "\n")
        stdin.flush()
        match stdout.readline().split():
            case ["exit", code, count]:
                lines = [stdout.readline().rstrip("\n") for _ in range(int(count))]
                # The first tool of a JVM that logs is also told that nothing is there to log to.
                return Told(int(code), [line for line in lines if not line.startswith("SLF4J: ")])
            case other:
                raise AssertionError(f"the JVM that runs {tool} said {other}")


def replica_lags(servers: str, topic: str) -> Iterator[int]:
    """By how many records a topic's replicas differ, as Kafka's ReplicaVerificationTool finds it again and again."""
    command = [
        *JVM, f"{jars(KAFKA_TOOLS)}/*", f"{TOOLS}.ReplicaVerificationTool", "--broker-list", servers,
        "--topics-include", topic, "--time", "-2", "--report-interval-ms", "200",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as jvm:
        try:
            assert jvm.stdout is not None
            for line in jvm.stdout:
                if found := re.search(r"max lag is (\d+)", line):
                    yield int(found[1])
        finally:
            jvm.kill()


class JavaStream(ProgramStream):
    """One release's producer and consumer in a JVM; see ``conformance/java/Numbers.java``."""

    def __init__(self, release: Release, servers: str, topic: str, *, rack: str = "") -> None:
        super().__init__(servers, topic, rack=rack)
        self.name = release.name
        self._release = release

    def _start(self) -> list[subprocess.Popen[str]]:
        path = f"{classes('Numbers').name}:{jars(self._release)}/*"
        command = [*JVM, path, "Numbers", self.servers, self.topic, self.rack]
        pipe = subprocess.PIPE
        return [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)]

    def _write(self) -> None:
        feed(self._programs[0], self._numbers())

    def _read(self) -> None:
        [program] = self._programs
        assert program.stdout is not None
        for line in program.stdout:
            match line.split():
                case ["acked"]:
                    self._note()
                case ["read", offset, number]:
                    self._take(int(offset), number)
                case words:
                    self._note(" ".join(words))
        if not self._all_read.is_set():
            self._note(f"the JVM ended with {program.wait(TIMEOUT_S)}")


def _text(row: Row) -> str:
    key, value, headers = row
    fields = [key, value]
    for name, content in headers:
        fields += [name.encode(), content]
    return " ".join("-" if field is None else "=" + base64.b64encode(field).decode() for field in fields)


def _row(line: str) -> Row:
    fields = [None if field == "-" else base64.b64decode(field[1:]) for field in line.split(" ")]
    names, contents = fields[2::2], fields[3::2]
    return (
        fields[0],
        fields[1],
        [((name or b"").decode(), content) for name, content in zip(names, contents, strict=True)],
    )
