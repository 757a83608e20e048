"""The rules of the code that no linter knows. WORKSPACE.md gives the reasons."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.config_reference import render

ROOT = Path(__file__).parent.parent
SOURCES = sorted(ROOT.glob("packages/*/src/raylog/**/*.py"))
UNIT_TESTS = sorted(ROOT.glob("packages/*/tests/**/*.py"))

MAX_LINES = 400

SANS_IO = tuple(
    """
protocol/*
coordination/model coordination/paths coordination/assignors coordination/group* coordination/controller*
coordination/peer_control coordination/store coordination/lease coordination/topic_patterns
broker/config/* broker/dynamic_config broker/storage/producers broker/storage/epochs broker/replication/*
broker/handlers/fetch_sessions broker/net/follower_session broker/groups/classic*
client/config* client/metadata client/partitioner client/accumulator client/producer_state client/fetch_state
client/fetch_session client/fetch_plan client/offset_queries client/subscription client/serde client/admin_requests
client/connection_config client/arguments client/record_values client/batch_bytes client/read_errors
client/read_replicas client/row_partitions client/epoch_checks client/metrics client/complaints client/seldom
client/group_changes client/group_consumer_core client/producer_partitions
client/group_batches client/group_calls client/group_handler client/group_handler_config client/data_plan
client/offset_ranges client/column* client/numpy_*
spark/columns spark/options spark/values spark/session_plan spark/write_options spark/export_plan
spark/sink_plan spark/sink_batch spark/stream_offsets
""".split()  # noqa: SIM905 (a list of one-word strings reads worse)
)
"""Cores without a clock, randomness, a socket, a file, a thread, Ray or ZooKeeper (marked ◆ in WORKSPACE.md)."""

IMPURE = {
    "time", "random", "secrets", "socket", "select", "selectors", "os", "threading", "subprocess", "pathlib",
    "tempfile", "shutil", "ray", "kazoo", "asyncio", "concurrent", "multiprocessing", "queue",
}  # fmt: skip

ONLY_IN = {
    "ray": {
        "coordination/ray_token",
        "broker/actor", "broker/ray_driver", "broker/supervisor",
        "client/cluster", "client/consumer_actor", "client/actor_group",
        "client/data", "client/data_source", "client/data_sink", "client/ray_metrics",
        "spark/sessions", "spark/session_nodes", "spark/session_ray",
    },
    "kazoo": {"coordination/zk_store", "coordination/zk_reads", "coordination/zk_auth", "coordination/zk_errors"},
    "re2": {"coordination/topic_patterns"},
    "raydp": {"spark/sessions"},
}  # fmt: skip


THREADS = {
    "coordination/loops": "the one way to have a long-lived thread: it tells and repeats what fails",
    "client/aio/consumer": "waits in an executor for a call whose result it awaits",
    "client/aio/group_task": "the same, for what waits for ZooKeeper",
}
"""Where threads are made, and why there."""
MAKES_THREADS = {"Thread", "Timer", "ThreadPoolExecutor", "start_new_thread", "run_in_executor"}
LOGGERS = {
    "protocol/logs": "the one logger, which never raises",
    "broker/events": "the broker's, of the same kind",
    "broker/actor": "sets kazoo's level",
    "broker/ray_driver": "sets Ray's level",
    "coordination/zk_store": "keeps kazoo from writing to stderr",
    "coordination/zk_auth": "keeps passwords out of kazoo's lines",
}
"""Where a logger of ``logging`` is taken, and why there."""
FILE_ACCESS = {
    r"\._file\b": {"broker/storage/segment", "broker/storage/held", "broker/storage/room"},
    r"fs\.open\(": {"broker/storage/files", "broker/storage/segment", "broker/storage/index"},
    r"\bFileSlice\(": {"broker/storage/held", "broker/storage/files"},
    r"\bHeldSegment\(": {"broker/storage/segment"},
    r"fs\.unlink\(": {"broker/storage/files"},
    r"\bos\.(pread|pwritev?|sendfile|dup|unlink|remove|rename|replace)\(": {"broker/storage/files"},
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
    for library, places in ONLY_IN.items():
        if library in imported:
            assert module in places, f"{library} is imported in {module}"
    if "pyspark" in imported:
        assert module.startswith("spark/")


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
    assert users == FILE_ACCESS[pattern], "read through Segment.hold, delete by files.remove_file"


def test_a_controller_writes_through_one_door() -> None:
    """``Office.write`` puts the check of its epoch before each multi: written elsewhere, a replaced one could write."""
    controllers = ("broker/controller_*", "coordination/controller*", "coordination/snapshot")
    modules = {module_of(path): path.read_text() for path in SOURCES}
    its = {name: text for name, text in modules.items() if any(matches(name, pattern) for pattern in controllers)}
    writes = [
        (name, found)
        for name in its
        for found in re.findall(r"store\.(?:multi|create|set|delete|ensure)\(.*", its[name])
    ]
    assert writes == [("broker/controller_runtime", "store.multi(multi)")]
    assert [name for name, text in its.items() if re.search(r"\bWrite\(self", text)] == [
        "coordination/controller_office"
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


COPIES_ITEMS = re.compile(r"\b(?:list|tuple)\([\w.]+\.items\(\)\)|[\[(]\*[\w.]+\.items\(\),?[\])]")


def test_a_shared_dict_is_copied_whole() -> None:
    """``list(d.items())`` makes a tuple for each item, the garbage collector may run then, and with it another thread
    that changes ``d``: RuntimeError. ``d.copy().items()`` is whole. So does every other way to write it."""
    for copies in ("list(d.items())", "tuple(self.d.items())", "[*d.items()]", "(*d.items(),)"):
        assert COPIES_ITEMS.search(copies)
    for fine in ("d.copy().items()", "sorted(d.items())", "[*d.copy().items()]", "[*d.values()]"):
        assert not COPIES_ITEMS.search(fine)
    assert [module_of(path) for path in SOURCES if COPIES_ITEMS.search(path.read_text())] == []
