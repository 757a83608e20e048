"""◆ What a user gives to a call of a client: checked at the call, so that nothing is taken for something else.

Raises InvalidRequest with the argument's name, unless a call says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from math import isfinite
from numbers import Real
from typing import Any, TypeVar

from raylog.client.arguments.record_values import partition_index, whole_number
from raylog.client.config.texts import INT16_MAX, INT32_MAX, INT64_MAX, not_sendable
from raylog.client.requests.admin_requests import NewTopic
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.protocol.errors import InvalidGroupId, InvalidReplicaAssignment, InvalidRequest
from raylog.protocol.ids import LeaderEpoch, Offset, PartitionIndex, TopicName, TopicPartition
from raylog.protocol.texts import safe_text

T = TypeVar("T")

_LISTENS = ("on_assigned", "on_revoked", "on_lost")


def to_partitions(partitions: Iterable[tuple[str, int]]) -> list[TopicPartition]:
    """Plain pairs as the type that has their names. Raises InvalidTopic and InvalidPartitions, too."""
    return [_partition(pair) for pair in several("partitions", partitions)]


def _partition(pair: Any) -> TopicPartition:
    if isinstance(pair, TopicPartition):
        return pair
    try:
        if isinstance(pair, str | bytes):
            raise TypeError
        topic, partition = pair
    except (TypeError, ValueError):
        raise InvalidRequest(f"partitions: {pair!r} is no pair of a topic and a partition") from None
    check_topic_name(topic)
    return TopicPartition(TopicName(topic), PartitionIndex(partition_index(partition, topic)))


def by_partition(name: str, given: Mapping[tuple[str, int], T]) -> dict[TopicPartition, T]:
    """A mapping from plain pairs. Raises as :func:`to_partitions`."""
    return dict(zip(to_partitions(mapping(name, given)), given.values(), strict=True))


def mapping(name: str, given: Any) -> Mapping[Any, Any]:
    """A dict, or what is like one."""
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"{name}: a {type(given).__name__} is no mapping")
    return given


def several(name: str, given: Iterable[T]) -> list[T]:
    """The items of a list, or of whatever has some; one text, of which each letter would be taken for one, is none."""
    if isinstance(given, str | bytes | bytearray) or not isinstance(given, Iterable):
        raise InvalidRequest(f"{name}: {given!r} is one {type(given).__name__}; give a list")
    return list(given)


def texts(name: str, given: Iterable[str]) -> list[str]:
    """Several texts, none empty and none twice."""
    found = several(name, given)
    for item in found:
        text(name, item)
    if len(set(found)) < len(found):
        raise InvalidRequest(f"{name}: {next(item for item in found if found.count(item) > 1)!r} is there twice")
    return found


def leavers(members: Iterable[str], instances: Iterable[str]) -> tuple[list[str], list[str]]:
    """Whom to remove from a group: at least one, and none by a name that stands for two."""
    by_id, by_name = texts("members", members), texts("instances", instances)
    if not by_id and not by_name:
        raise InvalidRequest("members and instances are both empty: name who is to be removed")
    if both := set(by_id) & set(by_name):
        raise InvalidRequest(f"{min(both)!r} is in members and in instances: leave it out of one")
    return by_id, by_name


def text(name: str, given: Any, *, empty: bool = False) -> str:
    """A str that can be sent; ``empty``: also an empty one."""
    if not isinstance(given, str) or not (given or empty):
        raise InvalidRequest(f"{name}={given!r}: give a text")
    complaint = not_sendable(given)
    if complaint:
        raise InvalidRequest(f"{name}={safe_text(given, 100)!r} {complaint}")
    return given


def group_id(given: str) -> str:
    """Raises InvalidGroupId."""
    if not isinstance(given, str) or not given:
        raise InvalidGroupId(f"group {given!r}: a group has a name, a str that is not empty")
    complaint = not_sendable(given)
    if complaint:
        raise InvalidGroupId(f"group {safe_text(given, 100)!r}: its name {complaint}")
    return given


def number(name: str, given: Any, low: int = 0, high: int = INT32_MAX) -> int:
    """A whole number of any library's, which True is not."""
    found = whole_number(given)
    if found is None or not low <= found <= high:
        raise InvalidRequest(f"{name}={given!r}: give a whole number from {low} to {high}")
    return found


def offset(name: str, given: Any, low: int = 0) -> int:
    """An offset, or a time in ms."""
    return number(name, given, low, INT64_MAX)


def offsets(name: str, given: Mapping[tuple[str, int], int], low: int = 0) -> dict[TopicPartition, int]:
    """Offsets, or times in ms, of partitions."""
    return {tp: offset(f"{tp}: {name}", at, low) for tp, at in by_partition(name, given).items()}


def committed_offsets(
    given: Mapping[tuple[str, int], int | CommittedOffset],
) -> dict[TopicPartition, CommittedOffset]:
    """Offsets alone, or with what is kept beside them."""
    return {tp: _committed_offset(tp, at) for tp, at in by_partition("offsets", given).items()}


def _committed_offset(tp: TopicPartition, at: int | CommittedOffset) -> CommittedOffset:
    if not isinstance(at, CommittedOffset):
        return CommittedOffset(Offset(offset(f"{tp}: offset", at)))
    text(f"{tp}: metadata", at.metadata, empty=True)
    return at._replace(
        offset=Offset(offset(f"{tp}: offset", at.offset)),
        leader_epoch=LeaderEpoch(number(f"{tp}: leader_epoch", at.leader_epoch, -1)),
    )


def flag(name: str, given: Any) -> bool:
    """True or False, for "false" is true."""
    if not isinstance(given, bool):
        raise InvalidRequest(f"{name}={given!r}: give True or False")
    return given


def wait(name: str, given: Any) -> float:
    """How long to wait, in whichever unit, or how much of something: a number from 0 on, not without an end."""
    if isinstance(given, bool) or not isinstance(given, Real) or not isfinite(given) or given < 0:
        raise InvalidRequest(f"{name}={given!r}: give a number from 0 on")
    return float(given)


def wait_or_none(name: str, given: Any) -> float | None:
    """As :func:`wait`; None: as long as it takes."""
    return None if given is None else wait(name, given)


def new_topics(given: Iterable[NewTopic]) -> list[NewTopic]:
    """Topics to create, none twice. Which names and numbers are fit, the controller says of each."""
    found = several("topics", given)
    for topic in found:
        if not isinstance(topic, NewTopic):
            raise InvalidRequest(f"topics: {topic!r} is no NewTopic")
    texts("topics", [topic.name for topic in found])
    return [_new_topic(topic) for topic in found]


def _new_topic(topic: NewTopic) -> NewTopic:
    number(f"{topic.name}: partitions", topic.partitions, -INT32_MAX)
    number(f"{topic.name}: replication_factor", topic.replication_factor, -INT16_MAX, INT16_MAX)
    assignments = {
        partition_index(partition, topic.name): broker_ids("assignments", ids)
        for partition, ids in mapping("assignments", topic.assignments).items()
    }
    return topic._replace(configs=setting_texts("configs", topic.configs), assignments=assignments)


def setting_texts(name: str, given: Mapping[str, Any], *, or_none: bool = False) -> dict[str, Any]:
    """Settings by name, from texts, numbers or truths to texts. ``or_none``: or None, which takes an override away."""
    found: dict[str, Any] = {}
    for key, value in mapping(name, given).items():
        text(f"{name}: the name of a setting", key)
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, Real):
            value = str(value)
        elif not (isinstance(value, str) or (value is None and or_none)):
            raise InvalidRequest(f"{name}: {key}={value!r}: give a str, a number, True or False")
        found[key] = None if value is None else text(f"{name}: {key}", value, empty=True)
    return found


def broker_ids(name: str, given: Iterable[int]) -> list[int]:
    """Brokers for replicas, at least one, none twice. Raises InvalidReplicaAssignment, as the controller would."""
    found = [number(name, broker) for broker in several(name, given)]
    if not found or len(set(found)) < len(found):
        raise InvalidReplicaAssignment(f"{name}={found!r}: name at least one broker, and none twice")
    return found


def does_nothing_yet(function: object) -> bool:
    """Whether a call of it only makes a coroutine or a generator: nobody here waits for that."""
    return iscoroutinefunction(function) or isgeneratorfunction(function) or isasyncgenfunction(function)


def check_called_listener(given: object) -> None:
    """A RebalanceListener whose methods are called, and not awaited."""
    for name in _LISTENS:
        if does_nothing_yet(getattr(given, name, None)):
            raise InvalidRequest(f"listener: {name} is a coroutine or a generator, which only an AsyncConsumer awaits")


def check_listener(given: object) -> None:
    """A RebalanceListener, or None."""
    lacking = [name for name in _LISTENS if not hasattr(given, name)]
    if given is not None and lacking:
        raise InvalidRequest(f"listener: a {type(given).__name__} has no {lacking[0]}; see RebalanceListener")


def interceptors_with(hook: str, given: Iterable[T]) -> list[T]:
    """Objects that have the hook."""
    found = several("interceptors", given)
    for interceptor in found:
        if not hasattr(interceptor, hook):
            raise InvalidRequest(f"interceptors: a {type(interceptor).__name__} has no {hook}")
    return found
