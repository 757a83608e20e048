"""Every argument of every public call of the clients × values that it cannot have: refused at the call, by name.

What records and columns may be is in ``test_client_bad_values``. A new argument without a row here fails a test.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import inf, nan
from typing import Any

import pytest

from kit.bad_values import (
    LONG,
    NO_BROKERS,
    NO_CONFIGS,
    NO_CONVERTER,
    NO_COUNT,
    NO_FLAG,
    NO_GROUP,
    NO_NAMES,
    NO_NUMBER,
    NO_OFFSET,
    NO_PAIR,
    NO_PAIRS,
    NO_PARTITION,
    NO_SERVERS,
    NO_SETTINGS,
    NO_TOPIC,
    NO_UNICODE,
    NO_WAIT,
    REFUSALS,
    Bad,
    shown,
)
from kit.cluster import InProcessCluster
from kit.machine import scaled
from raylog.client import Admin, Consumer, NewTopic, Producer, data
from raylog.client.aio import AsyncConsumer, AsyncProducer
from raylog.client.groups.group_consumer import RebalanceListener
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import Offset


def offsets(low: int = 0) -> Bad:
    """Mappings from partitions, of which each has something that it cannot have."""
    values = [value for value in NO_OFFSET if value != -1] + [low - 1]
    pairs = [pair for pair in NO_PAIR if not isinstance(pair, list) and not any(map(is_list, as_tuple(pair)))]
    return (5, "t", [("t", 0)], *({("t", 0): value} for value in values), *({pair: 0} for pair in pairs))


def commits() -> Bad:
    """As :func:`offsets`, and with what is kept beside an offset."""
    beside = [CommittedOffset(value) for value in NO_OFFSET]
    beside += [CommittedOffset(Offset(0), epoch) for epoch in (-2, 0.0, 2**31)]
    beside += [CommittedOffset(Offset(0), metadata=text) for text in (b"m", None, NO_UNICODE)]
    return (*offsets(), *({("t", 0): value} for value in beside))


def is_list(given: Any) -> bool:
    return isinstance(given, list)


def as_tuple(given: Any) -> tuple[Any, ...]:
    return given if isinstance(given, tuple) else ()


class Listens:
    """No RebalanceListener."""


LISTENING = ("__init__", "subscribe")


class ListensLater(RebalanceListener):
    """For an AsyncConsumer."""

    async def on_assigned(self, partitions: Any, /) -> None:  # type: ignore[override]
        return


PRODUCER: Mapping[str, Mapping[str, Bad]] = {
    "__init__": {
        "bootstrap_servers": (*NO_SERVERS, None),
        "key_serializer": NO_CONVERTER,
        "value_serializer": NO_CONVERTER,
        "partitioner": (5, "no such", b"x", True),
        "continues": (5, "x", ()),
        "stats_cb": (5, "x", []),
        "interceptors": (5, "x", [5], [None]),
        "config": (*NO_SETTINGS, {"batch_size": 2**20, "buffer_memory": 2**19}, {"linger_ms": nan}, {"acks": True}),
    },
    "partitions_for": {"topic": NO_TOPIC},
    "flush": {"timeout_s": NO_WAIT},
    "close": {"timeout_s": NO_WAIT},
    "close_at_exit": {"timeout_s": (*NO_WAIT, None)},
    "hurry": {},
    "metrics": {},
}
SENDS = {"send", "aiosend", "send_batch"}
"""See ``test_client_bad_values``."""
READER: Mapping[str, Mapping[str, Bad]] = {
    "__init__": {
        "bootstrap_servers": NO_SERVERS,
        "topics": (5, b"t", [""], [5], [None], [b"t"], "", "no/such"),
        "key_deserializer": NO_CONVERTER,
        "value_deserializer": NO_CONVERTER,
        "stats_cb": (5, "x", []),
        "interceptors": (5, "x", [5], [None]),
        "config": (
            *NO_SETTINGS,
            {"session_timeout_ms": 10_000},
            {"max_poll_interval_ms": 10_000},
            {"partition_assignment_strategy": "range"},
            {"enable_auto_commit": True},
            {"auto_commit_interval_ms": 100},
            {"enable_auto_offset_store": False},
            {"zookeeper_connect": "h:1"},
        ),
    },
    "assign": {"partitions": (*NO_PAIRS, None)},
    "beginning_offsets": {"partitions": (*NO_PAIRS, None)},
    "end_offsets": {"partitions": (*NO_PAIRS, None)},
    "offsets_for_times": {"timestamps": offsets()},
    "partitions_for": {"topic": NO_TOPIC},
    "topic_id": {"topic": NO_TOPIC},
    "position": {"topic": NO_TOPIC, "partition": NO_PARTITION},
    "current_lag": {"topic": NO_TOPIC, "partition": NO_PARTITION},
    "seek": {"topic": NO_TOPIC, "partition": NO_PARTITION, "offset": NO_OFFSET},
    "seek_to_time": {"timestamp": NO_OFFSET, "partitions": NO_PAIR},
    "seek_to_beginning": {"partitions": NO_PAIR},
    "seek_to_end": {"partitions": NO_PAIR},
    "pause": {"partitions": NO_PAIR},
    "resume": {"partitions": NO_PAIR},
    "poll": {"timeout_ms": (*NO_WAIT, None), "max_records": NO_COUNT},
    "poll_batches": {"timeout_ms": (*NO_WAIT, None)},
    "poll_columns": {"timeout_ms": (*NO_WAIT, None), "columns": (5, [], ["no such"], ["key", "key"], b"key", [5])},
    "assignment": {},
    "paused": {},
    "metrics": {},
    "close": {},
}
CONSUMER_ALONE = {"iterate", "commit_async", "wakeup"}
"""An AsyncConsumer has these not."""
CONSUMER: Mapping[str, Mapping[str, Bad]] = {
    **READER,
    "__init__": {**READER["__init__"], "group_id": (b"g", True, 5, "", ["g"]), "listener": (5, "x", Listens())},
    "subscribe": {"topics": (5, b"t", [""], [5], [None], "", "no/such", None), "listener": (5, "x", Listens())},
    "iterate": {"timeout_ms": NO_WAIT, "until_end": NO_FLAG},
    "may_deliver": {"topic": NO_TOPIC, "partition": NO_PARTITION},
    "commit": {"offsets": commits()},
    "commit_async": {"offsets": commits()},
    "store_offsets": {"offsets": commits()},
    "committed": {"partitions": (*NO_PAIRS, None)},
    "unsubscribe": {},
    "wakeup": {},
}
ASYNC_CONSUMER = {name: arguments for name, arguments in CONSUMER.items() if name not in CONSUMER_ALONE}
ADMIN: Mapping[str, Mapping[str, Bad]] = {
    "__init__": {
        "bootstrap_servers": (*NO_SERVERS, None),
        "config": (*NO_SETTINGS, {"default_api_timeout_ms": 2**31}, {"default_api_timeout_ms": nan}),
    },
    "create_topic": {
        "name": NO_TOPIC,
        "partitions": (0, -2, 1.5, "1", True, None, 2**31),
        "replication_factor": (0, -2, 1.5, "1", True, None, 2**15),
        "configs": NO_CONFIGS,
        "assignments": (5, [[0]], {0: 0}, {"0": [0]}, {True: [0]}, {-1: [0]}, *({0: bad} for bad in NO_BROKERS)),
    },
    "create_topics": {
        "topics": ("t", 5, None, ["t"], [None], [NewTopic("n"), NewTopic("n")], [NewTopic("n", "1")], [NewTopic("")]),
        "validate_only": NO_FLAG,
    },
    "create_partitions": {
        "name": NO_TOPIC,
        "count": (*NO_COUNT, None),
        "assignments": (5, "0", [0], *([bad] for bad in NO_BROKERS)),
        "validate_only": NO_FLAG,
    },
    "delete_topics": {"names": NO_NAMES},
    "describe_topic": {"name": NO_TOPIC},
    "describe_topic_configs": {"name": NO_TOPIC},
    "describe_broker_configs": {"broker_id": NO_NUMBER},
    "describe_log_dirs": {"broker_id": (*NO_NUMBER, None)},
    "alter_topic_configs": {
        "name": NO_TOPIC,
        "configs": (*NO_CONFIGS, None),
        "append": (*NO_CONFIGS, None),
        "subtract": (*NO_CONFIGS, None),
        "validate_only": NO_FLAG,
    },
    "alter_broker_configs": {
        "broker_id": NO_NUMBER,
        "configs": (*NO_CONFIGS, None),
        "append": (*NO_CONFIGS, None),
        "subtract": (*NO_CONFIGS, None),
        "validate_only": NO_FLAG,
    },
    "elect_leaders": {"partitions": NO_PAIRS, "unclean": NO_FLAG},
    "alter_partition_reassignments": {
        "reassignments": (5, "t", [("t", 0)], *({("t", 0): bad} for bad in NO_BROKERS), {("t", -1): [0]}),
        "allow_replication_factor_change": NO_FLAG,
    },
    "list_partition_reassignments": {"partitions": NO_PAIRS},
    "list_offsets": {"at": offsets(-4), "isolation_level": (-1, 2, "0", True, None)},
    "delete_records": {"before": offsets(-1)},
    "describe_producers": {"partitions": (*NO_PAIRS, None)},
    "list_groups": {"states": ("Empty", 5, [5], [""], None, [NO_UNICODE], [LONG])},
    "describe_groups": {"names": NO_NAMES},
    "delete_groups": {"names": NO_NAMES},
    "list_group_offsets": {"group": NO_GROUP, "partitions": NO_PAIRS},
    "alter_group_offsets": {"group": NO_GROUP, "offsets": commits()},
    "remove_members": {
        "group": NO_GROUP,
        "members": (*NO_NAMES, ()),
        "instances": NO_NAMES,
    },
    "delete_group_offsets": {"group": NO_GROUP, "partitions": (*NO_PAIRS, None)},
    "describe_cluster": {},
    "list_topics": {},
    "close": {},
}
NO_PLACE: Bad = (
    -1,
    True,
    1.5,
    None,
    b"earliest",
    "first",
    ["earliest"],
    {"t": 0},
    {"t": {"0": 0}},
    {"t": {9: 0}},
    {"no": {0: 0}},
)
NO_AMOUNT: Bad = (-1, nan, inf, "1", True)
NO_SERVERS_GIVEN: Bad = tuple(servers for servers in NO_SERVERS if servers is not None)
DATA: Mapping[Callable[..., Any], Mapping[str, Bad]] = {
    data.read: {
        "topic": (*NO_TOPIC[:-3], [], [""], [5], ["t", "t"], "no/such"),
        "bootstrap_servers": NO_SERVERS_GIVEN,
        "start_offset": NO_PLACE,
        "end_offset": NO_PLACE,
        "columns": (5, [], ["no such"], ["key", "key"]),
        "fail_on_data_loss": NO_FLAG,
        "override_num_blocks": NO_COUNT,
        "concurrency": NO_COUNT,
        "num_cpus": NO_AMOUNT,
        "memory": NO_AMOUNT,
        "label_selector": (5, "a", ["a"]),
        "config": (*READER["__init__"]["config"], {"auto_offset_reset": "earliest"}, {"group_id": "g"}),
    },
    data.write: {
        "dataset": (None, 5, [{"value": b"v"}]),
        "topic": (*NO_TOPIC, None),
        "bootstrap_servers": NO_SERVERS_GIVEN,
        "concurrency": NO_COUNT,
        "config": PRODUCER["__init__"]["config"],
    },
    data.stream: {
        "topic": (5, b"t", [""], [5], [None], "", "no/such", None),
        "group": NO_GROUP,
        "bootstrap_servers": NO_SERVERS_GIVEN,
        "columns": (5, [], ["no such"], ["key", "key"]),
        "auto_offset_reset": ("none", "first", 5, None),
        "fail_on_data_loss": NO_FLAG,
        "timeout_ms": NO_WAIT,
        "config": (
            *NO_SETTINGS,
            *({"group_id": "g"}, {"enable_auto_commit": True}, {"enable_auto_offset_store": False}),
            *({"value_deserializer": "json"}, {"topics": ["t"]}, {"listener": None}),
        ),
    },
}
DOORS: Mapping[type, Mapping[str, Mapping[str, Bad]]] = {
    Producer: PRODUCER,
    AsyncProducer: {**PRODUCER, "__init__": {k: v for k, v in PRODUCER["__init__"].items() if k != "continues"}},
    Consumer: {
        **CONSUMER,
        **{name: {**CONSUMER[name], "listener": (*CONSUMER[name]["listener"], ListensLater())} for name in LISTENING},
    },
    AsyncConsumer: ASYNC_CONSUMER,
    Admin: ADMIN,
}
GOOD: Mapping[str, Any] = {
    "topic": "t",
    "name": "t",
    "create_topic.name": "new",
    "group": "g",
    "partition": 0,
    "partitions": [("t", 0)],
    "offset": 0,
    "offsets": {("t", 0): 0},
    "timestamp": 0,
    "timeout_ms": 0,
    "topics": ["t"],
    "count": 9,
    "broker_id": 0,
    "reassignments": {("t", 0): [0]},
    "at": {("t", 0): 0},
    "validate_only": True,
}
"""Of arguments that have to be given when another one is bad."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = {"auto.create.topics.enable": "false"}
    with InProcessCluster(tmp_path_factory.mktemp("cluster"), brokers=1, config=config) as running:
        running.create_topic("t", partitions=4)
        yield running.bootstrap_servers


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_every_argument_of_every_call_has_a_row(door: type) -> None:
    calls = {
        name: {parameter for parameter in inspect.signature(call).parameters if parameter != "self"}
        for name, call in inspect.getmembers(door, callable)
        if (name == "__init__" or not name.startswith("_")) and name not in SENDS
    }
    assert calls == {name: set(arguments) for name, arguments in DOORS[door].items()}


def arguments_of(call: Callable[..., Any], argument: str, bad: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """All that is needed, with one bad value."""
    found: dict[str, Any] = {}
    pairs: tuple[Any, ...] = ()
    for name, parameter in inspect.signature(call).parameters.items():
        match parameter.kind:
            case parameter.VAR_POSITIONAL:
                pairs = (bad,) if name == argument else ()
            case parameter.VAR_KEYWORD:
                found |= bad if name == argument else {}
            case _ if name == argument:
                found[name] = bad
            case _ if parameter.default is parameter.empty or name == "validate_only":
                found[name] = GOOD.get(f"{call.__name__}.{name}", GOOD.get(name))
    first = [found.pop("timestamp")] if pairs and "timestamp" in found else []
    return (*first, *pairs), found


async def outcome(call: Callable[..., Any], argument: str, bad: Any) -> str:
    """What is wrong with how it was refused; empty when nothing is."""
    positional, named = arguments_of(call, argument, bad)
    try:
        found = call(*positional, **named)
        if inspect.isawaitable(found):
            found = await found
        elif inspect.isgenerator(found):
            found = next(found, "nothing")
    except REFUSALS as error:
        return "" if "in no group" not in str(error) else f"it was looked at too late: {shown(error)}"
    except Exception as other:  # noqa: BLE001 (it is looked at)
        return f"it raised {shown(other)}"
    return f"it gave {shown(found)}"


async def complaints(door: type, servers: str) -> dict[str, str]:
    """Of all calls of the door with all bad values."""
    found: dict[str, str] = {}
    made = door(
        servers, **({"default_api_timeout_ms": 5_000} if door is not Producer and door is not AsyncProducer else {})
    )
    try:
        for name, arguments in DOORS[door].items():
            call = getattr(made, name) if name != "__init__" else making(door, servers)
            for argument, values in arguments.items():
                for bad in values:
                    told = await outcome(call, argument, bad)
                    if told:
                        found[f"{name}({argument}={shown(bad, 60)})"] = told
    finally:
        if inspect.isawaitable(closing := made.close()):
            await closing
    return found


def making(door: type, servers: str) -> Callable[..., Any]:
    def make(*args: Any, **named: Any) -> Any:
        made = door(*args, **{"bootstrap_servers": servers, **named})
        return close_then_tell(made)

    make.__signature__ = inspect.signature(door).replace(  # type: ignore[attr-defined]
        parameters=[
            parameter.replace(
                default=None
                if parameter.default is parameter.empty and parameter.kind in (0, 1, 3)
                else parameter.default
            )
            for parameter in inspect.signature(door).parameters.values()
        ]
    )
    return make


def close_then_tell(made: Any) -> Any:
    closing = made.close()
    return closing if inspect.isawaitable(closing) else "made"


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_what_an_argument_cannot_be_is_refused(door: type, servers: str) -> None:
    assert asyncio.run(complaints(door, servers)) == {}
    with Producer(servers, linger_ms=0) as producer, Admin(servers) as admin:
        assert producer.send("t", b"fine").exception(scaled(20)) is None
        assert [topic.name for topic in admin.list_topics()] == ["t"]


@pytest.mark.parametrize("call", DATA, ids=lambda call: call.__name__)
def test_what_an_argument_of_ray_data_cannot_be_is_refused(call: Callable[..., Any], servers: str) -> None:
    assert set(inspect.signature(call).parameters) == set(DATA[call])
    found: dict[str, str] = {}
    for argument, values in DATA[call].items():
        for bad in values:
            first = {"topic": "t", "bootstrap_servers": servers}
            if call is data.stream:
                first["group"] = "g"
            if call is data.write:
                first["dataset"] = None
            given = {**first, **(bad if argument == "config" else {argument: bad})}
            told = wrong(partial(call, **given), (*REFUSALS, ValueError))
            if told:
                found[f"{argument}={shown(bad, 60)}"] = told
    assert found == {}


def wrong(call: Callable[[], object], refusals: tuple[type[Exception], ...]) -> str:
    try:
        return f"it gave {shown(call())}"
    except refusals:
        return ""
    except Exception as other:  # noqa: BLE001 (it is looked at)
        return f"it raised {shown(other)}"


T0 = {"topic": "t", "partition": 0}
PAIRS = {"partitions": [("t", 0)]}
CLOSED: Mapping[type, Mapping[str, Mapping[str, Any]]] = {
    Producer: {
        "send": {"topic": "t"},
        "send_batch": {"topic": "t", "values": [b""]},
        "partitions_for": {"topic": "new"},
    },
    Consumer: {
        "poll": {},
        "poll_batches": {},
        "poll_columns": {},
        "iterate": {},
        "subscribe": {"topics": "t"},
        "partitions_for": {"topic": "t"},
        "position": T0,
        "seek": {**T0, "offset": 0},
        "assign": PAIRS,
        "end_offsets": PAIRS,
    },
    Admin: {
        "list_topics": {},
        "describe_cluster": {},
        "list_groups": {},
        "list_offsets": {"at": {("t", 0): -1}},
        "describe_groups": {"names": ["g"]},
        "delete_topics": {"names": ["t"]},
    },
}


@pytest.mark.parametrize("door", CLOSED, ids=lambda door: door.__name__)
def test_a_client_that_is_closed_says_so(door: type, servers: str) -> None:
    made = door(servers)
    made.close()
    made.close()
    for name, arguments in CLOSED[door].items():
        with pytest.raises(RaylogError, match="closed"):
            used(getattr(made, name)(**arguments))


def used(found: Any) -> None:
    if inspect.isgenerator(found):
        next(found)
