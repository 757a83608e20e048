"""What is wrong with a command line is told in one line, before anything is connected to."""

from __future__ import annotations

from pathlib import Path

import pytest

from raylog.client.cli import main
from raylog.client.cli.terminal.common import ids_of

NOWHERE = ("--bootstrap-server", "127.0.0.1:1")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as done:
        main(arguments)
    return int(done.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nosuch"], 2, "No such command 'nosuch'; see `raylog --help`"),
        (["topics", "nosuch"], 2, "see `raylog topics --help`"),
        (["topics", "create"], 2, "Missing argument 'name'; see `raylog topics create --help`"),
        (["topics", "create", "t", "--partitions", "many"], 2, "--partitions"),
        (["consume", "t", "--max-messages", "0"], 2, "--max-messages"),
        (["topics", "alter", "t", *NOWHERE], 1, "nothing to alter on t; give --partitions"),
        (["topics", "create", "t", "--replica-assignment", "1:x", *NOWHERE], 1, "'1:x' is no list of brokers"),
        (["topics", "create", "t", "--replica-assignment", "1", "--partitions", "1", *NOWHERE], 1, "says how many"),
        (["topics", "elect-leaders", "--unclean", *NOWHERE], 1, "of which topic?"),
        (["topics", "reassign", "t", "--replicas", "1,x", *NOWHERE], 1, "'1,x' is not a list of broker ids"),
        (["topics", "reassign", "--replicas", "1", *NOWHERE], 1, "of which topic?"),
        (["topics", "reassign", "--cancel", "--yes", *NOWHERE], 1, "cancel which moves?"),
        (["topics", "reassign", "t", "--cancel", "--replicas", "1", *NOWHERE], 1, "leave --replicas out"),
        (["topics", "reassign", "t", "--throttle", "9", *NOWHERE], 1, "--throttle is for new moves"),
        (["topics", "reassign", "--from-file", "/nosuch", *NOWHERE], 2, "--from-file"),
        (["topics", "reassign", "t", "--from-file", __file__, *NOWHERE], 1, "is not a file of moves"),
        (["topics", "trim-prefix", "t", *NOWHERE], 1, "--offset"),
        (["configs", "describe", *NOWHERE], 1, "one of --topic NAME, --broker ID and --all-brokers"),
        (["configs", "describe", "--topic", "t", "--broker", "1", *NOWHERE], 1, "settings of what?"),
        (["configs", "alter", "--all-brokers", *NOWHERE], 1, "nothing to alter on all brokers"),
        (["configs", "alter", "--topic", "t", "--append-config", "x", *NOWHERE], 1, "--append-config 'x'"),
        (["groups", "reset-offsets", "g", "--topic", "t", *NOWHERE], 1, "reset to what?"),
        (["groups", "reset-offsets", "g", "--topic", "t", "--to-latest", "--shift-by", "1", *NOWHERE], 1, "to what?"),
        (["groups", "reset-offsets", "g", "--to-latest", *NOWHERE], 1, "of which topics?"),
        (["groups", "reset-offsets", "g", "--to-latest", "--all-topics", "--topic", "t", *NOWHERE], 1, "which topics?"),
        (["groups", "reset-offsets", "g", "--topic", "t", "--to-timestamp", "noon", *NOWHERE], 1, "'noon' is neither"),
        (["groups", "reset-offsets", "g", "--topic", "t", "--to-offset", "-1", *NOWHERE], 2, "--to-offset"),
        (["groups", "reset-offsets", "g", "--topic", "t:x", "--to-latest", *NOWHERE], 1, "'t:x' is not like NAME"),
        (["groups", "delete", "g", "--topic", "t:0,", *NOWHERE], 1, "'t:0,' is not like NAME"),
        (["groups", "delete", "g", "h", "--topic", "t", *NOWHERE], 1, "offsets of which group?"),
        (["groups", "delete"], 2, "Missing argument"),
        (["groups", "remove-members", "g", *NOWHERE], 1, "remove whom? give --member ID or --instance NAME, or --all"),
        (["groups", "remove-members", "g", "--all", "--member", "m", *NOWHERE], 1, "remove whom?"),
        (["consume", "t", "--from-beginning", "--offset", "end", *NOWHERE], 1, "where to begin?"),
        (["consume", "t", "--offset", "soon", *NOWHERE], 1, "'soon' is neither a number"),
        (["consume", "t", "--offset", "7", *NOWHERE], 1, "--offset 7 of which partition?"),
        (["consume", "t", "--timestamp", "noon", *NOWHERE], 1, "'noon' is neither milliseconds"),
        (["consume", "t", "--group", "g", "--partition", "0", *NOWHERE], 1, "leave --partition out"),
        (["consume", "t", "--group", "g", "--offset", "end", *NOWHERE], 1, "leave --offset out"),
        (["consume", "t", "--group", "g", "--until-end", *NOWHERE], 1, "leave --until-end out"),
        (["consume", "t", "--format", "%q", *NOWHERE], 1, "%q is unknown"),
        (["produce", "t", "--format", "json", "--key-separator", ":", *NOWHERE], 1, "--key-separator is for"),
        (["produce", "t", "--headers", "a", *NOWHERE], 1, "--headers 'a' is not name=value"),
    ],
)
def test_a_wrong_command_line(arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("raylog: ")
    assert err.count("\n") == 1
    assert words in err


@pytest.mark.parametrize(
    "arguments", [[], ["topics"], ["configs"], ["groups"], ["perf"], ["log"], ["brokers", "--help"]]
)
def test_groups_alone_show_their_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"Usage: {' '.join(['raylog', *arguments[:1]])}")
    assert err == ""


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("log", "verify", str(tmp_path / "nosuch")) == 2
    assert run("log", "verify", str(tmp_path)) == 1
    assert "there are no logs in" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "-1", "1_0", "1,", "x", "2147483648", "\u00b2", "1,-0x1"])
def test_what_are_no_brokers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="brokers have whole numbers"):
        ids_of(text, ",")
    assert ids_of("1, 0", ",") == [1, 0]
