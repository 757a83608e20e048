"""Texts that others gave, made fit to be told: in a log line, a header, an answer, on a terminal.

A text may be of any length and may have lone surrogates, which no stream, file or message takes: Python makes them of
bytes that are not UTF-8. An error is the user's own class: asked what it says, it may fail. None of that may end a
thread, or hide the error that is to be told.
"""

from __future__ import annotations

import traceback

__all__ = ["MAX_MESSAGE", "MAX_TRACE", "host_port", "safe_text", "says", "told", "traced"]

MAX_MESSAGE = 4_000
"""Characters: a message quotes what clients sent, which may be any length; it goes into logs and into answers, where
old versions of the protocol take 32,767 bytes.
"""
MAX_TRACE = 10_000
"""Characters of a traceback, the first _HEAD of which are its begin: its end says most."""
_HEAD = 1_000


def safe_text(text: str, most: int = MAX_MESSAGE) -> str:
    """``text`` such that UTF-8 can write it, a lone surrogate as ``\\udc80``, of at most ``most`` characters."""
    safe = text if text.isascii() else text[:most].encode("utf-8", "backslashreplace").decode()
    return safe if len(safe) <= most and len(text) <= most else safe[: most - 1] + "…"


def host_port(host: str, port: int) -> str:
    """An address as clients take it, an IPv6 host in brackets: ``[::1]:9092``."""
    bracketed = f"[{host}]" if ":" in host else host
    return f"{bracketed}:{port}"


def says(value: object) -> str:
    """What ``str`` makes of it, an error for one, as a safe text. Never raises."""
    try:
        return safe_text(str(value))
    except Exception as failure:  # noqa: BLE001 (it is the user's, and its failure is no news)
        return f"({_name(value)} cannot be told: its __str__ raised {_name(failure)})"


def told(error: BaseException) -> str:
    """An error in one line, as a safe text: its class and what it says. Never raises."""
    return f"{_name(error)}: {says(error)}"


def traced(error: BaseException) -> str:
    """The error with its traceback, as a safe text of at most MAX_TRACE characters: begin and end. Never raises."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 (parts of it are the user's)
        return told(error)
    if len(text) > MAX_TRACE:
        text = f"{text[:_HEAD]}\n…\n{text[_HEAD + 3 - MAX_TRACE :]}"
    return safe_text(text, MAX_TRACE)


def _name(value: object) -> str:
    return safe_text(type(value).__name__, 200)
