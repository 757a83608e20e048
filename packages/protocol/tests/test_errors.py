"""The table of errors: whole, unambiguous, and right about what may be retried."""

from __future__ import annotations

import inspect

import pytest

from raylog.protocol import errors
from raylog.protocol.errors import (
    ROWS,
    ErrorCode,
    ErrorRow,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RaylogError,
    StorageError,
    code_of,
    exception_for,
    is_retriable,
)

EXCEPTIONS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, RaylogError)]


def test_each_exception_has_exactly_one_row_and_a_docstring() -> None:
    assert sorted(row.exception.__name__ for row in ROWS) == sorted(kind.__name__ for kind in EXCEPTIONS)
    for kind in EXCEPTIONS:
        assert kind.__doc__, kind.__name__
        assert kind.__doc__.strip() != (kind.__base__.__doc__ or "").strip() or kind is RaylogError


def test_no_code_stands_for_two_errors() -> None:
    assert len({row.code for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.exception.__name__)
def test_a_row_goes_both_ways(row: ErrorRow) -> None:
    assert code_of(row.exception("why")) is row.code
    back = exception_for(int(row.code), "Fetch flights-3")
    assert type(back) is row.exception
    assert str(back).startswith("Fetch flights-3: ")
    assert f"({int(row.code)})" in str(back)


def test_a_subclass_has_the_code_of_its_base() -> None:
    class DiskFull(StorageError):
        pass

    assert code_of(DiskFull("full")) is ErrorCode.kafka_storage_error


def test_what_no_row_covers_is_an_unknown_server_error() -> None:
    assert code_of(ValueError("a defect")) is ErrorCode.unknown_server_error


def test_codes_without_a_row_or_a_meaning_are_still_errors() -> None:
    known = exception_for(int(ErrorCode.delegation_token_expired), "g")
    assert type(known) is RaylogError
    assert "DELEGATION_TOKEN_EXPIRED (66)" in str(known)
    assert "unknown error code 31000" in str(exception_for(31_000, "g"))


def test_what_may_be_retried_is_kafka_s_to_say() -> None:
    assert is_retriable(NotLeaderOrFollower("x"))
    assert not is_retriable(OffsetOutOfRange("x"))
