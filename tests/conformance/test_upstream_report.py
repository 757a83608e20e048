"""The counting of other projects' suites: a failure without a reason, and a reason without a failure, are told."""

from __future__ import annotations

import pytest

from .upstream import Outcomes, report

OUTCOMES: Outcomes = {
    "test_a.py::test_good": ("passed", ""),
    "test_a.py::test_groups": ("skipped", "not applicable: groups"),
    "test_b.py::test_known": ("failed", "AssertionError"),
}
GROUPS = [("::test_groups$", "groups")]
KNOWN = [("::test_known$", "the client is wrong")]


def test_explained_outcomes_are_counted_and_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(OUTCOMES, GROUPS, KNOWN, partly=False) == 0
    printed = capsys.readouterr().out
    assert "1 passed, 1 failed, 1 not applicable" in printed
    assert "1 failed: the client is wrong" in printed


def test_a_failure_without_a_reason_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(OUTCOMES, GROUPS, [], partly=False) == 1
    assert "FAILED without a known reason: test_b.py::test_known: AssertionError" in capsys.readouterr().out


@pytest.mark.parametrize("rule", ["::test_gone$", "::test_good$"], ids=["fits no test", "passes by now"])
def test_a_rule_that_fits_no_longer_fails(rule: str) -> None:
    assert report(OUTCOMES, GROUPS, [*KNOWN, (rule, "reason")], partly=False) == 1
    assert report(OUTCOMES, GROUPS, [*KNOWN, (rule, "reason")], partly=True) == 0


def test_a_run_in_which_nothing_passed_fails() -> None:
    assert report({"test_a.py::test_groups": OUTCOMES["test_a.py::test_groups"]}, GROUPS, [], partly=False) == 1
