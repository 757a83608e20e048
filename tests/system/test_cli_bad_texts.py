"""Whatever text a user gives to whatever command: an answer, or one line that says what is wrong; never a traceback."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from kit.cluster import InProcessCluster
from kit.commands import RAYLOG, environment
from kit.machine import scaled
from raylog.client import Consumer
from raylog.client.cli import app, main

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

BAD = {
    "not UTF-8": "caf\udce9",
    "a large number": "9" * 30,
    "empty": "",
    "huge, and deep": "[" * 70_000,
    "many digits": "9" * 5_000,
    "a figure that is no digit": "²",
    "odd": "%s\x1b[31m🙂{}=:,\n",
}
OF_OTHER_TYPES = ["not UTF-8", "a large number"]
"""Those that are tried for numbers, words of a list, and paths."""
GOOD = {"topic": "t", "name": "t", "topics": "t", "group": "g", "groups": "g", "broker_id": "0", "to": "nowhere"}
COMMON = {"data_dir", "bootstrap_server", "output", "config", "key_deserializer", "value_deserializer"}
"""Options of most commands, tried with one of them."""
ENDING = {"consume": ["--until-end"], "perf produce": ["--num-records", "1"], "perf e2e": ["--num-records", "1"]}
"""What makes a command end that goes on for long."""
ONLY = {"up": {"config"}, "spark export": {"since", "until", "config"}, "topics describe": None}
"""Of commands that start much: options that are looked at first. None: the common ones as well."""


def leaves(command: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "list_commands"):
        yield " ".join(names), command
        return
    for name in command.list_commands(None):
        yield from leaves(command.get_command(None, name), (*names, name))


COMMANDS = dict(leaves(get_command(app)))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    config = {"auto.create.topics.enable": "false"}
    with InProcessCluster(tmp_path_factory.mktemp("brokers"), config=config) as running:
        running.create_topic("t")
        yield running


def given(text: str, param: Any) -> list[str]:
    """The words that give ``text`` to the parameter."""
    return [f"{param.opts[0]}={text}"] if param.param_type_name == "option" else [text]


def lines(name: str, directory: Path) -> Iterator[list[str]]:
    """Command lines with a bad text in the place of one text or number, the other ones being good."""
    params = [param for param in COMMANDS[name].params if param.name != "help" and not getattr(param, "is_flag", False)]
    required = [param for param in params if param.required]
    chosen = ONLY.get(name) or {param.name for param in params if name in ONLY or param.name not in COMMON}
    for tried in params:
        if tried.name not in chosen:
            continue
        for bad in BAD if tried.type_descriptor.annotation in (str, list[str]) else OF_OTHER_TYPES:
            line = name.split()
            for param in dict.fromkeys([*required, tried]):
                line += given(BAD[bad] if param is tried else GOOD.get(param.name, str(directory)), param)
            if "bootstrap_server" in {param.name for param in params} - {tried.name}:
                line += ["--bootstrap-server", "SERVERS"]
            yield [*line, *ENDING.get(name, [])]


def ended(arguments: list[str]) -> tuple[int, str]:
    """The exit code and what was told, on streams that are as strict as a terminal's."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "strict") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as done:
        main(arguments)
    err.flush()
    return int(done.value.code or 0), err.buffer.getvalue().decode()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_answers_bad_texts_in_one_line(
    cluster: InProcessCluster, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYLOG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    wrong = []
    for line in lines(name, tmp_path):
        code, told = ended([cluster.bootstrap_servers if word == "SERVERS" else word for word in line])
        in_one_line = told.startswith("raylog: ") and told.count("\n") == 1 and "defect" not in told
        if (code and not in_one_line) or len(told) > 5_000:
            wrong.append((" ".join(line)[:100], code, told[:500]))
    assert wrong == [], "\n".join(map(str, wrong))


def as_process(cluster: InProcessCluster, command: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """A shell's command, in which ``raylog`` is our command line."""
    return subprocess.run(
        ["/bin/sh", "-c", command.replace("raylog", RAYLOG) + f" --bootstrap-server {cluster.bootstrap_servers}"],
        input=stdin,
        capture_output=True,
        timeout=scaled(60),
        env=environment(cluster.root),
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "stdin", "words"),
    [
        ("raylog produce t <&-", b"", "stdin is closed; give --file"),
        ("raylog topics list >&-", b"", "stdout is closed"),
        ("raylog topics list >/dev/full", b"", "No space left"),
        ("raylog produce nosuch", b"x\n", "`raylog topics create nosuch` makes it"),
        ("raylog produce \"$(printf 'caf\\351')\"", b"x\n", "caf\\udce9"),
        ("raylog produce t --format json", b"[" * 100_000, "line 1"),
        ("raylog produce t --format json", b'{"value": ' + b"[" * 900 + b"]" * 900 + b"}", ""),
        ("raylog produce t --format json", b'{"value": "\\ud800"}', "line 1"),
        ("raylog produce t --format json", b'{"value": "v", "timestamp": true}', "timestamp"),
        ("raylog produce t --format json --null-marker NULL", b"{}", "JSON has null"),
    ],
)
def test_bad_streams_and_lines_are_told_in_one_line(
    cluster: InProcessCluster, command: str, stdin: bytes, words: str
) -> None:
    done = as_process(cluster, command, stdin)
    if not words and done.returncode == 0:
        return
    assert done.returncode == 1, done
    assert done.stdout == b""
    assert done.stderr.startswith(b"raylog: "), done.stderr
    assert done.stderr.count(b"\n") == 1, done.stderr
    assert words in done.stderr.decode()


def test_null_is_what_the_marker_says(cluster: InProcessCluster) -> None:
    cluster.create_topic("tombstones")
    command = "raylog produce tombstones --key-separator : --null-marker NULL --headers h=NULL"
    assert as_process(cluster, command, b"k:NULL\nNULL:v\nk:v\n").returncode == 0
    assert as_process(cluster, "raylog produce tombstones --null-marker ''", b"\n").returncode == 0
    with Consumer(cluster.bootstrap_servers, ["tombstones"], auto_offset_reset="earliest") as consumer:
        records = [(r.key, r.value, list(r.headers)) for r in consumer.iterate(until_end=True)]
    header = [("h", None)]
    assert records == [(b"k", None, header), (None, b"v", header), (b"k", b"v", header), (None, None, [])]
