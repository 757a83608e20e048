"""Asks one broker, sequence after sequence.

In the place of an answer stands ``closed`` where the broker ended the connection, ``nothing`` where it answered the
next request instead, ``waits`` where it had not answered when the client gave up, ``unreadable`` where kio cannot read
it. ``["late", answer]`` came after later requests of other clients.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from judge.bases import BATCH, GROUP, TIMEOUT_MS, TOPICS, ask, make
from judge.plausible import Asked
from judge.steps import LATER, NOT_UTF8, NOT_UTF8_BYTES, Batch, Compressed, Ref, RefKind, Sequence, Step, Tree
from judge.told import MARKER, Known, told
from judge.wire import ANSWER_S, PATIENT_S, PROBE, Wire
from kit.waiting import wait_until
from raylog.protocol.ids import TimestampMs
from raylog.protocol.records import Codec, Record, encode_batch, frame_batch

__all__ = ["Answers", "Asker", "compressed"]

AT_ONCE_S = 0.3
"""What does not come by then waits for others, where nobody has told before; on a busy machine ROUNDS times as long as
another request takes."""
ROUNDS = 4
SURELY_S = 5.0
"""For an answer that came at once from Kafka."""
LATER_MS = 8_000
"""After which the clock of any sequence has decided."""
LATER_S = 15.0
"""For ours to answer as Kafka did by then."""
SETTLE_S = 20.0
CLEAR_EACH = 100
METADATA, PRODUCE, FETCH, OFFSET_COMMIT, INCREMENTAL, DESCRIBE_CONFIGS, CREATE_TOPICS = 3, 0, 1, 8, 44, 32, 19
LIST_GROUPS, FIND_COORDINATOR, DESCRIBE_GROUPS, JOIN_GROUP, LEAVE_GROUP, DELETE_GROUPS, DELETE_TOPICS = (
    16,
    10,
    15,
    11,
    13,
    42,
    20,
)
FIRST_NUMBER = 10_000
"""So that no other number in an answer is that of a sequence."""
NOW = TimestampMs(1_700_000_000_000)
NOBODY = UUID(int=7)
LONG_POLL = ask(
    FETCH, 11, replica_id=-1, max_wait=LATER_MS, min_bytes=1 << 20, max_bytes=1 << 20, session_epoch=-1,
    topics=[{"topic": "t", "partitions": [{
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": 3, "log_start_offset": -1, "partition_max_bytes": 1,
    }]}],
)  # fmt: skip
"""At the end of a topic that nobody writes to: it is answered when its time is over."""
Answers = list[Any]


class Asker:
    """Asks the broker at ``address``. Several may ask it side by side, in lanes, once one has prepared it."""

    def __init__(self, address: tuple[str, int], lane: int = 0) -> None:
        self._address = address
        self._marker = f"{MARKER}{lane}"
        self._marks = itertools.count(60_000)
        self._plain = Wire(address)
        self._topic_ids = {"absent": NOBODY}
        self._topics: list[str] = []
        """That sequences made, and nobody needs any more."""
        self._number = 0
        self._known = Known({})
        self._expected: Answers | None = None
        self._clients: dict[str, Wire] = {}
        self._waiting: dict[str, tuple[int, Step]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hang_up()
        self._plain.close()

    def prepare(self, lanes: int = 1) -> None:
        """Make what every sequence finds, at a broker that nobody has asked yet."""
        for name, count in {**TOPICS, **{f"{MARKER}{lane}": 1 for lane in range(lanes)}}.items():
            self._plain.answer_to(make(name, count))
        wait_until(lambda: self._leads(self._marker, 1), SETTLE_S, "topics have leaders")
        self._settle()
        for name, count in TOPICS.items():
            data = [{"index": index, "records": BATCH} for index in range(count)]
            produced = ask(PRODUCE, 9, acks=-1, timeout=TIMEOUT_MS, topic_data=[{"name": name, "partition_data": data}])
            [written] = self._plain.answer_to(produced).responses
            assert not any(part.error_code.value for part in written.partition_responses), written
        wait_until(self._coordinates, SETTLE_S, "a coordinator")
        self._commit(2, GROUP)
        self._settle()

    def look(self) -> None:
        """Learn what every sequence finds."""
        for name, count in TOPICS.items():
            assert self._leads(name, count)

    def run(self, number: int, sequence: Sequence, expected: Answers | None = None) -> Answers:
        """The answers to the steps, in order. ``number`` is what ``#`` stands for; ``expected``: what Kafka answered,
        which tells how long to wait."""
        self._number, self._known, self._expected = FIRST_NUMBER + number, Known(self._topic_ids), expected
        found: Answers = [None] * len(sequence.steps)
        late: set[int] = set()
        try:
            for index, step in enumerate(sequence.steps):
                self._collect(step.client, found)
                if step.client == LATER:
                    found[index] = self._later(step, expected[index] if expected else None)
                    continue
                self._waiting[step.client] = index, step
                if step.api in (DESCRIBE_GROUPS, LIST_GROUPS):
                    self._commit(0, self._marker)
                try:
                    self._client(step).send(step, self._meant(step.tree))
                except OSError:
                    self._answered(step.client, "closed", found)
                    continue
                if step.waits and not self._comes(step.client, "late"):
                    late.add(index)
                    continue
                self._collect(step.client, found)
                if step.settles:
                    self._settle()
            for client in tuple(self._waiting):
                self._collect(client, found)
        finally:
            self._hang_up()
        answers = [self._told(step, answer) for step, answer in zip(sequence.steps, found, strict=True)]
        self._clear(sequence.steps, found)
        return [
            ["late", answer] if index in late and answer != "waits" else answer for index, answer in enumerate(answers)
        ]

    def _told(self, step: Step, answer: Any) -> Any:
        self._known.asked = Asked(self._address, round(time.time() * 1000), step.tree)
        return told(answer, self._number, self._known)

    def _later(self, step: Step, expected: Any) -> Any:
        """Kafka's answer when all that a clock decides is over; ours when it is as Kafka's, or does not become so."""
        answer: Any = None

        def is_kafkas() -> bool:
            nonlocal answer
            self._commit(0, self._marker)
            answer = self._plain.answer_to(step._replace(tree=self._meant(step.tree)))
            return self._expected is None or self._told(step, answer) == expected

        if self._expected is None:
            self._plain.answer_to(LONG_POLL)
        with suppress(AssertionError):  # then what it is differs
            wait_until(is_kafkas, LATER_S, "what a clock decides", interval_s=0.1)
        return answer

    # --- connections

    def _client(self, step: Step) -> Wire:
        if step.client not in self._clients:
            self._clients[step.client] = wire = Wire(self._address)
            if step.waits:  # requests of connections that are accepted already must not overtake it
                wire.answer_to(PROBE)
        return self._clients[step.client]

    def _comes(self, client: str, wait: str) -> bool:
        """Whether the answer that the client waits for comes now; ``wait``: what an answer of Kafka's is called that
        did not."""
        index, step = self._waiting[client]
        wire = self._clients[client]
        if self._expected is not None:
            theirs = self._expected[index]
            if theirs != "waits" and not (wait == "late" and isinstance(theirs, list)):
                return wire.has_answer(SURELY_S)
        begun = time.monotonic()
        described = ask(DESCRIBE_GROUPS, 5, groups=[self._meant(step.tree["group_id"])])
        for _ in range(2):  # the broker reads the second after all that came before the first
            self._plain.answer_to(described)
        took_s = time.monotonic() - begun
        return wire.has_answer(max(AT_ONCE_S if self._expected is None else 0.01, took_s * ROUNDS))

    def _collect(self, client: str, found: Answers) -> None:
        if client not in self._waiting:
            return
        index, step = self._waiting[client]
        if step.waits and not self._comes(client, "waits"):
            self._answered(client, "waits", found)
            return
        patience_s = SURELY_S if self._expected and self._expected[index] == "waits" else ANSWER_S
        wire = self._clients[client]
        if self._expected is None and not wire.has_answer(patience_s):
            self._settle()  # a busy broker answers what came before
            if not wire.has_answer(AT_ONCE_S):
                self._answered(client, "waits", found)
                return
        self._answered(client, wire.receive(step, patience_s), found)

    def _answered(self, client: str, answer: Any, found: Answers) -> None:
        index, _ = self._waiting.pop(client)
        found[index] = answer
        if isinstance(answer, str) and answer != "nothing":
            self._clients.pop(client).close()
        self._known.learn(client, answer)

    def _hang_up(self) -> None:
        for wire in self._clients.values():
            wire.close()
        self._clients, self._waiting = {}, {}

    # --- requests

    def _meant(self, value: Tree) -> Tree:
        """A request's value as this broker is to get it."""
        match value:
            case Ref(RefKind.TOPIC_ID, name):
                return self._topic_id(self._numbered(name))
            case Ref():
                given = self._known.last.get(value._replace(plus=0), "" if value.kind is RefKind.MEMBER_ID else -1)
                return given + value.plus if value.plus else given
            case Batch():
                return self._bytes_of(value)
            case Compressed():
                return compressed(value)
            case dict():
                return {key: self._meant(each) for key, each in value.items()}
            case list():
                return [self._meant(each) for each in value]
            case str():
                return self._numbered(value)
        return value

    def _bytes_of(self, batch: Batch) -> bytes:
        records = [Record(b"v%d" % (batch.sequence + n), timestamp=NOW) for n in range(batch.records)]
        if not batch.producer:
            return encode_batch(records)
        last = self._known.last
        return encode_batch(
            records,
            producer_id=last.get(Ref(RefKind.PRODUCER_ID, batch.producer), 1_000_000),
            producer_epoch=last.get(Ref(RefKind.PRODUCER_EPOCH, batch.producer), 0) + batch.epoch_plus,
            base_sequence=batch.sequence,
            transactional=batch.transactional,
        )

    def _numbered(self, text: str) -> str:
        return text.replace("#", str(self._number))

    def _topic_id(self, name: str) -> UUID:
        """As the metadata tells it, else the last one that it told; of nobody for a topic that never was."""
        if name not in self._topic_ids:
            answer = self._plain.answer_to(ask(METADATA, 12, topics=[{"name": name, "topic_id": None}]))
            self._known.learn("", answer)
        return self._known.topic_ids.get(name, NOBODY)

    # --- that sequences do not meet each other

    def _clear(self, steps: Iterable[Step], found: Answers) -> None:
        """What a sequence made under a name that is not its own goes at once, its other topics in bulk."""
        groups, topics = set(), set()
        for step, answer in zip(steps, found, strict=True):
            if step.api not in (CREATE_TOPICS, JOIN_GROUP, OFFSET_COMMIT):
                continue
            values = self._meant(step.tree)
            if step.api == CREATE_TOPICS:
                topics |= {_read(topic["name"]) for topic in values["topics"]}
            if step.api == JOIN_GROUP and (member := getattr(answer, "member_id", "")):
                self._try(LEAVE_GROUP, 2, group_id=_read(values["group_id"]), member_id=member)
            if step.api in (JOIN_GROUP, OFFSET_COMMIT):
                groups.add(_read(values["group_id"]))
        if others := [name for name in groups if not self._is_own(name)]:
            self._try(DELETE_GROUPS, 1, groups_names=others)
        if others := [name for name in topics if not self._is_own(name)]:
            self._try(DELETE_TOPICS, 5, topic_names=others, timeout=TIMEOUT_MS)
            self._settle()
        self._topics += (name for name in topics if self._is_own(name))
        if len(self._topics) >= CLEAR_EACH:
            self._try(DELETE_TOPICS, 5, topic_names=self._topics, timeout=TIMEOUT_MS)
            self._topics = []

    def _is_own(self, name: str) -> bool:
        return str(self._number) in name

    def _try(self, api: int, version: int, **values: Tree) -> None:
        step = ask(api, version, **values)
        self._plain.send(step, step.tree)
        if isinstance(self._plain.receive(step, PATIENT_S), str):
            self._plain.close()
            self._plain = Wire(self._address)

    # --- that all is known everywhere

    def _settle(self) -> None:
        """What was changed before is told and done after: metadata are one log, or one state, of which these are the
        last. Kafka tells what it is about to do; what it has told before the last change it has done."""
        self._mark()
        self._mark()

    def _commit(self, offset: int, group: str) -> None:
        """Kafka tells of groups as they were when something of some group was last stored."""
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        topics = [{"name": "t", "partitions": [part]}]
        self._plain.answer_to(ask(OFFSET_COMMIT, 8, group_id=group, generation_id_or_member_epoch=-1, topics=topics))

    def _mark(self) -> None:
        mark = str(next(self._marks))
        entry = {"name": "retention.ms", "value": mark, "config_operation": 0}
        marker = {"resource_type": 2, "resource_name": self._marker}
        self._plain.answer_to(ask(INCREMENTAL, 1, resources=[{**marker, "configs": [entry]}]))
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


def compressed(records: Compressed) -> bytes:
    """The batch, whose checksum is right."""
    codec = Codec.from_name(records.codec)
    if records.garbage:
        return frame_batch(b"\xff\x00garbage" * 10, 3, NOW, NOW, attributes=codec)
    return encode_batch([Record(b"value %d" % n * 100, timestamp=NOW) for n in range(3)], codec=codec)


def _read(name: Any) -> str:
    """A name as a broker reads it."""
    return NOT_UTF8_BYTES.decode(errors="replace") if name == NOT_UTF8 else name or ""
