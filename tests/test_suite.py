"""What `make test` makes of tests that fail: again, or only beside others."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kit.machine import SLOWNESS
from suite import ERROR_LINES, FLAKES, LANES, MOST_FLAKES, MOST_REPEATED, Run, last_lines, report, run_lanes, run_named

FAILS = "def test_{name}(): assert False\n"
FAILS_ONCE = """
def test_{name}():
    from pathlib import Path
    mark = Path("{name}")
    if not mark.exists():
        mark.touch()
        assert False
"""
NOT_SET_UP_ONCE = """
import pytest

@pytest.fixture(scope="module")
def fixture_{name}():
    from pathlib import Path
    mark = Path("{name}")
    if not mark.exists():
        mark.touch()
        assert False

@pytest.mark.parametrize("number", range(20))
def test_{name}(fixture_{name}, number): pass
"""
PASSES = "def test_{name}(): pass\n"
SAYS_SEED_AND_SLOWNESS = """
class TestThose:
    def test_{name}(self, request, tmp_path):
        import os
        seed = request.config.getoption("randomly_seed")
        says = "seed", seed, "slowness", float(os.environ["RAYLOG_TEST_SLOWNESS"]), "nice", os.nice(0)
        assert not says, "a long story\\n" * 50 + str(says)
"""
ENDS = """
def test_ends():
    import os
    print("and so it ended", flush=True)
    os._exit(7)
"""
SEED = 4711


@pytest.mark.parametrize(
    ("tests", "code", "flakes", "processes"),
    [
        ([PASSES], 0, 0, 1),
        ([FAILS_ONCE] * (MOST_FLAKES - 1), 0, MOST_FLAKES - 1, 2),
        ([FAILS_ONCE] * MOST_FLAKES, 1, MOST_FLAKES, 1),
        ([FAILS, FAILS_ONCE], 1, 1, 2),
        ([FAILS_ONCE] * (MOST_REPEATED + 1), 1, 0, 1),
        ([NOT_SET_UP_ONCE, FAILS_ONCE], 0, 2, 1),
        (["nothing("], 1, 0, 2),
        ([""], 1, 0, 1),
    ],
    ids=["pass", "flakes", "too-many-flakes", "fail", "not-repeated", "no-fixture", "no-python", "no-test"],
)
def test_suite_repeats_what_failed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], tests: list[str], code: int, flakes: int, processes: int
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / FLAKES).touch()
    written = "".join(text.format(name=f"number_{number}") for number, text in enumerate(tests))
    (tmp_path / "test_of_a_suite.py").write_text(written)
    outcome = run_lanes({"lane": [Run("some", ["."], processes)]}, tmp_path, SEED)
    assert report(outcome, tmp_path) == code
    lines = (tmp_path / FLAKES).read_text().splitlines()
    assert len(lines) == flakes == capfd.readouterr().out.count("flake: ")
    assert all("test_of_a_suite.py::test_number_" in line for line in lines)


def test_lane_that_ends_by_exception_fails_the_suite(tmp_path: Path) -> None:
    outcome = run_lanes({"lane": [Run("some", ["."])]}, tmp_path / "gone", SEED)
    assert [text.partition("(")[0] for text in outcome.broken] == ["lane lane ended by FileNotFoundError"]
    assert report(outcome, tmp_path) == 1


def test_lines_that_are_no_text_are_passed_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_named("some", [sys.executable, "-c", r"import os; os.write(1, b'\xff\n')"], tmp_path).code == 0
    assert capfd.readouterr().out == "some| \ufffd\n"


@pytest.mark.parametrize("processes", [1, 2])
def test_last_lines_tell_what_each_failure_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], processes: int
) -> None:
    """Beside others and alone; the repeat has the same seed, and its own deadlines."""
    (tmp_path / "test_of_a_suite.py").write_text(SAYS_SEED_AND_SLOWNESS.format(name="both"))
    outcome = run_lanes({"lane": [Run("some", ["."], processes, nice=3)]}, tmp_path, SEED)
    capfd.readouterr()
    assert report(outcome, tmp_path) == 1
    said = capfd.readouterr().out
    told = said[said.index("failed: test_of_a_suite.py::TestThose::test_both") :]
    beside, alone = told.split("  and alone:")
    nice = os.nice(0)
    for text, own, slowness in ((beside, 3, SLOWNESS * 1.25**3), (alone, 0, SLOWNESS)):
        assert f"('seed', {SEED}, 'slowness', {round(slowness, 1)}, 'nice', {min(nice + own, 19)})" in text
        assert "test_of_a_suite.py:7: AssertionError" in text
        assert text.count("a long story") < ERROR_LINES
    assert f"pytest --randomly-seed={SEED} 'test_of_a_suite.py::TestThose::test_both'" in alone


def test_last_lines_tell_what_a_process_said_that_ended_early(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_of_a_suite.py").write_text(ENDS)
    outcome = run_lanes({"lane": [Run("some", ["-s", "."])]}, tmp_path, SEED)
    capfd.readouterr()
    assert report(outcome, tmp_path) == 1
    assert "some: pytest ended with 7\n    and so it ended" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (["    def f():", "E   assert 1", "E    +  where", "", "a.py:3: AssertionError"],
         ["E   assert 1", "E    +  where", "a.py:3: AssertionError"]),
        (["a.py:1: ", "E   first", "b.py:2: Error", "", "c.py:3: ", "d.py:4: ", "E   last", "", "e.py:5: Error"],
         ["E   first", "E   last", "c.py:3:", "d.py:4:", "e.py:5: Error"]),
        (["worker 'gw1' crashed", "", "while it ran"], ["worker 'gw1' crashed", "while it ran"]),
        ([], []),
    ],
    ids=["message-and-place", "chained", "without-message", "nothing"],
)  # fmt: skip
def test_last_lines_of_errors(error: list[str], told: list[str]) -> None:
    assert last_lines(error) == told


def test_lane_that_gives_way_keeps_a_share_of_a_busy_processor() -> None:
    """At nice 19 a run gets a seventieth of what those beside it get: its tests run into their limits."""
    runs = [run for lane in LANES.values() for run in lane]
    assert max(run.slowness for run in runs) < 4
    assert [run.slowness for run in runs if run.nice == 0] == [1.0] * sum(run.nice == 0 for run in runs)
