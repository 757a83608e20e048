"""What `make test` makes of tests that fail: again, or only beside others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from suite import FLAKES, MOST_FLAKES, MOST_REPEATED, Run, report, run_lanes, run_named

FAILS = "def test_{name}(): assert False\n"
FAILS_ONCE = """
def test_{name}():
    from pathlib import Path
    mark = Path("{name}")
    if not mark.exists():
        mark.touch()
        assert False
"""
PASSES = "def test_{name}(): pass\n"


@pytest.mark.parametrize(
    ("tests", "code", "flakes", "processes"),
    [
        ([PASSES], 0, 0, 1),
        ([FAILS_ONCE] * (MOST_FLAKES - 1), 0, MOST_FLAKES - 1, 2),
        ([FAILS_ONCE] * MOST_FLAKES, 1, MOST_FLAKES, 1),
        ([FAILS, FAILS_ONCE], 1, 1, 2),
        ([FAILS_ONCE] * (MOST_REPEATED + 1), 1, 0, 1),
        (["nothing("], 1, 0, 2),
        ([""], 1, 0, 1),
    ],
    ids=["pass", "flakes", "too-many-flakes", "fail", "not-repeated", "no-python", "no-test"],
)
def test_suite_repeats_what_failed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], tests: list[str], code: int, flakes: int, processes: int
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / FLAKES).touch()
    written = "".join(text.format(name=f"number_{number}") for number, text in enumerate(tests))
    (tmp_path / "test_of_a_suite.py").write_text(written)
    outcome = run_lanes({"lane": [Run("some", ["."], processes)]}, tmp_path)
    assert report(outcome, tmp_path) == code
    lines = (tmp_path / FLAKES).read_text().splitlines()
    assert len(lines) == flakes == capfd.readouterr().out.count("flake: ")
    assert all("test_of_a_suite.py::test_number_" in line for line in lines)


def test_lane_that_ends_by_exception_fails_the_suite(tmp_path: Path) -> None:
    outcome = run_lanes({"lane": [Run("some", ["."])]}, tmp_path / "gone")
    assert [text.partition("(")[0] for text in outcome.broken] == ["lane lane ended by FileNotFoundError"]
    assert report(outcome, tmp_path) == 1


def test_lines_that_are_no_text_are_passed_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_named("some", [sys.executable, "-c", r"import os; os.write(1, b'\xff\n')"], tmp_path) == 0
    assert capfd.readouterr().out == "some| \ufffd\n"
