"""JSON that a user wrote: read, with what is wrong with it in words that he knows."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["a_list", "a_number", "a_text", "an_object", "parsed"]


def parsed(text: bytes) -> Any:
    """Raises ValueError, as all here, with what is wrong as a phrase: «it is no JSON»."""
    try:
        return json.loads(text.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error.msg} in line {error.lineno}, column {error.colno} of it)") from None
    except UnicodeDecodeError:
        raise ValueError("it is no UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValueError:
        raise ValueError("it has a number of too many digits") from None


def an_object(value: Any, what: str) -> dict[str, Any]:
    """``value`` when it is one; ``what`` is what to call it."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {_shown(value)}, no object")
    return value


def a_list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{what} is {_shown(value)}, no list")
    return value


def a_text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is {_shown(value)}, no text")
    return value


def a_number(value: Any, what: str) -> int:
    if type(value) is not int:
        raise ValueError(f"{what} is {_shown(value)}, no whole number")
    return value


def _shown(value: Any) -> str:
    """As JSON, its beginning; a long list or object by its kind."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:40]}…"
