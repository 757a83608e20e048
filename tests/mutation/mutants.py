"""All mutants of a file, and a sample of them that stays much the same while the code changes.

A mutant's key is made of what is changed and in which function, not of line numbers. The sample takes the mutants of
a room that have the smallest hashes of seed and key: the same code gives the same sample, and a change of one
function changes only that function's part of it.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from mutation.operators import OPERATORS

HERE = Path(__file__).parent

NO_VALUE = {"__slots__", "__all__"}
UNTESTED_FUNCTIONS = {"__repr__", "__str__"}


@dataclass(frozen=True)
class Config:
    mutants: int
    least: int
    seed: int
    budget_s: float
    longest_test_s: float
    timeout_factor: float
    timeout_least_s: float
    loggers: frozenset[str]
    rooms: dict[str, list[str]]
    tests: list[str]
    skipped: list[str]
    """Regular expressions; tests and test files whose names contain one are not used."""

    def skips(self, test: str) -> bool:
        return any(re.search(pattern, test) for pattern in self.skipped)

    @classmethod
    def read(cls, path: Path = HERE / "config.toml") -> Config:
        values: dict[str, Any] = tomllib.loads(path.read_text())
        tests = values.pop("tests")
        loggers = frozenset(values.pop("loggers"))
        return cls(**values, loggers=loggers, tests=tests["run"], skipped=tests["skip"])

    def sources(self, root: Path) -> dict[str, list[str]]:
        """Paths below root by room."""
        return {
            room: sorted({str(path.relative_to(root)) for glob in globs for path in root.glob(glob)})
            for room, globs in self.rooms.items()
        }


@dataclass(frozen=True)
class Mutant:
    room: str
    path: str
    line: int
    lines: range
    """Of the statement, or of its head where it has a body: a test that executes one of them may notice."""
    function: str
    """Qualified name of the outermost function in the module or in a class; empty outside of one."""
    kind: str
    key: str
    file: File
    old: cst.CSTNode
    new: cst.CSTNode

    def code(self) -> str:
        changed = self.file.module.deep_replace(self.old, self.new)  # type: ignore[arg-type]
        assert isinstance(changed, cst.Module)
        return changed.code

    def diff(self) -> str:
        lines = difflib.unified_diff(self.file.text.splitlines(), self.code().splitlines(), lineterm="", n=0)
        return "\n".join(line for line in list(lines)[2:] if not line.startswith("@@"))


class File:
    """One source file. Its mutants are found by reading it once."""

    def __init__(self, root: Path, room: str, path: str, loggers: frozenset[str]) -> None:
        self.room = room
        self.path = path
        self.text = (root / path).read_text()
        self._loggers = loggers
        self._texts: dict[cst.CSTNode, str] = {}
        self._wrapper = MetadataWrapper(cst.parse_module(self.text), unsafe_skip_copy=True)
        self.module = self._wrapper.module
        self._positions = self._wrapper.resolve(PositionProvider)
        self._parents = self._wrapper.resolve(ParentNodeProvider)

    @cached_property
    def mutants(self) -> list[Mutant]:
        found: list[Mutant] = []
        counts: Counter[str] = Counter()
        for node, function in self._walk(self.module, "", False):
            for types, kind, operator in OPERATORS:
                if not isinstance(node, types):
                    continue
                for new in operator(node):
                    found.append(self._mutant(node, new, kind, function, counts))
        return found

    def _mutant(self, node: cst.CSTNode, new: cst.CSTNode, kind: str, function: str, counts: Counter[str]) -> Mutant:
        old = self._shown(node)
        words = "\n".join((self.path, function, kind, self._shown(self._statement(node)), old, self._shown(new)))
        counts[words] += 1
        key = hashlib.sha256(f"{words}\n{counts[words]}".encode()).hexdigest()[:16]
        lines = self._lines(node)
        return Mutant(self.room, self.path, self._line(node), lines, function, kind, key, self, node, new)

    def _walk(self, node: cst.CSTNode, function: str, inside: bool) -> Iterator[tuple[cst.CSTNode, str]]:
        if self._left_out(node):
            return
        if isinstance(node, cst.ClassDef | cst.FunctionDef) and not inside:
            function = f"{function}.{node.name.value}".lstrip(".")
            inside = isinstance(node, cst.FunctionDef)
        named = function if inside else ""
        yield node, named
        for child in node.children:
            if inside and isinstance(node, cst.FunctionDef) and not isinstance(child, cst.BaseSuite):
                # defaults are evaluated when the module is imported
                yield from ((inner, "") for inner, _ in self._walk(child, "", False))
            else:
                yield from self._walk(child, function, inside)

    def _left_out(self, node: cst.CSTNode) -> bool:
        match node:
            case cst.Annotation() | cst.Decorator() | cst.Raise() | cst.Import() | cst.ImportFrom():
                return True
            case cst.FunctionDef(name=cst.Name(name)):
                return name in UNTESTED_FUNCTIONS
            case cst.If(test=cst.Name("TYPE_CHECKING")):
                return True
            case cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString()):
                return True  # a docstring, of whatever
            case cst.Expr(value=cst.Call(func=func)):
                root = func.value if isinstance(func, cst.Attribute) else func
                return isinstance(root, cst.Name) and root.value in self._loggers
            case cst.SimpleString() | cst.ConcatenatedString() | cst.FormattedString():
                return " " in self._shown(node)
            case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(name))]) if name in NO_VALUE:
                return True
            case cst.Call(func=cst.Name("cast" | "TypeVar" | "ParamSpec" | "NewType")):
                return True
        return False

    def _shown(self, node: cst.CSTNode) -> str:
        shown = self._texts.get(node)
        if shown is None:
            shown = self._texts[node] = self.module.code_for_node(node).strip()
        return shown

    def _line(self, node: cst.CSTNode) -> int:
        """Operators have no position of their own: their expression's is taken."""
        while node not in self._positions:
            node = self._parents[node]
        position: Any = self._positions[node]
        return int(position.start.line)

    def _statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The line or, where the node is in the head of a compound statement, the part of the head."""
        inner = node
        while not isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement | cst.Module):
            inner, node = node, self._parents[node]
        return node if isinstance(node, cst.SimpleStatementLine) else inner

    def _lines(self, node: cst.CSTNode) -> range:
        while not isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement | cst.Module):
            node = self._parents[node]
        position: Any = self._positions[node]
        first, last = position.start.line, position.end.line
        body = getattr(node, "body", None)
        if isinstance(body, cst.IndentedBlock) and body.body:
            last = max(first, self._line(body.body[0]) - 1)
        elif isinstance(node, cst.Match):
            last = self._line(node.cases[-1])
        return range(first, last + 1)


def mutants_of(root: Path, config: Config) -> dict[str, list[Mutant]]:
    """All, by room."""
    return {
        room: [mutant for path in paths for mutant in File(root, room, path, config.loggers).mutants]
        for room, paths in config.sources(root).items()
    }


def sample(rooms: dict[str, list[Mutant]], wanted: int, least: int, seed: int) -> list[Mutant]:
    """Of each room its share, drawn by the seed; in an order in which any beginning is a fair sample, too."""
    total = sum(map(len, rooms.values()))
    drawn: list[tuple[float, Mutant]] = []
    for mutants in rooms.values():
        share = min(len(mutants), max(least, round(wanted * len(mutants) / total))) if total else 0
        chosen = sorted(mutants, key=lambda mutant: rank(seed, mutant.key))[:share]
        drawn += [(position / share, mutant) for position, mutant in enumerate(chosen)]
    return [mutant for _, mutant in sorted(drawn, key=lambda pair: (pair[0], pair[1].room))]


def rank(seed: int, key: str) -> str:
    return hashlib.sha256(f"{seed}:{key}".encode()).hexdigest()
