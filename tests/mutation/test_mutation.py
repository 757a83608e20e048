"""Mutation testing is tested: what it changes and leaves out, the sample, and how mutants end, on a small tree."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from mutation.covering import Covering, importers
from mutation.mutants import Config, File, Mutant, sample
from mutation.run import Plan, Results, Tree, Worker, alive, cover, files_of_tests
from mutation.server import KILLED, SURVIVED, TIMEOUT

SOURCE = '''\
"""Shelves."""
from __future__ import annotations

from logging import getLogger

logger = getLogger("shelf")
LEAST = 1
WIDTH = 7


def fits(book: int = 3, *, depth: int) -> bool:
    """Does it?"""
    if book > WIDTH:
        raise ValueError("too wide " + str(1 + 2))
    logger.debug("book %s", book - 1)
    return book + depth >= LEAST


def count(books: list[int]) -> int:
    left = len(books)
    while left > 0:
        left -= 1
    books.clear()
    return 5


class Shelf:
    __slots__ = ("a", "b")

    def __repr__(self) -> str:
        return "x" if 1 else "y"

    def kind(self) -> str:
        return "oak"
'''

TESTS = """\
from raylog.broker.shelf import count, fits

def test_fits(): assert fits(3, depth=0)
def test_counts(): assert count([1]) == 5
"""

CONFIG = Config(
    mutants=100,
    least=1,
    seed=1,
    budget_s=5.0,
    longest_test_s=20.0,
    timeout_factor=5.0,
    timeout_least_s=1.0,
    loggers=frozenset({"logger"}),
    rooms={"all": ["packages/broker/src/raylog/broker/shelf.py"]},
    tests=["packages/broker/tests"],
    skipped=[],
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {
        "packages/broker/src/raylog/broker/shelf.py": SOURCE,
        "packages/broker/src/raylog/broker/__init__.py": "",
        "packages/broker/tests/test_shelf.py": TESTS,
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--import-mode=importlib'\n",
        "tests/empty.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def mutants(root: Path) -> list[Mutant]:
    return File(root, "all", CONFIG.rooms["all"][0], CONFIG.loggers).mutants


def shown(root: Path) -> set[str]:
    return {line[1:].strip() for mutant in mutants(root) for line in mutant.diff().splitlines() if line[0] == "+"}


def test_each_kind_of_fault_is_made(root: Path) -> None:
    assert shown(root) >= {
        "LEAST = 2",
        "if not (book > WIDTH):",
        "if book >= WIDTH:",
        "return book - depth >= LEAST",
        "return book + depth > LEAST",
        "left = 1",
        "pass",
        'return "XXoakXX"',
    }


def test_types_texts_and_logs_are_left_out(root: Path) -> None:
    made = "\n".join(shown(root))
    assert "logger.debug" not in made
    assert "raise" not in made
    assert "slots" not in made
    assert '"x"' not in made
    assert '"""' not in made


def test_a_mutant_differs_in_one_place_and_compiles(root: Path) -> None:
    for mutant in mutants(root):
        compile(mutant.code(), "shelf.py", "exec")
        assert mutant.code() != SOURCE
        assert mutant.line in mutant.lines
        assert mutant.function in {"", "fits", "count", "Shelf.kind"}


def test_keys_are_different_and_stay_when_lines_move(root: Path) -> None:
    before = [mutant.key for mutant in mutants(root)]
    assert len(set(before)) == len(before)
    source = root / CONFIG.rooms["all"][0]
    source.write_text(SOURCE.replace("def count", "def more() -> int:\n    return 1\n\n\ndef count"))
    assert len(mutants(root)) > len(before)
    assert {mutant.key for mutant in mutants(root)} > set(before)


def test_a_sample_is_drawn_again_by_its_seed(root: Path) -> None:
    rooms = {"one": mutants(root)[:9], "two": mutants(root)[9:12]}
    keys = [mutant.key for mutant in sample(rooms, 8, 2, 1)]
    assert keys == [mutant.key for mutant in sample(rooms, 8, 2, 1)]
    assert keys != [mutant.key for mutant in sample(rooms, 8, 2, 2)]
    assert len(keys) == len(set(keys)) == 8
    assert sum(mutant.key in keys for mutant in rooms["two"]) == 2


def test_mutants_end_as_the_tests_decide(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    place = tmp_path_factory.mktemp("place")
    tree = Tree(root, place / "tree")
    covering = cover(CONFIG, tree, place)
    assert covering.seconds.keys() == {
        "packages/broker/tests/test_shelf.py::test_fits",
        "packages/broker/tests/test_shelf.py::test_counts",
    }
    plans = [Plan(mutant, covering, CONFIG, tree.place) for mutant in mutants(tree.place)]
    results = Results(place / "results")
    Worker.run_all([tree], plans, results, files_of_tests(CONFIG, tree.place))
    rows = {line: row for row in results.read().values() for line in [row["diff"].splitlines()[1][1:].strip()]}
    assert len(results.read()) == len(plans)
    outcomes = {line: row["outcome"] for line, row in rows.items()}
    assert outcomes["return 6"] == KILLED
    assert outcomes["LEAST = 2"] == SURVIVED, "3 is enough"
    assert outcomes["if not (book > WIDTH):"] == KILLED
    assert outcomes["left += 1"] == TIMEOUT
    assert outcomes["pass"] == SURVIVED, "nothing looks whether it is cleared"
    assert rows["pass"]["tests"] == 1
    assert alive(rows['return "XXoakXX"'])
    assert rows['return "XXoakXX"']["tests"] == 0
    assert (root / CONFIG.rooms["all"][0]).read_text() == (tree.place / CONFIG.rooms["all"][0]).read_text() == SOURCE


def test_a_test_that_fails_without_a_mutant_kills_none(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    place = tmp_path_factory.mktemp("place")
    (root / "packages/broker/tests/test_flaky.py").write_text(
        "from pathlib import Path\n"
        "from raylog.broker.shelf import count\n\n"
        "def test_passes_once():\n"
        "    count([1])\n"
        f"    Path({str(place / 'ran')!r}).touch(exist_ok=False)\n"
    )
    tree = Tree(root, place / "tree")
    covering = cover(CONFIG, tree, place)
    flaky = "packages/broker/tests/test_flaky.py::test_passes_once"
    assert flaky in covering.seconds
    plans = [Plan(mutant, covering, CONFIG, tree.place) for mutant in mutants(tree.place) if mutant.kind == "call"]
    assert flaky in plans[0].tests
    results = Results(place / "results")
    Worker.run_all([tree], plans, results, files_of_tests(CONFIG, tree.place))
    rows = list(results.read().values())
    assert [(row["outcome"], row["tests"], row["left_out"]) for row in rows] == [(SURVIVED, 1, 1)]


def test_test_files_that_import_a_module_may_look_at_its_constants(tmp_path: Path) -> None:
    texts = {
        "a.py": "from raylog.broker.shelf import WIDTH",
        "b.py": "from raylog.broker import rack, shelf",
        "c.py": "import raylog.broker.shelf",
        "d.py": "from raylog.broker.shelves import WIDTH\nfrom raylog.broker import shelves",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert importers(tmp_path, texts, CONFIG.rooms["all"][0]) == {"a.py", "b.py", "c.py"}
    assert importers(tmp_path, texts, "packages/broker/src/raylog/broker/__init__.py") == {"b.py", "d.py"}


def test_tests_that_cannot_be_collected_stop_everything(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    place = tmp_path_factory.mktemp("place")
    tree = Tree(root, place / "tree")
    (tree.place / "packages/broker/tests/test_odd.py").write_text("import no_such_module")
    for _ in range(2):
        with pytest.raises(SystemExit, match="no_such_module"):
            cover(CONFIG, tree, place)


def test_a_later_row_of_a_test_file_replaces_its_first(tmp_path: Path) -> None:
    out = tmp_path / "covering"
    rows = [
        {
            "file": "t.py",
            "digest": "1",
            "seconds": {"t.py::a": 2.0},
            "tests": ["", "t.py::a"],
            "lines": {"s.py": {"3": [1]}},
        },
        {
            "file": "t.py",
            "digest": "2",
            "seconds": {"t.py::b": 1.0},
            "tests": ["", "t.py::b"],
            "lines": {"s.py": {"4": [0, 1]}},
        },
    ]
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    covering = Covering.read(out)
    assert covering.digests == {"t.py": "2"}
    assert covering.of_lines("s.py", range(1, 9)) == covering.of_file("s.py") == ["t.py::b"]
    assert covering.of_lines("s.py", range(3, 4)) == []
    assert covering.at_import("s.py", range(4, 5))
    assert not covering.at_import("s.py", range(3, 4))
