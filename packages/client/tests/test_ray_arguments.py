"""Every argument of what goes through Ray × values that it cannot have: refused at the call, before Ray is asked."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from kit.bad_values import (
    NO_CONVERTER,
    NO_COUNT,
    NO_GROUP,
    NO_NUMBER,
    NO_PARTITION,
    NO_SERVERS,
    NO_SETTINGS,
    NO_TOPIC,
    NO_WAIT,
    REFUSALS,
    Bad,
    shown,
)
from raylog.client import ActorGroup, BrokerHandle, Cluster, connect, group
from raylog.client.handlers.plan import GroupPlan
from raylog.protocol.records import Record

SERVERS = "localhost:1"
NO_MAPPING: Bad = (5, "a", ["a"])
NO_TEXT: Bad = (5, b"a", True, ["a"])
NO_TOPICS: Bad = (5, b"t", None, (), "", "no/such", [""], [5], [None], [b"t"])
NO_RECORDS: Bad = (None, 5, b"v", "v", [], [b"v"], [None], Record(b"v"), {})


def handle(records: Any) -> None:
    """Nothing."""


class Broker:
    """An actor that nobody may ask."""

    def __getattr__(self, method: str) -> Any:
        return self

    def remote(self, *given: Any) -> Any:
        return f"the broker was asked for {given!r}"


def actors() -> ActorGroup:
    config: dict[str, Any] = {"batch_format": "rows", "key_deserializer": None, "value_deserializer": None}
    return ActorGroup(GroupPlan.of("g", SERVERS, "t", handle, **config, config={}), {})


def broker() -> BrokerHandle:
    return BrokerHandle(0, Broker())


def through_ray() -> Cluster:
    return Cluster(SERVERS, namespace="raylog-x")


CALLS: Mapping[str, tuple[Callable[..., Any], Mapping[str, Any], Mapping[str, Bad]]] = {
    "group": (
        group,
        {"name": "g", "topics": "t", "handler": handle, "cluster": Cluster(SERVERS)},
        {
            "name": NO_GROUP,
            "topics": NO_TOPICS,
            "handler": (5, None, "x", object, object(), partial(handle, threading.Lock())),
            "size": (-1, 1.5, "1", True, None, 2**31),
            "cluster": (5, SERVERS, True, ""),
            "batch_format": (5, "", "arrow", None, True, ["rows"]),
            "key_deserializer": NO_CONVERTER,
            "value_deserializer": NO_CONVERTER,
            "actor_options": (*NO_MAPPING, None, {5: 1}, {"no_such": 1}, {"num_cpus": -1}, {"max_restarts": "1"}),
            "config": (
                *NO_SETTINGS,
                {"enable_auto_commit": True},
                {"errors_tolerance": "some"},
                {"errors_tolerance": True},
                {"errors_tolerance": b"all"},
                {"errors_tolerance": "all", "errors.tolerance": "none"},
                {"errors_retry_timeout": -2},
                {"errors_retry_timeout": True},
                {"errors_retry_timeout": 1.5},
                {"errors_tolerance": "all", "errors_deadletterqueue_topic_name": "no/such"},
                {"errors_tolerance": "all", "errors_deadletterqueue_topic_name": ["a", "b"]},
                {"processing_guarantee": "twice"},
                {"auto_commit_interval_ms": -1},
                {"auto_offset_reset": "first"},
                {"group_id": "other"},
                {"session_timeout_ms": "soon"},
            ),
        },
    ),
    "ActorGroup.scale": (
        actors().scale, {"size": 0}, {"size": (-1, 1.5, "1", True, None), "timeout_s": (*NO_WAIT, None)},
    ),
    "ActorGroup.drain": (actors().drain, {}, {"timeout_s": NO_WAIT}),
    "ActorGroup.stop": (actors().stop, {}, {"timeout_s": (*NO_WAIT, None)}),
    "connect": (
        connect,
        {},
        {
            "bootstrap_servers": tuple(servers for servers in NO_SERVERS if servers is not None),
            "data_dir": (5, True, b"d", "", ["d"]),
            "address": (5, True, b"a", "", ["a"]),
        },
    ),
    "Cluster": (
        Cluster,
        {"bootstrap_servers": SERVERS},
        {
            "bootstrap_servers": (*NO_SERVERS, None),
            "ray_address": NO_TEXT,
            "ray_token_path": (*NO_TEXT, None),
            "namespace": NO_TEXT,
            "actors": (*NO_MAPPING, {"0": "a"}, {0: 5}),
            "zookeeper_auth_path": (*NO_TEXT, None),
        },
    ),
    "Cluster.admin": (Cluster(SERVERS).admin, {}, {"config": NO_SETTINGS}),
    "Cluster.producer": (Cluster(SERVERS).producer, {}, {"config": NO_SETTINGS}),
    "Cluster.consumer": (Cluster(SERVERS).consumer, {}, {"topics": (5, b"t", "", None), "config": NO_SETTINGS}),
    "Cluster.join_ray": (through_ray().join_ray, {}, {}),
    "Cluster.broker": (through_ray().broker, {}, {"broker_id": (*NO_NUMBER, None)}),
    "Cluster.leader": (
        through_ray().leader, {"topic": "t", "partition": 0}, {"topic": NO_TOPIC, "partition": NO_PARTITION},
    ),
    "BrokerHandle.produce": (
        broker().produce.remote,
        {"topic": "t", "partition": 0, "records": [Record(b"v")]},
        {
            "topic": NO_TOPIC,
            "partition": NO_PARTITION,
            "records": NO_RECORDS,
            "acks": (2, "2", None, True, b"1", 1.0, ["all"]),
            "compression": (5, "no such", None, b"zstd", True),
        },
    ),
    "BrokerHandle.fetch": (
        broker().fetch.remote,
        {"topic": "t", "partition": 0},
        {
            "topic": NO_TOPIC,
            "partition": NO_PARTITION,
            "offset": (-1, 1.5, "0", True, None, 2**63),
            "max_bytes": (*NO_COUNT, None),
        },
    ),
}  # fmt: skip


def test_every_public_call_has_a_row() -> None:
    public = {
        f"{door.__name__}.{name}"
        for door in (ActorGroup, Cluster)
        for name, _ in inspect.getmembers(door, inspect.isfunction)
        if not name.startswith("_")
    }
    assert public - CALLS.keys() == {"ActorGroup.status"}, "has no arguments"


@pytest.mark.parametrize("name", CALLS)
def test_what_an_argument_cannot_be_is_refused(name: str) -> None:
    call, good, rows = CALLS[name]
    assert set(inspect.signature(call).parameters) == set(rows)
    found: dict[str, str] = {}
    for argument, values in rows.items():
        for bad in values:
            if argument == "config":
                made = partial(call, **{**good, **bad})
            elif inspect.signature(call).parameters[argument].kind is inspect.Parameter.VAR_POSITIONAL:
                made = partial(call, bad, **good)
            else:
                made = partial(call, **{**good, argument: bad})
            if told := wrong(made, *(bad if argument == "config" else [argument])):
                found[f"{argument}={shown(bad, 60)}"] = told
    assert found == {}


def wrong(call: Callable[[], Any], *names: str) -> str:
    """What is wrong with how it was refused; empty when nothing is, and it names one of the arguments."""
    try:
        given = call()
    except REFUSALS as error:
        text = str(error).replace(".", "_")
        return (
            "" if any(name.replace(".", "_").rstrip("s") in text for name in names) else f"it says only {shown(error)}"
        )
    except Exception as other:  # noqa: BLE001 (it is looked at)
        return f"it raised {shown(other)}"
    if hasattr(given, "close"):
        given.close()
    return f"it gave {shown(given)}"
