"""Log lines: one event each, whatever is in a field; parts for handlers that want them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from raylog.broker.events import EventLog, line_formatter
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition

log = EventLog("raylog.test")
TP = TopicPartition(TopicName("flights"), PartitionIndex(3))


def test_a_line_has_the_event_then_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("log truncated", partition=TP, offset=Offset(42), reason="the checksum is wrong")
    assert caplog.messages == ['log truncated partition=flights-3 offset=42 reason="the checksum is wrong"']


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain/path-1.log", "plain/path-1.log"),
        ("", '""'),
        ("a b", '"a b"'),
        ('say "x"', r'"say \"x\""'),
        ("a=b", '"a=b"'),
        ("two\nlines\r", r'"two\nlines\r"'),
        ("\x1b[31mred", r'"\u001b[31mred"'),
        ("100%s", "100%s"),
        (None, "None"),
    ],
)
def test_a_field_never_breaks_the_line(caplog: pytest.LogCaptureFixture, value: object, text: str) -> None:
    log.error("e", field=value)
    assert caplog.messages == [f"e field={text}"]


def test_the_parts_are_kept_for_handlers(caplog: pytest.LogCaptureFixture) -> None:
    log.error("segment deleted", name="x", args=1, message="2")  # names that a LogRecord has as well
    [record] = caplog.records
    assert (record.event, record.fields) == (  # type: ignore[attr-defined]
        "segment deleted",
        {"name": "x", "args": 1, "message": "2"},
    )


def test_a_line_names_the_code_that_logs(caplog: pytest.LogCaptureFixture) -> None:
    log.error("e")
    assert caplog.records[0].filename == Path(__file__).name


def test_nothing_is_made_into_text_for_a_level_that_is_off(caplog: pytest.LogCaptureFixture) -> None:
    class Untold:
        def __str__(self) -> str:
            raise AssertionError("made into text")

    with caplog.at_level(logging.WARNING, "raylog.test"):
        log.info("e", field=Untold())
    assert caplog.messages == []


def test_an_exception_brings_its_traceback_and_the_line_its_broker(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        log.exception("met a defect", client="127.0.0.1:9")
    first, *traceback = line_formatter("7").format(caplog.records[0]).splitlines()
    assert first.endswith(" ERROR broker=7 raylog.test met a defect client=127.0.0.1:9")
    assert traceback[-1] == "ValueError: odd"


def test_a_field_that_cannot_be_told_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    class Mute:
        def __str__(self) -> str:
            raise ValueError("no words")

    log.error("e", field=Mute(), topic="caf\udce9")
    assert caplog.messages == [r'e field="(Mute cannot be told: its __str__ raised ValueError)" topic="caf\\udce9"']
