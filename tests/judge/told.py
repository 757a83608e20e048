"""An answer as a plain tree that can be compared and kept.

It is without what a broker is free in, where that is as it must be (``plausible``), with what it chose as
``{"$": "topic id t"}``, with ``now`` for the time at which it was asked, and with ``#`` for the number of the sequence.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any
from uuid import UUID

from crc32c import crc32c

from judge.bases import GROUP
from judge.plausible import NOWHERE, Asked, is_plausible
from judge.steps import Ref, RefKind

__all__ = ["MARKER", "Known", "identity", "told"]

UNORDERED = {
    "topics", "brokers", "groups", "members", "configs", "synonyms", "results", "responses", "partitions", "isr_nodes",
    "api_keys", "partition_indexes", "eligible_leader_replicas", "coordinators", "node_endpoints",
    "replica_election_results", "partition_result", "partition_responses", "active_producers",
    "supported_features", "finalized_features",
}  # fmt: skip
"""Arrays whose order says nothing."""
IDENTITIES = (
    "name", "topic", "topic_id", "topic_name", "partition_index", "partition", "partition_id", "index", "group_id",
    "member_id", "group_instance_id", "node_id", "resource_type", "resource_name", "api_key", "key", "producer_id",
    "source",
)  # fmt: skip
"""Fields that say which item of an array it is."""
LISTED_GROUP = "ListedGroup"
"""The type of an item of ListGroups' answer, at each version."""
MARKER = "settled"
"""What the names of topics begin with by which askers see that changes are told."""
NUMBER = re.compile(r"\d{5,}")
HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_FIELDS = (
    "base_offset", "length", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta", "base_timestamp",
    "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "count",
)  # fmt: skip
LENGTH_END, CRC_END = 12, 21
MADE_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
LONGEST = 1_000


class Known:
    """What a broker chose in a sequence, and its names: by the client that was given it, and the how-many-eth it is."""

    def __init__(self, topic_ids: Mapping[str, UUID], asked: Asked = NOWHERE) -> None:
        """``topic_ids``: of what every sequence finds; ``asked``: where, when and what."""
        self.asked = asked
        self.last: dict[Ref, Any] = {}
        self.topic_ids = dict(topic_ids)
        """Each topic's last id."""
        self._topics = {id_: name for name, id_ in topic_ids.items()}
        self._names: dict[tuple[RefKind, Any], str] = {}
        self._counts: Counter[tuple[RefKind, str]] = Counter()

    def learn(self, client: str, answer: Any) -> None:
        """Take in an answer to ``client``."""
        if member := getattr(answer, "member_id", ""):
            self._is(RefKind.MEMBER_ID, client, member)
        if getattr(answer, "producer_id", -1) >= 0 and hasattr(answer, "producer_epoch"):
            self._is(RefKind.PRODUCER_ID, client, answer.producer_id)
            self.last[Ref(RefKind.PRODUCER_EPOCH, client)] = answer.producer_epoch
        if getattr(answer, "session_id", 0):
            self._is(RefKind.SESSION_ID, client, answer.session_id)
        if getattr(answer, "generation_id", -1) >= 0:
            self.last[Ref(RefKind.GENERATION, client)] = answer.generation_id
        for topic in getattr(answer, "topics", None) or ():
            self.learn_topic(getattr(topic, "name", None), getattr(topic, "topic_id", None))
            for part in getattr(topic, "partitions", None) or ():
                if hasattr(part, "offset"):
                    self.last[Ref(RefKind.OFFSET, f"{client}-{part.partition_index}")] = part.offset

    def learn_topic(self, name: str | None, topic_id: UUID | None) -> None:
        """A topic's name and id, both told by the broker."""
        if name and topic_id and topic_id not in self._topics:
            anew = f"{name}, made anew" if name in self.topic_ids else name
            self.topic_ids[name] = topic_id
            self._topics[topic_id] = anew

    def _is(self, kind: RefKind, client: str, value: Any) -> None:
        self.last[Ref(kind, client)] = value
        if (kind, value) not in self._names:
            self._counts[kind, client] += 1
            self._names[kind, value] = f"{kind.value} {client}.{self._counts[kind, client]}"

    def name_of(self, field: str, value: Any) -> str | None:
        """The name of a value that the broker chose; None of any other."""
        match field:
            case "member_id" | "leader" if isinstance(value, str) and MADE_ID.search(value):
                return f"{self._names.get((RefKind.MEMBER_ID, value), 'member id')}, {MADE_ID.sub('…', value)}"
            case "producer_id":
                return self._names.get((RefKind.PRODUCER_ID, value))
            case "session_id":
                return self._names.get((RefKind.SESSION_ID, value))
        return f"topic id {self._topics.get(value, 'of another topic')}" if isinstance(value, UUID) else None


def told(value: Any, number: int, known: Known, field: str = "") -> Any:
    """``value``, of an answer to the sequence of this number, as a tree."""
    if (names := _fields(type(value))) is not None:
        return {
            name: told(getattr(value, name), number, known, name)
            for name in names
            if not is_plausible(name, value, known.asked)
        }
    match value:
        case tuple() | list():
            trees = [told(each, number, known, field) for each in value if _is_ours(each, number)]
            return sorted(trees, key=_order) if len(trees) > 1 and field in UNORDERED else trees
        case bytes() | bytearray() | memoryview() if field == "records":
            return list(_batches(bytes(value), known))
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case Enum():
            return value.name
        case timedelta():
            return value // timedelta(milliseconds=1)
        case datetime():
            return "now" if known.asked.is_now(round(value.timestamp() * 1000)) else "a time"
        case int() if known.asked.is_now(value):
            return "now"
    if name := known.name_of(field, value):
        return {"$": _without(number, name)}
    if not isinstance(value, str):
        return value
    text = _without(number, value)
    return text if len(text) <= LONGEST else f"{text[:20]}… of {len(text)}"


def _without(number: int, text: str) -> str:
    """The text with ``#`` for the number, which may be part of another."""
    given = str(number)
    return NUMBER.sub(lambda found: "#" if found[0] == given else found[0], text) if given in text else text


@cache
def _fields(kind: Any) -> tuple[str, ...] | None:
    """The fields of a structure; None for any other type."""
    return tuple(each.name for each in fields(kind)) if is_dataclass(kind) else None


def _batches(data: bytes, known: Known) -> Iterator[Any]:
    """Each batch by the fields of its header, and what is behind the last whole one."""
    at = 0
    while len(data) - at >= HEADER.size:
        values = dict(zip(HEADER_FIELDS, HEADER.unpack_from(data, at), strict=True))
        end = at + LENGTH_END + values.pop("length")
        if not at + HEADER.size <= end <= len(data):
            break
        values["crc"] = "right" if values["crc"] == crc32c(data[at + CRC_END : end]) else "wrong"
        values |= {each: "now" for each in ("base_timestamp", "max_timestamp") if known.asked.is_now(values[each])}
        name = known.name_of("producer_id", values["producer_id"])
        values["producer_id"] = {"$": name} if name else values["producer_id"]
        yield {**values, "bytes": data[at + HEADER.size : end].hex()}
        at = end
    if at < len(data):
        yield data[at:].hex()


def identity(tree: Any) -> tuple[Any, ...]:
    """What of an array's item says which one it is."""
    return tuple((name, tree[name]) for name in IDENTITIES if name in tree) if isinstance(tree, dict) else ()


def _order(tree: Any) -> tuple[str, str]:
    return json.dumps(identity(tree), sort_keys=True), json.dumps(tree, sort_keys=True)


def _is_ours(item: Any, number: int) -> bool:
    """Not what other sequences made, nor what Kafka keeps for itself, in lists of all.

    A group without a number in its name that is listed may be of a sequence that is asked at the same time; one that
    is described was asked for.
    """
    if type(item).__name__ == LISTED_GROUP:
        return item.group_id == GROUP or str(number) in NUMBER.findall(item.group_id)
    for field in ("name", "topic", "topic_name", "group_id"):
        name = getattr(item, field, None)
        if isinstance(name, str):
            found = NUMBER.search(name)
            return not (name.startswith("__") or name.startswith(MARKER) or (found and found[0] != str(number)))
    return True
