"""Every argument and option of the Spark functions × values that it cannot have: refused by name, before anything is
asked of Spark, Ray or brokers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kit.bad_values import NO_SERVERS, NO_TOPIC, NO_WAIT, REFUSALS, Bad, shown
from raylog.spark.exports.exports import export
from raylog.spark.exports.plan import ExportRefused
from raylog.spark.reading.options import _BATCH, _BOTH, _STREAM
from raylog.spark.reading.source import read
from raylog.spark.reading.stream_source import stream
from raylog.spark.sessions.plan import EXECUTOR_RESOURCE
from raylog.spark.sessions.sessions import session
from raylog.spark.writing.sinks import sink
from raylog.spark.writing.writes import write

SERVERS: Bad = tuple(servers for servers in NO_SERVERS if servers is not None)
TEXT: Bad = (5, b"a", True, ["a"], "")
NUMBER: Bad = (0, -1, 1.5, "2.5", True, "x", "", [1], 2**64)
FLAG: Bad = ("no", 1, "", [True], b"true")
PLACE: Bad = (
    "first",
    5,
    True,
    "{",
    '{"t": 0}',
    '{"t": {"0": -3}}',
    '{"t": {"x": 0}}',
    '{"t": {"0": 0.5}}',
    b"x",
    "[]",
    "",
)
TIME: Bad = ("now", -1, 1.5, True, "", b"1", [1], "²", 2**63)
TIMES: Bad = ("now", 5, "{", '{"t": 0}', '{"t": {"0": -1}}', '{"t": {"x": 0}}', "", "[]")
TOPICS: Bad = (5, b"t", ["t", 7], " ,", [], True, "no/such", ["x" * 250])
KAFKA: Mapping[str, Bad] = {
    "kafka.fetch.max.bites": (1,),
    "kafka.fetch.max.bytes": ("many", True, -1),
    "kafka.bootstrap.servers": SERVERS,
    "kafka.group.id": (5, b"g", True, ""),
    "kafka.isolation.level": ("dirty", 1),
    "kafka.auto.offset.reset": ("earliest",),
    "kafka.enable.auto.commit": (True,),
    "kafka.key.deserializer": ("x",),
}
OPTIONS: Mapping[str, Bad] = {
    "subscribe": TOPICS,
    "subscribePattern": ("(", 5, b"t", True, ""),
    "assign": ("t", 5, "{}", '{"t": 0}', '{"t": [-1]}', '{"t": [true]}', '{"": [0]}', '{"no/such": [0]}', b"x", "[]"),
    "startingOffsets": PLACE,
    "startingTimestamp": TIME,
    "startingOffsetsByTimestamp": TIMES,
    "startingOffsetsByTimestampStrategy": ("x", 5, "", True),
    "failOnDataLoss": FLAG,
    "includeHeaders": FLAG,
    "minPartitions": NUMBER,
    "maxRecordsPerPartition": NUMBER,
    "groupIdPrefix": TEXT,
    "value": ("avro", 5, "", True),
    "schema": (5, "a int", ""),
    "mode": ("permissive",),
    "columnNameOfCorruptRecord": ("c",),
    "dropped": (object(),),
}
BATCH: Mapping[str, Bad] = {"endingOffsets": PLACE, "endingTimestamp": TIME, "endingOffsetsByTimestamp": TIMES}
STREAM: Mapping[str, Bad] = {
    "maxOffsetsPerTrigger": NUMBER,
    "minOffsetsPerTrigger": NUMBER,
    "maxTriggerDelay": ("soon", -1, 1.5, "", "5 years", True, 10**30),
}
COLUMNS: Bad = (5, [], ["no such"], ["key", "key"], b"key", [5], "")
PRODUCER: Mapping[str, Bad] = {
    "compression.type": ("zstd",),
    "kafka.no.such": (1,),
    "kafka.batch.size": ("many", True, -1),
    "kafka.key.serializer": ("x",),
    "kafka.bootstrap.servers": SERVERS,
}
CALLS: Mapping[Callable[..., Any], tuple[Mapping[str, Any], Mapping[str, Bad]]] = {
    read: ({"subscribe": "t"}, {"columns": COLUMNS, "bootstrap_servers": SERVERS, **KAFKA, **OPTIONS, **BATCH}),
    stream: ({"subscribe": "t"}, {"columns": COLUMNS, "bootstrap_servers": SERVERS, **KAFKA, **OPTIONS, **STREAM}),
    write: ({"topic": "t"}, {"topic": NO_TOPIC[:2] + NO_TOPIC[3:], "bootstrap_servers": SERVERS, **PRODUCER}),
    sink: (
        {"topic": "t", "location": "/l"},
        {
            "topic": NO_TOPIC[:2] + NO_TOPIC[3:],
            "location": (5, None, b"/l", "", "/", "/a*b", "/a,b", ["/l"]),
            "bootstrap_servers": SERVERS,
            **PRODUCER,
            "kafka.acks": (1,),
        },
    ),
    export: (
        {"topic": "t", "to": "/nowhere", "bootstrap_servers": "localhost:1"},
        {
            "topic": NO_TOPIC,
            "to": (5, None, b"/d", "", "s3://b/d", ["/d"]),
            "bootstrap_servers": SERVERS,
            "since_ms": (-1, 1.5, "0", True, 2**63),
            "until_ms": (-1, 1.5, "0", True, 2**63),
            "fail_on_data_loss": ("no", 1, None),
            "max_records_per_file": (0, -1, 1.5, "1", True, None),
            "consumer": (5, "a", {"no_such": 1}, {"fetch_max_bytes": "many"}, {"group.id": "g"}),
            "on_planned": (5, "x", None),
            "on_progress": (5, "x"),
        },
    ),
    session: (
        {},
        {
            "app_name": (5, b"a", None, ""),
            "executors": (0, -1, 1.5, "1", True, None),
            "cores": (0, -1, 1.5, "1", True, None),
            "memory": (5, "", "much", "1", "-1g", None, b"1g", True),
            "address": TEXT,
            "data_dir": (5, b"d", "", ["d"]),
            "configs": (5, "a", ["a"], {5: "a"}, {"spark.x": [5]}, {"spark.x": None}, {f"{EXECUTOR_RESOURCE}cpu": "x"}),
            "timeout_s": (*NO_WAIT, None),
        },
    ),
}  # fmt: skip
NOT_OURS = {"spark", "frame"}


def test_every_argument_and_option_has_a_row() -> None:
    assert set(_BOTH) == OPTIONS.keys()
    assert (set(_BATCH), set(_STREAM)) == (BATCH.keys(), STREAM.keys())
    for call, (_, rows) in CALLS.items():
        parameters = inspect.signature(call).parameters
        named = {name for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD} - NOT_OURS
        assert named <= rows.keys()


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_what_an_argument_cannot_be_is_refused(call: Callable[..., Any], tmp_path: Path) -> None:
    good, rows = CALLS[call]
    found: dict[str, str] = {}
    for argument, values in rows.items():
        for bad in values:
            given = {**good, argument: bad}
            if argument in ("subscribePattern", "assign"):
                del given["subscribe"]
            if told := wrong(call, given, argument):
                found[f"{argument}={shown(bad, 60)}"] = told
    assert found == {}


def wrong(call: Callable[..., Any], given: dict[str, Any], argument: str) -> str:
    """What is wrong with how it was refused; empty when nothing is."""
    first = [None] if NOT_OURS & inspect.signature(call).parameters.keys() else []
    try:
        made = call(*first, **given)
        if call is session:
            with made:
                pass
    except (*REFUSALS, ExportRefused, ValueError) as error:
        names = given["consumer"] if isinstance(given.get("consumer"), dict) else [argument]
        stems = [name.removeprefix("kafka.").replace(".", "_").removesuffix("_ms").rstrip("s") for name in names]
        return "" if any(stem in str(error).replace(".", "_") for stem in stems) else f"it says only {shown(error)}"
    except BaseException as other:  # noqa: BLE001 (it is looked at)
        return f"it raised {shown(other)}"
    return f"it gave {shown(made)}"
