"""The rules of the code that no linter knows. WORKSPACE.md gives the reasons."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from kit.config_reference import render

ROOT = Path(__file__).parent.parent
SOURCES = sorted(ROOT.glob("packages/*/src/raylog/**/*.py"))
UNIT_TESTS = sorted(ROOT.glob("packages/*/tests/**/*.py"))

MAX_LINES = 400
RULED_SINCE = "fe06fbf3"
"""The last commit before the rule of subjects. A clone without it has its newest commit looked at alone."""

SANS_IO = tuple(
    """
protocol/*
coordination/control/peer_control coordination/controller/* coordination/groups/assignors
coordination/groups/group coordination/membership/lease
coordination/metadata/group_* coordination/metadata/model coordination/metadata/paths
coordination/metadata/topic_patterns coordination/store/port
broker/config/* broker/dynamic_config broker/groups/classic/claims broker/groups/classic/group
broker/groups/classic/members broker/groups/classic/messages broker/groups/classic/stored
broker/handlers/fetch_sessions broker/replicas/follower_session broker/replication/* broker/storage/state/epochs
broker/net/exchange broker/net/slow_apis broker/storage/state/producers
client/arguments/arguments client/arguments/column_values client/arguments/record_values client/arguments/serde
client/batches/* client/config/* client/fetch/complaints client/fetch/epoch_checks client/fetch/fetch_*
client/fetch/read_replicas client/fetch/subscription client/groups/calls client/groups/changes
client/groups/group_consumer_core client/handlers/batches client/handlers/config client/handlers/core
client/network/metadata client/produce/batch_bytes client/produce/producer_* client/ranges/offset_ranges
client/ray_data/plan client/read_errors client/requests/admin_requests client/requests/offset_queries
client/telemetry/metrics client/telemetry/seldom
spark/exports/plan spark/reading/columns spark/reading/options spark/reading/stream_offsets spark/reading/values
spark/sessions/plan spark/writing/sink_batch spark/writing/sink_plan spark/writing/write_options
""".split()  # noqa: SIM905 (a list of one-word strings reads worse)
)
"""Cores without a clock, randomness, a socket, a file, a thread, Ray or ZooKeeper (marked ◆ in WORKSPACE.md)."""

IMPURE = {
    "time", "random", "secrets", "socket", "select", "selectors", "os", "threading", "subprocess", "pathlib",
    "tempfile", "shutil", "ray", "kazoo", "asyncio", "concurrent", "multiprocessing", "queue",
}  # fmt: skip

ONLY_IN = {
    "ray": {
        "coordination/host/ray_token",
        "broker/launch/actor", "broker/launch/ray_driver", "broker/launch/supervisor",
        "client/cluster", "client/network/ray_brokers", "client/handlers/consumer_actor", "client/handlers/actor_group",
        "client/data", "client/ray_data/source", "client/ray_data/sink", "client/telemetry/ray_metrics",
        "spark/sessions/sessions", "spark/sessions/nodes", "spark/sessions/ray",
    },
    "kazoo": {
        "coordination/zookeeper/store", "coordination/zookeeper/reads", "coordination/zookeeper/auth",
        "coordination/zookeeper/errors", "coordination/zookeeper/watches",
    },
    "re2": {"coordination/metadata/topic_patterns"},
    "raydp": {"spark/sessions/sessions"},
}  # fmt: skip


THREADS = {
    "coordination/host/loops": "the one way to have a long-lived thread: it tells and repeats what fails",
    "client/aio/consumer": "waits in an executor for a call whose result it awaits",
    "client/aio/group_task": "the same, for what waits for ZooKeeper",
}
"""Where threads are made, and why there."""
MAKES_THREADS = {"Thread", "Timer", "ThreadPoolExecutor", "start_new_thread", "run_in_executor"}
LOGGERS = {
    "protocol/logs": "the one logger, which never raises",
    "broker/events": "the broker's, of the same kind",
    "broker/launch/actor": "sets kazoo's level",
    "broker/launch/ray_driver": "sets Ray's level",
    "coordination/zookeeper/store": "keeps kazoo from writing to stderr",
    "coordination/zookeeper/auth": "keeps passwords out of kazoo's lines",
}
"""Where a logger of ``logging`` is taken, and why there."""
FILE_ACCESS = {
    r"\._file\b": {"broker/storage/segments/segment", "broker/storage/segments/held", "broker/storage/disk/room"},
    r"fs\.open\(": {"broker/storage/disk/files", "broker/storage/segments/segment", "broker/storage/segments/index"},
    r"\bFileSlice\(": {"broker/storage/segments/held", "broker/storage/disk/slices"},
    r"\bHeldSegment\(": {"broker/storage/segments/held"},
    r"fs\.unlink\(": {"broker/storage/disk/files"},
    r"\bos\.(pread|pwritev?|sendfile|dup|unlink|remove|rename|replace)\(": {"broker/storage/disk/files"},
}
"""What touches the storage's files, and the modules that may: one way to read, one to delete."""


def module_of(path: Path) -> str:
    """``broker/storage/log`` for .../src/raylog/broker/storage/log.py."""
    return str(path.relative_to(path.parents[len(path.parts) - path.parts.index("raylog") - 2]).with_suffix(""))


def imports_of(path: Path) -> Iterator[str]:
    """Top-level names of all modules that the file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.partition(".")[0]


def names_from(path: Path) -> set[str]:
    """What the file imports from modules, by name."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}


def matches(module: str, pattern: str) -> bool:
    return re.fullmatch(pattern.replace("*", ".*"), module) is not None


def test_there_are_sources() -> None:
    assert len(SOURCES) > 50
    assert {module.partition("/")[0] for module in map(module_of, SOURCES)} == {
        "protocol", "coordination", "broker", "client", "spark",
    }  # fmt: skip


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_a_file_is_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_LINES, f"{module_of(path)} has {lines} lines: split it by responsibility"


@pytest.mark.parametrize("path", SOURCES, ids=module_of)
def test_imports_keep_to_their_place(path: Path) -> None:
    module, imported = module_of(path), set(imports_of(path))
    if any(matches(module, pattern) for pattern in SANS_IO):
        assert not imported & IMPURE, f"{module} is sans-io: hand time, chance and I/O in"
        assert "MetadataStore" not in names_from(path), f"{module} is sans-io, and each call of a store is I/O"
    for library, places in ONLY_IN.items():
        if library in imported:
            assert module in places, f"{library} is imported in {module}"
    if "pyspark" in imported:
        assert module.startswith("spark/")


def imported_modules(path: Path, modules: Container[str]) -> set[str]:
    """Which of ``modules`` (``raylog.broker.parts``) the file imports, wherever in it and for whatever: types, too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                name if (name := f"{node.module}.{alias.name}") in modules else node.module for alias in node.names
            }
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            found |= {str(node.args[0].value)} if name == "import_module" else set()
    return {name for name in found if name in modules}


def circle_in(arrows: Mapping[str, Iterable[str]]) -> list[str]:
    """What is left of ``arrows`` when modules that import nothing of the rest go, again and again: circles, and all
    that leads into one."""
    left = {module: set(imported) for module, imported in arrows.items()}
    while ends := {module for module, imported in left.items() if not imported}:
        left = {module: imported - ends for module, imported in left.items() if module not in ends}
    return sorted(left)


def test_a_circle_of_imports_is_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("if TYPE_CHECKING:\n    from a import b\nimport_module('a.c')\nfrom a.d import x\nimport a.e\n")
    assert imported_modules(path, {"a", "a.b", "a.c", "a.d", "a.e"}) == {"a.b", "a.c", "a.d", "a.e"}
    assert circle_in({"a": ["b"], "b": ["c"], "c": []}) == []
    assert circle_in({"a": ["b"], "b": ["c"], "c": ["b"], "d": []}) == ["a", "b", "c"]


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Also not for types alone (TYPE_CHECKING): who reads one of them has to read all."""
    modules = {f"raylog/{module_of(path)}".replace("/", ".").removesuffix(".__init__"): path for path in SOURCES}
    arrows = {module: imported_modules(path, modules) - {module} for module, path in modules.items()}
    assert sum(map(len, arrows.values())) > len(SOURCES)
    assert circle_in(arrows) == []


def makes_threads(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in MAKES_THREADS:
                return True
        if isinstance(node, ast.ClassDef) and any(getattr(base, "id", "") == "Thread" for base in node.bases):
            return True
    return False


def test_threads_are_made_in_few_places() -> None:
    """A thread made elsewhere may end by an exception, and nobody says so."""
    assert {module_of(path) for path in SOURCES if makes_threads(path)} == set(THREADS)


def test_log_lines_are_written_in_one_way() -> None:
    """A line that cannot be written would end the thread that tells of an error."""
    assert {module_of(path) for path in SOURCES if "getLogger(" in path.read_text()} == set(LOGGERS)


def test_addresses_are_written_in_one_way() -> None:
    """An IPv6 host without brackets is an address that no client takes."""
    wrong = re.compile(r"""host(?:['"]\])?\}:\{""")
    assert [module_of(path) for path in SOURCES if wrong.search(path.read_text())] == []


@pytest.mark.parametrize("pattern", FILE_ACCESS)
def test_log_files_are_used_in_one_way(pattern: str) -> None:
    """A read without a hold meets a closed descriptor, or another file's; a file that is gone is no failed disk."""
    users = {
        module
        for path in SOURCES
        if (module := module_of(path)).startswith("broker/storage/") and re.search(pattern, path.read_text())
    }
    assert users == FILE_ACCESS[pattern], "read through held.hold, delete by files.remove_file"


def test_a_controller_writes_through_one_door() -> None:
    """``Office.write`` puts the check of its epoch before each multi: written elsewhere, a replaced one could write."""
    controllers = ("broker/cluster/controller_*", "coordination/controller/*", "coordination/metadata/snapshot")
    modules = {module_of(path): path.read_text() for path in SOURCES}
    its = {name: text for name, text in modules.items() if any(matches(name, pattern) for pattern in controllers)}
    writes = [
        (name, found)
        for name in its
        for found in re.findall(r"store\.(?:multi|create|set|delete|ensure)\(.*", its[name])
    ]
    assert writes == [("broker/cluster/controller_runtime", "store.multi(multi)")]
    assert [name for name, text in its.items() if re.search(r"\bWrite\(self", text)] == [
        "coordination/controller/office"
    ]


@pytest.mark.parametrize("pattern", SANS_IO)
def test_each_sans_io_pattern_names_modules_that_exist(pattern: str) -> None:
    assert any(matches(module_of(path), pattern) for path in SOURCES)


@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.stem)
def test_unit_tests_do_not_import_ray(path: Path) -> None:
    assert not {"ray", "kazoo", "pyspark", "raydp"} & set(imports_of(path))


def test_test_modules_have_names_of_their_own() -> None:
    names = [path.name for path in ROOT.glob("**/test_*.py") if ".venv" not in path.parts]
    assert sorted(names) == sorted(set(names))


def test_no_test_sleeps() -> None:
    """Tests wait for a condition with a deadline; the one wait loop that polls is the kit's."""
    sleeping = [
        str(path.relative_to(ROOT))
        for path in [*ROOT.glob("tests/**/test_*.py"), *UNIT_TESTS]
        if re.search(r"\bsleep\(", path.read_text()) and path.name != "test_rules.py"
    ]
    assert sleeping == []


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-build.lock"])
def test_the_lock_is_hashed_and_names_no_index(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    requirements = re.findall(r"^[a-z0-9][^ =]*==[^ ]+(?: ;[^\\]*)? \\\n    --hash=", text, re.MULTILINE)
    assert len(requirements) == len(re.findall(r"^[a-z0-9]", text, re.MULTILINE)) > 5


def test_the_config_reference_is_generated() -> None:
    assert (ROOT / "docs/configuration.md").read_text() == render(), "run `make docs`"


def test_no_file_names_a_machine() -> None:
    """No absolute path of somebody's home, no address of a package index."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    wrong = re.compile(r"(?<![\w.])/(?:home|root|work)/\w|pypi\.org|pythonhoste[d]|maven\.org|npmj[s]")
    assert [
        name for name in listed if (path := ROOT / name).is_file() and wrong.search(path.read_text(errors="replace"))
    ] == []


def test_commit_subjects_are_short_and_name_an_area() -> None:
    """``area: what changes`` in at most 72 characters, for all commits since that was a rule."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True)

    since = git("rev-list", "--no-merges", "--format=%s", "--no-commit-header", f"{RULED_SINCE}..HEAD")
    subjects = (
        since.stdout.splitlines() if since.returncode == 0 else git("log", "-1", "--format=%s").stdout.splitlines()
    )
    assert [line for line in subjects if len(line) > 72 or not re.match(r"[a-z][\w ,/.-]*: \S", line)] == []


LEAST_BOUND_S = 5
"""Shorter waits are what a test is about: a time-out that is to pass, a pause."""
WAITS = {"result", "exception", "join", "wait", "communicate", "settimeout"}


def bounds(tree: ast.AST) -> Iterator[tuple[int, float]]:
    """Numbers that say how many seconds a call may wait, and their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = node.args if node.func.attr in WAITS and len(node.args) == 1 else []
            named = [
                keyword.value for keyword in node.keywords if keyword.arg == "timeout" and node.func.attr != "stop"
            ]
            for bound in (*given, *named):
                if isinstance(bound, ast.Constant) and isinstance(bound.value, int | float):
                    yield bound.lineno, bound.value


def test_bounds_of_waits_scale_with_the_machine() -> None:
    """On a busy one a future, a thread or a program takes its time: ``kit.machine.scaled``."""
    assert list(bounds(ast.parse("a.result(9); a.join(scaled(9)); b.get(timeout=8); ','.join(x)"))) == [(1, 9), (1, 8)]
    apart = ("bench", "fuzz", "judge", "mutation", "sim")
    files = [path for path in ROOT.glob("tests/**/*.py") if path.relative_to(ROOT).parts[1] not in apart]
    assert [
        f"{path.relative_to(ROOT)}:{line}"
        for path in [*files, *UNIT_TESTS]
        for line, bound in bounds(ast.parse(path.read_text()))
        if bound >= LEAST_BOUND_S
    ] == []


def test_the_cause_of_each_flake_was_found() -> None:
    lines = (ROOT / "tests/flakes.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == []


COPIES_ITEMS = re.compile(r"\b(?:list|tuple)\([\w.]+\.items\(\)\)|[\[(]\*[\w.]+\.items\(\),?[\])]")


def test_a_shared_dict_is_copied_whole() -> None:
    """``list(d.items())`` makes a tuple for each item, the garbage collector may run then, and with it another thread
    that changes ``d``: RuntimeError. ``d.copy().items()`` is whole. So does every other way to write it."""
    for copies in ("list(d.items())", "tuple(self.d.items())", "[*d.items()]", "(*d.items(),)"):
        assert COPIES_ITEMS.search(copies)
    for fine in ("d.copy().items()", "sorted(d.items())", "[*d.copy().items()]", "[*d.values()]"):
        assert not COPIES_ITEMS.search(fine)
    assert [module_of(path) for path in SOURCES if COPIES_ITEMS.search(path.read_text())] == []
