"""Asks one broker, and tells its answers as plain values that can be compared and kept.

An answer is a tree as a request's is, without what a broker is free in (``VOLATILE``), and with what it chooses as
``{"$": "topic id t"}``. In its place stands ``closed`` where the broker ended the connection, ``nothing`` where it
answered the next request instead, ``waits`` where it answered nothing in ANSWER_S, ``unreadable`` where kio cannot read
it.
"""

from __future__ import annotations

import itertools
import json
import select
import socket
import struct
from copy import deepcopy
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from judge.bases import BATCH, GROUP, PARTITION_0, TIMEOUT_MS, TOPICS, ask, make
from judge.steps import Batch, Ref, RefKind, Sequence, Step, Tree, encode
from kit.waiting import wait_until
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import TimestampMs
from raylog.protocol.messages import decode_response
from raylog.protocol.records import Record, encode_batch

__all__ = ["VOLATILE", "Asker"]

ANSWER_S = 5.0
AT_ONCE_S = 0.05
SETTLE_S = 20.0
VOLATILE = {
    "throttle_time", "error_message", "message", "cluster_id", "host", "port", "log_dir", "client_host",
    "documentation", "total_bytes", "usable_bytes", "last_timestamp", "append_time", "log_append_time",
}  # fmt: skip
"""Fields of answers that are not compared: times, texts for people, and what machines have."""
API_VERSIONS, METADATA, PRODUCE, OFFSET_COMMIT, ALTER_CONFIGS, DESCRIBE_CONFIGS = 18, 3, 0, 8, 44, 32
FIND_COORDINATOR, DESCRIBE_GROUPS, JOIN_GROUP, LEAVE_GROUP = 10, 15, 11, 13
UNORDERED = {
    "topics", "brokers", "groups", "members", "configs", "synonyms", "results", "responses", "partitions", "isr_nodes",
    "api_keys", "partition_indexes", "eligible_leader_replicas", "coordinators",
}  # fmt: skip
"""Arrays whose order says nothing."""
MARKER = "settled"
FIRST_NUMBER = 10_000
"""So that no other number in an answer is that of a sequence."""
NOW = TimestampMs(1_700_000_000_000)
NOBODY = UUID(int=7)
Answer = Any


class Asker:
    """Asks the broker at ``address``, which nobody asked yet; sequence after sequence."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._markers = itertools.count(60_000)
        self._plain = _Wire(address)
        self._topic_ids: dict[str, UUID] = {"absent": NOBODY}
        self._number = 0
        self._known: dict[Ref, Any] = {}
        self._clients: dict[str, _Wire] = {}
        self._waiting: dict[str, tuple[int, Step]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hang_up()
        self._plain.close()

    def prepare(self) -> None:
        """Make what every sequence finds."""
        for name, count in {**TOPICS, MARKER: 1}.items():
            self._plain.answer_to(make(name, count))
        for name, count in TOPICS.items():
            wait_until(lambda name=name, count=count: self._leads(name, count), SETTLE_S, f"{name} has leaders")  # type: ignore[misc]
            data = [{"index": index, "records": BATCH} for index in range(count)]
            produced = ask(PRODUCE, 9, acks=-1, timeout=TIMEOUT_MS, topic_data=[{"name": name, "partition_data": data}])
            self._plain.answer_to(produced)
        wait_until(self._coordinates, SETTLE_S, "the broker coordinates groups")
        part = {**PARTITION_0, "committed_offset": 2, "committed_metadata": ""}
        self._plain.answer_to(
            ask(
                OFFSET_COMMIT,
                8,
                group_id=GROUP,
                generation_id_or_member_epoch=-1,
                topics=[{"name": "t", "partitions": [part]}],
            )
        )
        self._settle()

    def run(self, number: int, sequence: Sequence) -> list[Answer]:
        """The answers to the steps, in order. ``number`` is what ``#`` stands for."""
        self._number, self._known = FIRST_NUMBER + number, {}
        answers: list[Answer] = [None] * len(sequence.steps)
        try:
            for index, step in enumerate(sequence.steps):
                self._collect(step.client, answers)
                wire = self._client(step.client)
                try:
                    wire.send(step, self._meant(step.tree))
                except OSError:
                    answers[index] = "closed"
                    self._drop(step.client)
                    continue
                self._waiting[step.client] = index, step
                if not step.waits or wire.has_answer():
                    self._collect(step.client, answers)
                    if step.settles:
                        self._settle()
            for client in tuple(self._waiting):
                self._collect(client, answers)
        finally:
            self._hang_up()
            self._leave(sequence, answers)
        return [self._told(answer) for answer in answers]

    def _leave(self, sequence: Sequence, answers: list[Answer]) -> None:
        """Members of this sequence keep nobody waiting who joins a group of the same name later."""
        for step, answer in zip(sequence.steps, answers, strict=True):
            if step.api == JOIN_GROUP and getattr(answer, "member_id", ""):
                group = self._meant(step.tree["group_id"])
                self._plain.answer_to(ask(LEAVE_GROUP, 2, group_id=group, member_id=answer.member_id))

    # --- connections

    def _client(self, name: str) -> _Wire:
        if name not in self._clients:
            self._clients[name] = _Wire(self._address)
        return self._clients[name]

    def _drop(self, client: str) -> None:
        self._clients.pop(client).close()

    def _collect(self, client: str, answers: list[Answer]) -> None:
        if client not in self._waiting:
            return
        index, step = self._waiting.pop(client)
        answer = answers[index] = self._clients[client].receive(step)
        if isinstance(answer, str) and answer != "nothing":
            self._drop(client)
        self._learn(client, step, answer)

    def _hang_up(self) -> None:
        for wire in self._clients.values():
            wire.close()
        self._clients, self._waiting = {}, {}

    # --- what the broker chose

    def _learn(self, client: str, step: Step, answer: Answer) -> None:
        if member := getattr(answer, "member_id", ""):
            self._known[Ref(RefKind.MEMBER_ID, client)] = member
        if getattr(answer, "producer_id", -1) >= 0 and hasattr(answer, "producer_epoch"):
            self._known[Ref(RefKind.PRODUCER_ID, client)] = answer.producer_id
            self._known[Ref(RefKind.PRODUCER_EPOCH, client)] = answer.producer_epoch
        if getattr(answer, "session_id", 0):
            self._known[Ref(RefKind.SESSION_ID, client)] = answer.session_id
        if getattr(answer, "generation_id", -1) >= 0:
            self._known[Ref(RefKind.GENERATION, client)] = answer.generation_id

    def _meant(self, value: Tree) -> Tree:
        """A request's value as this broker is to get it."""
        match value:
            case Ref(RefKind.TOPIC_ID, name):
                return self._topic_id(self._numbered(name))
            case Ref():
                known = self._known.get(value._replace(plus=0), "" if value.kind is RefKind.MEMBER_ID else -1)
                return known + value.plus if value.plus else known
            case Batch():
                return self._bytes_of(value)
            case dict():
                return {key: self._meant(each) for key, each in value.items()}
            case list():
                return [self._meant(each) for each in value]
            case str():
                return self._numbered(value)
        return value

    def _bytes_of(self, batch: Batch) -> bytes:
        records = [Record(b"v%d" % (batch.sequence + n), timestamp=NOW) for n in range(batch.count)]
        if not batch.producer:
            return encode_batch(records)
        return encode_batch(
            records,
            producer_id=self._known.get(Ref(RefKind.PRODUCER_ID, batch.producer), 1_000_000),
            producer_epoch=self._known.get(Ref(RefKind.PRODUCER_EPOCH, batch.producer), 0) + batch.epoch_plus,
            base_sequence=batch.sequence,
            transactional=batch.transactional,
        )

    def _numbered(self, text: str) -> str:
        return text.replace("#", str(self._number))

    def _topic_id(self, name: str) -> UUID:
        """As the metadata tells it; of nobody for an absent topic. Asked once, unless the topic was made anew."""
        if name not in self._topic_ids or name.endswith(str(self._number)):
            answer = self._plain.answer_to(ask(METADATA, 12, topics=[{"name": name, "topic_id": None}]))
            found = [topic.topic_id for topic in answer.topics if topic.topic_id]
            if not found:
                return NOBODY
            self._topic_ids[name] = found[0]
        return self._topic_ids[name]

    # --- answers

    def _told(self, value: Any, name: str = "") -> Answer:
        if is_dataclass(value):
            return {
                field.name: self._told(getattr(value, field.name), field.name)
                for field in fields(value)
                if field.name not in VOLATILE
            }
        match value:
            case tuple():
                told = [self._told(each) for each in value if self._is_ours(each)]
                return sorted(told, key=lambda each: json.dumps(each, sort_keys=True)) if name in UNORDERED else told
            case bytes() | bytearray() | memoryview():
                return bytes(value).hex()
            case Enum():
                return value.name
            case timedelta():
                return value // timedelta(milliseconds=1)
            case datetime():
                return "a time"
            case UUID():
                return {"$": f"topic id {self._name_of(value)}"}
            case str() if str(self._number) in value:
                return value.replace(str(self._number), "#")
        for ref, known in self._known.items():
            if value == known and type(value) is type(known) and (value or name == "producer_id") and _fits(ref, name):
                return {"$": f"{ref.kind.value} {ref.name}"}
        return value

    def _name_of(self, topic_id: UUID) -> str:
        return next((name for name, known in self._topic_ids.items() if known == topic_id), "of another topic")

    def _is_ours(self, each: Any) -> bool:
        """Not what other sequences left, nor what Kafka keeps for itself, in lists of all."""
        match type(each).__name__:
            case "ListedGroup":
                return _ours(each.group_id, self._number)
            case "MetadataResponseTopic":
                return each.name is None or _ours(each.name, self._number)
        return True

    # --- that all is known everywhere

    def _settle(self) -> None:
        """What was changed before is told after: metadata are one log, or one state, of which this is the last."""
        mark = str(next(self._markers))
        entry = {"name": "retention.ms", "value": mark, "config_operation": 0}
        marker = {"resource_type": 2, "resource_name": MARKER}
        self._plain.answer_to(ask(ALTER_CONFIGS, 1, resources=[{**marker, "configs": [entry]}]))
        asked = ask(DESCRIBE_CONFIGS, 4, resources=[{**marker, "configuration_keys": ["retention.ms"]}])

        def is_told() -> bool:
            [result] = self._plain.answer_to(asked).results
            return bool(result.configs) and result.configs[0].value == mark

        wait_until(is_told, SETTLE_S, "a change is told", interval_s=0.002)

    def _leads(self, name: str, count: int) -> bool:
        [topic] = self._plain.answer_to(ask(METADATA, 12, topics=[{"name": name, "topic_id": None}])).topics
        self._topic_ids[name] = topic.topic_id
        return len(topic.partitions) == count and all(part.leader_id >= 0 for part in topic.partitions)

    def _coordinates(self) -> bool:
        """Kafka makes the topic for its groups when a coordinator is looked for first, and loads it."""
        [found] = self._plain.answer_to(ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["g"])).coordinators
        [described] = self._plain.answer_to(ask(DESCRIBE_GROUPS, 5, groups=["g"])).groups
        return not found.error_code.value and not described.error_code.value


def _fits(ref: Ref, name: str) -> bool:
    match ref.kind:
        case RefKind.MEMBER_ID:
            return name in ("member_id", "leader")
        case RefKind.PRODUCER_ID:
            return name == "producer_id"
        case RefKind.SESSION_ID:
            return name == "session_id"
    return False


def _ours(name: str, number: int) -> bool:
    if name.startswith("__") or name == MARKER:
        return False
    digits = name.lstrip("abcdefghijklmnopqrstuvwxyz")
    return not digits.isdigit() or digits == str(number)


class _Wire:
    """One connection. Behind each request goes one that is always answered, so that one sees at once when there is no
    answer to the first."""

    PROBE = ask(API_VERSIONS, 0)

    def __init__(self, address: tuple[str, int]) -> None:
        self._sock = socket.create_connection(address, ANSWER_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._numbers = itertools.count(1)
        self._sent = 0

    def close(self) -> None:
        self._sock.close()

    def answer_to(self, step: Step) -> Any:
        self.send(step, deepcopy(step.tree))
        answer = self.receive(step)
        assert not isinstance(answer, str), f"API {step.api}: {answer}"
        return answer

    def send(self, step: Step, tree: Tree) -> None:
        self._sent = next(self._numbers)
        self._sock.sendall(encode(step, tree, self._sent) + encode(self.PROBE, self.PROBE.tree, next(self._numbers)))

    def has_answer(self) -> bool:
        """Whether an answer comes at once, or the request waits for others."""
        return bool(select.select([self._sock], [], [], AT_ONCE_S)[0])

    def receive(self, step: Step) -> Any:
        try:
            frame = self._frame()
            if _correlation(frame) != self._sent:
                return "nothing"
            self._frame()  # of the probe
        except TimeoutError:
            return "waits"
        except OSError:
            return "closed"
        try:
            return decode_response(step.api, _version_of(step, frame), frame)[1]
        except (RaylogError, ValueError) as error:
            return f"unreadable: {error}"

    def _frame(self) -> bytes:
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            more = self._sock.recv(count - len(data))
            if not more:
                raise ConnectionResetError("the broker ended the connection")
            data += more
        return bytes(data)


def _correlation(frame: bytes) -> int:
    return int.from_bytes(frame[:4], "big")


def _version_of(step: Step, frame: bytes) -> int:
    """ApiVersions is answered at version 0 where its version is not known (KIP-511)."""
    return 0 if step.api == API_VERSIONS and frame[4:6] == b"\0\x23" else step.version
