"""Records as lines of text: formats out, lines in, and both together."""

from __future__ import annotations

import json
from io import StringIO

import pytest

from raylog.client.cli.terminal.progress import Progress
from raylog.client.cli.terminal.records import NewRecord, formatter, json_reader, line_reader, parsed_headers
from raylog.client.results import ConsumerRecord
from raylog.protocol.errors import InvalidRecord, InvalidRequest


def record(
    value: bytes | None = b"v", key: bytes | None = b"k", headers: list[tuple[str, bytes | None]] | None = None
) -> ConsumerRecord:
    return ConsumerRecord("t", 3, 42, 1_700_000_000_000, 0, key, value, headers or [])


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("value", b"v\n"),
        ("%t [%p] at offset %o: key %k: %s\\n", b"t [3] at offset 42: key k: v\n"),
        ("%T\\t%K\\t%S", b"1700000000000\t1\t1"),
        ("%v%%\\\\%h", b"v%\\a=1,b="),
        ("%s\\q", b"v\\q"),
        ("ü%s", "üv".encode()),
    ],
)
def test_templates(template: str, line: bytes) -> None:
    assert formatter(template)(record(headers=[("a", b"1"), ("b", None)])) == line


def test_what_was_deserialized_is_shown_as_json() -> None:
    value = {"page": 1, "raw": b"ab", "at": ("ü", None)}
    shown = record()._replace(key="user-1", value=value)
    assert formatter("%k %s")(shown) == b"user-1 " + '{"page": 1, "raw": "ab", "at": ["ü", null]}'.encode()
    line = json.loads(formatter("json")(shown))
    assert (line["key"], line["value"]) == ("user-1", {"page": 1, "raw": "ab", "at": ["ü", None]})


def test_nothing_is_told_from_empty_by_its_size_only() -> None:
    write = formatter("%K %S|%k|%s")
    assert write(record(value=None, key=None)) == b"-1 -1||"
    assert write(record(value=b"", key=b"")) == b"0 0||"


def test_record_without_a_timestamp_is_read_as_one() -> None:
    written = formatter("json")(record()._replace(timestamp=-1))
    assert json_reader(())(written) == NewRecord(b"v", b"k", (), None)


def test_null_marker_stands_for_null() -> None:
    headers = parsed_headers(["a=NULL", "b=1"], "NULL")
    assert headers == (("a", None), ("b", b"1"))
    assert line_reader(None, headers, "NULL")(b"NULL") == NewRecord(None, None, headers)
    assert line_reader(":", (), "")(b":") == NewRecord(None, None)
    assert line_reader(":", (), "NULL")(b"k:") == NewRecord(b"", b"k")


def test_value_that_json_has_no_form_for_is_refused() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidRecord, match="cannot be shown as JSON"):
        formatter("%s")(record()._replace(value=value))


@pytest.mark.parametrize("template", ["avro", "%x", "%s %"])
def test_a_format_that_is_unknown_is_refused(template: str) -> None:
    with pytest.raises(InvalidRequest, match="--format"):
        formatter(template)


def test_lines_are_values_or_keys_and_values() -> None:
    assert line_reader(None, ())(b"a:b") == NewRecord(b"a:b")
    headers = parsed_headers(["a=1", "a=2=3", "e="])
    assert headers == (("a", b"1"), ("a", b"2=3"), ("e", b""))
    assert line_reader(":", headers)(b"k:v:w") == NewRecord(b"v:w", b"k", headers)
    assert line_reader("\\t", ())(b"k\tv") == NewRecord(b"v", b"k")
    assert line_reader("::", ())(b"::") == NewRecord(b"", b"")


def test_a_line_without_its_separator_is_refused() -> None:
    with pytest.raises(InvalidRecord, match=r"no ':' between a key and a value in 'xxx.*…'"):
        line_reader(":", ())(b"x" * 100)
    with pytest.raises(InvalidRequest, match="empty"):
        line_reader("", ())
    with pytest.raises(InvalidRequest, match="name=value"):
        parsed_headers(["a"])


@pytest.mark.parametrize(
    ("value", "key", "headers"),
    [
        (b"v", b"k", []),
        (None, b"k", []),
        (b"\xff\x00", None, [("a", b"1"), ("a", None), ("b", b"\xfe")]),
        ("ü\n".encode(), b"", []),
    ],
)
def test_what_consume_wrote_as_json_produce_reads(
    value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    line = formatter("json")(record(value, key, headers))
    assert line.count(b"\n") == 1
    assert json_reader(())(line) == NewRecord(value, key, tuple(headers), 1_700_000_000_000)


def test_json_that_others_wrote_needs_a_value_only() -> None:
    read = json_reader((("h", b"1"),))
    assert read(b'{"value": "v"}') == NewRecord(b"v", None, (("h", b"1"),))
    assert read(b'{"value": {"page": 1}, "key": 7}') == NewRecord(b'{"page": 1}', b"7", (("h", b"1"),))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"", "it is no JSON (Expecting value in line 1, column 1 of it)"),
        (b"v", "it is no JSON"),
        (b'{"value": "v"', "it is no JSON"),
        (b"\xff\xfe{}", "it is no UTF-8"),
        (b"[" * 100_000, "it is nested too deep"),
        (b'{"value": ' + b"9" * 5_000 + b"}", "it has a number of too many digits"),
        (b"null", "it is null, no object"),
        (b"true", "it is true, no object"),
        (b"7", "it is 7, no object"),
        (b'"v"', 'it is "v", no object'),
        (b"[]", "it is [], no object"),
        (b'[{"value": "v"}]', 'it is [{"value": "v"}], no object'),
        (b"{}", "it has no value; null is one"),
        (b'{"vaule": "v"}', "it has no value; null is one"),
        (b'{"value": "\\ud800"}', "value has half a surrogate pair"),
        (b'{"value": {"base64": "?"}}', "value is no base64 ("),
        (b'{"value": {"base64": 5}}', "value is no base64 (base64 is 5, no text)"),
        (b'{"value": {"base64": null}}', "value is no base64 (base64 is null, no text)"),
        (b'{"value": "v", "key": "\\udfff"}', "key has half a surrogate pair"),
        (b'{"value": "v", "key": {"base64": "a"}}', "key is no base64 ("),
        (b'{"value": "v", "headers": "ab"}', 'headers is "ab", no list'),
        (b'{"value": "v", "headers": 7}', "headers is 7, no list"),
        (b'{"value": "v", "headers": {"ab": "c"}}', 'headers is {"ab": "c"}, no list'),
        (b'{"value": "v", "headers": ["ab"]}', 'a header is "ab", no list'),
        (b'{"value": "v", "headers": [null]}', "a header is null, no list"),
        (b'{"value": "v", "headers": [["a"]]}', "a header is a list of a name and a value"),
        (b'{"value": "v", "headers": [["a", "b", "c"]]}', "a header is a list of a name and a value"),
        (b'{"value": "v", "headers": [[null, "b"]]}', "a header's name is null, no text"),
        (b'{"value": "v", "headers": [[7, "b"]]}', "a header's name is 7, no text"),
        (b'{"value": "v", "headers": [["a", {"base64": "?"}]]}', "a header's value is no base64 ("),
        (b'{"value": "v", "timestamp": "1"}', 'timestamp is "1", no whole number'),
        (b'{"value": "v", "timestamp": 1.5}', "timestamp is 1.5, no whole number"),
        (b'{"value": "v", "timestamp": true}', "timestamp is true, no whole number"),
        (b'{"value": "v", "timestamp": []}', "timestamp is [], no whole number"),
    ],
)
def test_line_that_is_no_record_is_refused(line: bytes, complaint: str) -> None:
    with pytest.raises(InvalidRecord) as refused:
        json_reader(())(line)
    assert f" is no record: {complaint}" in str(refused.value)
    assert str(refused.value).endswith(
        '; write one like {"key": "k", "value": "v", "headers": [["name", "value"]], "timestamp": 1767225600000}'
    )


def test_any_json_may_be_a_key_or_a_value() -> None:
    read = json_reader(())
    for text, data in {b"null": None, b"[1, null]": b"[1, null]", b"7": b"7", b"true": b"true", b'""': b""}.items():
        assert read(b'{"value": %b, "key": %b, "headers": [["h", %b]]}' % (text, text, text)) == NewRecord(
            data, data, (("h", data),)
        )
    assert read(b'{"value": "v", "key": null, "headers": null, "timestamp": null}') == NewRecord(b"v")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_shows_on_a_terminal_only() -> None:
    pipe, terminal = StringIO(), Terminal()
    for stream in (pipe, terminal):
        progress = Progress(1_000, of_bytes=True, stream=stream)
        while stream is terminal and not terminal.getvalue():
            progress.add(1, 1)
        progress.add(1, 1)
        progress.end()
    typing = Terminal()
    Progress(None, of_bytes=True, quiet=True, stream=typing).end()
    assert typing.getvalue() == ""
    assert pipe.getvalue() == ""
    assert "records/s" in terminal.getvalue()
    assert "%" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
