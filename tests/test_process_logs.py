"""What a test that fails tells besides its error: logs of its time, and how to repeat it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kit import process_logs
from kit.machine import scaled
from kit.process_logs import LINES

ROOT = Path(__file__).parents[1]
TESTS = """
import logging
from pathlib import Path
from kit import process_logs

def write(text):
    with Path("0.out").open("a") as log:
        log.write(text)

def test_passes():
    process_logs.watch(Path(), "*.out")
    write("of the test before\\n")

def test_fails():
    write("early\\n" * 100 + "late\\n")
    for number in range(100):
        logging.getLogger("raylog.broker.parts").info("event %d", number)
    assert not "an error"
"""


def test_failing_test_tells_its_logs_and_how_to_repeat_it(tmp_path: Path) -> None:
    """Those of processes and those of this one, each cut to its end; nothing of an earlier test."""
    (tmp_path / "test_of_logs.py").write_text(TESTS)
    options = ["-q", "-p", "conftest", "-p", "no:cacheprovider", "--randomly-seed=4711", "--randomly-dont-reorganize"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_of_logs.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    assert "1 failed, 1 passed" in ran.stdout, ran.stdout + ran.stderr
    told = ran.stdout.splitlines()
    assert (told.count("early"), told.count("late")) == (LINES - 1, 1)
    assert sum(line.startswith("INFO") and " event " in line for line in told) == LINES
    assert sum("lines before" in line for line in told) == 2
    assert "of the test before" not in told
    assert ".venv/bin/pytest --randomly-seed=4711 'test_of_logs.py::test_fails'" in told


def test_log_is_told_from_the_beginning_of_the_test(tmp_path: Path) -> None:
    log, begun_anew, later = (tmp_path / name for name in ("0.out", "1.out", "2.out"))
    log.write_text("before\n")
    begun_anew.write_text("before, and long\n")
    process_logs.watch(tmp_path, "*.out")
    try:
        process_logs.begin_test()
        assert [path for path, _ in process_logs.written() if path.parent == tmp_path] == []
        with log.open("ab") as file:
            file.write(b"meanwhile \xff\n")
        begun_anew.write_text("anew\n")
        later.write_text("begun\n")
        process_logs.forget(tmp_path)
        found = {path: lines for path, lines in process_logs.written() if path.parent == tmp_path}
        assert found == {log: ["meanwhile \ufffd"], begun_anew: ["anew"], later: ["begun"]}
    finally:
        process_logs.forget(tmp_path)
        process_logs.begin_test()
    log.write_text("after its end, and long\n")
    assert [path for path, _ in process_logs.written() if path.parent == tmp_path] == []
