"""Errors and log lines of which a part cannot be told: something is told all the same, and nothing is raised."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylog.protocol.errors import InvalidRequest
from raylog.protocol.logs import Logger
from raylog.protocol.texts import MAX_MESSAGE, MAX_TRACE, host_port, safe_text, says, told, traced

log = Logger("raylog.test-of-texts")


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


ODD = {
    "surrogates": ValueError("caf\udce9"),
    "huge": ValueError("x" * 1_000_000),
    "huge, of surrogates": ValueError("\udce9" * 1_000_000),
    "mute": Mute(),
    "of an odd class": type("Odd" * 1_000, (Exception,), {})("said"),
    "a mute cause": None,
}
try:
    raise ValueError("said") from Mute()
except ValueError as error:
    ODD["a mute cause"] = error


@pytest.fixture
def strict() -> Iterator[io.BytesIO]:
    """What a handler on a stream that takes no surrogates has written; what it cannot write, it raises."""

    class Handler(logging.StreamHandler[io.TextIOWrapper]):
        def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
            raise  # noqa: PLE0704 (called while an error is handled)

    written = io.BytesIO()
    logger, handler = logging.getLogger("raylog.test-of-texts"), Handler(io.TextIOWrapper(written, "utf-8", "strict"))
    handler.setFormatter(logging.Formatter("%(levelname)s %(filename)s %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield written
    finally:
        logger.removeHandler(handler)
        logger.propagate = True


@pytest.mark.parametrize("odd", ODD)
def test_error_is_told_whatever_it_says(odd: str) -> None:
    error = ODD[odd]
    assert error is not None
    for text, most in ((told(error), MAX_MESSAGE + 202), (says(error), MAX_MESSAGE), (traced(error), MAX_TRACE)):
        assert 0 < len(text) <= most
        text.encode()
    assert told(error).startswith(safe_text(type(error).__name__, 200))


def test_safe_text_keeps_what_can_be_written() -> None:
    assert safe_text("café\n\t") == "café\n\t"
    assert safe_text("caf\udce9") == "caf\\udce9"
    assert safe_text("x" * 10, 10) == "x" * 10
    assert safe_text("x" * 11, 10) == "x" * 9 + "…"
    assert safe_text("\udce9" * 3, 10) == "\\udce9\\ud…"


def test_what_a_raylog_error_says_can_be_sent() -> None:
    assert str(InvalidRequest("topic 'caf\udce9'")) == "topic 'caf\\udce9'"


@pytest.mark.parametrize("odd", ODD)
def test_log_line_is_written_whatever_the_error_says(odd: str, strict: io.BytesIO) -> None:
    log.error("it failed: %s", ODD[odd], exc_info=ODD[odd])
    written = strict.getvalue()
    assert written.startswith(b"ERROR test_texts.py it failed")
    assert b"Traceback" in written or b"Mute" in written or b"ValueError" in written or b"said" in written
    assert len(written) < 3 * (MAX_TRACE + MAX_MESSAGE)


def test_log_line_that_cannot_be_written_is_left_out(strict: io.BytesIO) -> None:
    logging.getLogger("raylog.test-of-texts").handlers[0].stream.close()  # type: ignore[attr-defined]
    log.error("it failed")
    try:
        raise ODD["mute"] or AssertionError
    except Mute:
        log.exception("it failed")


def test_log_line_names_the_code_that_logs(caplog: pytest.LogCaptureFixture) -> None:
    log.warning("it failed %d times", 3)
    assert (caplog.messages, caplog.records[0].filename) == (["it failed 3 times"], Path(__file__).name)
    assert caplog.records[0].funcName == "test_log_line_names_the_code_that_logs"
    assert caplog.records[0].args == (3,)


@pytest.mark.parametrize(("host", "text"), [("::1", "[::1]:9092"), ("127.0.0.1", "127.0.0.1:9092"), ("b", "b:9092")])
def test_address_has_an_ipv6_host_in_brackets(host: str, text: str) -> None:
    assert host_port(host, 9092) == text
