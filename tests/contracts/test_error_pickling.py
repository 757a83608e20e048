"""Every error of raylog travels between processes: pickled, it keeps its class, its text and its attributes."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from raylog.client.ranges.offset_ranges import DataLoss, OffsetRange
from raylog.client.read_errors import CorruptBatch, LogTruncated, PositionLost, RecordDeserializationError
from raylog.client.results import ConsumerRecord
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.coordination.store.port import NoNode, StoreError
from raylog.protocol.errors import CorruptMessage, RaylogError
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition
from raylog.spark.reading.values import MalformedValue

SOURCES = sorted((Path(__file__).parents[2] / "packages").glob("*/src/raylog/**/*.py"))
TP = TopicPartition(TopicName("t"), PartitionIndex(3))
RECORD = ConsumerRecord("t", 3, 7, 5, 1, b"k", b"\xff", (("h", None), ("i", b"1")))

ARGUMENTS: dict[type[RaylogError], tuple[Any, ...]] = {
    RecordDeserializationError: (RECORD, "value", ValueError("no")),
    CorruptBatch: (TP, 10, 20, CorruptMessage("a checksum")),
    PositionLost: (TP, 1, 2, 3),
    LogTruncated: (TP, 9, 4, 7),
    CorruptMetadata: ("/brokers", "is odd"),
    DataLoss: ("gone", [OffsetRange(TP, Offset(1), Offset(5))]),
    StoreError: ("no node", "/a/b", 3),
    MalformedValue: ("no JSON", TP, 7),
}
"""For those that take more than a message."""


def error_classes() -> list[type[RaylogError]]:
    """All there are, in whatever module."""
    found = {"RaylogError": RaylogError}
    added = True
    while added:
        added = False
        for path in SOURCES:
            text = path.read_text()
            if "class " not in text:
                continue
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef) and node.name not in found:
                    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
                    if bases & found.keys():
                        parts = path.with_suffix("").parts
                        module = ".".join(parts[len(parts) - 1 - parts[::-1].index("raylog") :])
                        found[node.name] = getattr(import_module(module), node.name)
                        added = True
    return list(found.values())


def arguments_of(kind: type[RaylogError]) -> tuple[Any, ...]:
    return next((ARGUMENTS[base] for base in kind.__mro__ if base in ARGUMENTS), ("what happened",))


CLASSES = error_classes()


def test_all_classes_are_found() -> None:
    assert {RaylogError, RecordDeserializationError, NoNode, CorruptMetadata} < set(CLASSES)
    assert len(CLASSES) > 80


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_error_pickled_is_equal(kind: type[RaylogError]) -> None:
    arguments = arguments_of(kind)
    assert len(arguments) > 1 or len(inspect.signature(kind).parameters) == 1, "give its arguments in ARGUMENTS"
    error = kind(*arguments)
    error.add_note("a note")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is kind
        assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))


def test_errors_of_readers_name_their_place() -> None:
    for kind in (RecordDeserializationError, CorruptBatch, PositionLost, LogTruncated):
        error: Any = pickle.loads(pickle.dumps(kind(*ARGUMENTS[kind])))
        assert (error.tp, error.topic, error.partition) == (TP, "t", 3)
    undecodable: Any = pickle.loads(pickle.dumps(RecordDeserializationError(*ARGUMENTS[RecordDeserializationError])))
    assert (undecodable.offset, undecodable.timestamp, undecodable.timestamp_type) == (7, 5, 1)
    assert (undecodable.key, undecodable.value, undecodable.headers) == (b"k", b"\xff", RECORD.headers)
    assert (undecodable.origin, "t-3 offset 7: the value" in str(undecodable)) == ("value", True)
