"""What a broker answers to ``kit.group_cases``, and what Apache Kafka answered: ``group_answers.json``.

    PYTHONPATH=tests .venv/bin/python -m kit.group_answers     # asks a Kafka broker, and writes the file anew

The file has Kafka's version, and for each case its steps: API, version, request, answer. The answer is without what a
run or a broker is free in: times, texts of errors, addresses, the order of lists; ids are ``$`` and a client's name, as
in the request. Where raylog answers in another way on purpose, the step has its answer, too: ``raylog``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from kit.group_cases import CASES, CHOSEN, TOPICS, Step
from kit.kafka_broker import KAFKA_VERSION, running_kafka
from kit.machine import scaled
from kit.node import Node
from kit.waiting import wait_until
from kit.wire import WireClient, request
from raylog.broker.handlers import TABLE
from raylog.protocol.wire.messages import decode_response

__all__ = ["CONFIG", "Asker", "load"]

DATA = Path(__file__).with_suffix(".json")
CONFIG = {"group.initial.rebalance.delay.ms": "0"}
"""Of either broker."""
KEYS = {row.name: row.key for row in TABLE}
WAIT_S = 20.0
FREE = ("throttle_time", "error_message", "client_host")
"""Fields of answers that are not compared."""
BYTES, TIMES = ("metadata", "assignment"), ("session_timeout", "rebalance_timeout")
"""Fields of requests that are not what JSON has."""
NOBODY = UUID(int=7)

Answers = list[Any]


def load() -> dict[str, Any]:
    """The file: ``kafka`` is the version, ``cases`` lists the steps by the case's name."""
    recorded: dict[str, Any] = json.loads(DATA.read_text())
    return recorded


class Asker:
    """Asks one broker; it has no groups of these cases yet."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._ids: dict[str, str] = {}
        self._topic_ids: dict[str, UUID] = {"$nobody": NOBODY}
        self._group = ""
        self._clients: dict[str, WireClient] = {}
        self._waiting: dict[str, int] = {}
        """Clients whose answer is still to come, and which step's it is."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hang_up()

    def prepare(self) -> None:
        """Make the topics, by requests, and look for the coordinator, which makes Kafka ready to be one."""
        with WireClient(self._address) as client:
            wanted = [
                {"name": name, "num_partitions": count, "replication_factor": 1} for name, count in TOPICS.items()
            ]
            client.ask(KEYS["CreateTopics"], 7, topics=wanted)
            found = wait_until(lambda: self._led(client), WAIT_S, "the topics have leaders")
            self._topic_ids |= {"$topic": found["t"], "$other": found["u"]}
            wait_until(lambda: self._coordinates(client), WAIT_S, "the broker coordinates groups")

    def run(self, name: str, steps: list[Step]) -> Answers:
        """The answers to a case's steps, in order."""
        self._group = re.sub(r"\W+", "-", name) + "."
        self._ids = {}
        answers: Answers = [None] * len(steps)  # as they came: their ids have names only once all are there
        try:
            for index, step in enumerate(steps):
                self._collect(step.client, steps, answers)
                if step.until:
                    answers[index] = wait_until(lambda step=step: self._once(step), WAIT_S, f"{name}: {step.until}")  # type: ignore[misc]
                    continue
                self._send(step)
                self._waiting[step.client] = index
                if not step.waits:
                    self._collect(step.client, steps, answers)
                    self._collect_synced(index, steps, answers)
            for client in tuple(self._waiting):
                self._collect(client, steps, answers)
        finally:
            self._hang_up()
        return [self._told(answer) for answer in answers]

    def _once(self, step: Step) -> Any:
        self._send(step)
        answer = self._receive(step)
        return answer if answer.error_code.name == step.until else None

    def _collect_synced(self, index: int, steps: list[Step], answers: Answers) -> None:
        """A leader's assignments answer all who wait for theirs: so that what comes next finds their requests there,
        which came on other connections."""
        if steps[index].api == "SyncGroup" and answers[index].error_code.name == "none":
            for client in [client for client, at in self._waiting.items() if steps[at].api == "SyncGroup"]:
                self._collect(client, steps, answers)

    def _collect(self, client: str, steps: list[Step], answers: Answers) -> None:
        if client in self._waiting:
            index = self._waiting.pop(client)
            answers[index] = self._receive(steps[index])

    def _send(self, step: Step) -> None:
        if step.client not in self._clients:
            self._clients[step.client] = WireClient(self._address, timeout_s=scaled(WAIT_S))
        self._clients[step.client].send(request(KEYS[step.api], step.version, **self._meant(step.request)))

    def _receive(self, step: Step) -> Any:
        frame = self._clients[step.client].receive()
        _, response = decode_response(KEYS[step.api], step.version, frame)
        member_id = getattr(response, "member_id", "")
        if member_id and step.api == "JoinGroup":
            self._ids[f"${step.client}"] = member_id
        return response

    def _hang_up(self) -> None:
        for client in self._clients.values():
            client.sock.close()
        self._clients, self._waiting = {}, {}

    def _meant(self, value: Any, name: str = "") -> Any:
        """A request's value as it is sent."""
        match value:
            case dict():
                return {key: self._meant(each, key) for key, each in value.items()}
            case list():
                return [self._meant(each, name) for each in value]
            case str() if value.startswith("$group"):
                return self._group + value.removeprefix("$group")
            case str() if value.startswith("$"):
                return self._topic_ids[value] if name == "topic_id" else self._ids.get(value, "")
            case str() if name in BYTES:
                return value.encode("latin-1")
            case int() if name in TIMES:
                return timedelta(milliseconds=value)
        return value

    def _told(self, value: Any) -> Any:
        """An answer's value as it is kept."""
        if is_dataclass(value):
            return {
                field.name: self._told(getattr(value, field.name)) for field in fields(value) if field.name not in FREE
            }
        match value:
            case tuple():
                kept = [self._told(each) for each in value if self._is_ours(each)]
                return sorted(kept, key=lambda each: json.dumps(each, sort_keys=True))
            case bytes():
                return value.decode("latin-1")
            case Enum():
                return value.name
            case UUID():
                return next((name for name, known in self._topic_ids.items() if known == value), str(value))
            case str() if value.startswith(self._group):
                return "$group" + value.removeprefix(self._group)
            case str():
                return next((name for name, known in self._ids.items() if known == value), value)
        return value

    def _is_ours(self, each: Any) -> bool:
        """Not a group of another case, in a list of all."""
        return type(each).__name__ != "ListedGroup" or each.group_id.startswith(self._group)

    def _led(self, client: WireClient) -> Mapping[str, UUID] | None:
        response = client.ask(KEYS["Metadata"], 12, topics=[{"name": name, "topic_id": UUID(int=0)} for name in TOPICS])
        found = {topic.name: topic.topic_id for topic in response.topics if len(topic.partitions) == TOPICS[topic.name]}
        leads = all(part.leader_id >= 0 for topic in response.topics for part in topic.partitions)
        return found if leads and len(found) == len(TOPICS) else None

    def _coordinates(self, client: WireClient) -> bool:
        """Kafka makes the topic for its groups when a coordinator is looked for first, and loads it."""
        [found] = client.ask(KEYS["FindCoordinator"], 4, key_type=0, coordinator_keys=["any"]).coordinators
        [described] = client.ask(KEYS["DescribeGroups"], 5, groups=["any"]).groups
        return not found.error_code.value and not described.error_code.value


def record() -> None:
    """Ask both brokers everything, and write the file; tell where raylog differs."""
    with TemporaryDirectory() as root, running_kafka(Path(root), CONFIG) as address:
        kafka = _ask_all(address)
    with TemporaryDirectory() as root, Node(Path(root), config=CONFIG) as node:
        raylog = _ask_all(node.serve())
    cases = {}
    for name, steps in CASES.items():
        rows = [
            {**step._asdict(), "answer": theirs, **({"raylog": ours} if ours != theirs and name in CHOSEN else {})}
            for step, theirs, ours in zip(steps, kafka[name], raylog[name], strict=True)
        ]
        cases[name] = rows
    _write(cases)
    for name in CASES:
        if kafka[name] != raylog[name] and name not in CHOSEN:
            print(f"raylog answers in another way: {name}")


def _ask_all(address: tuple[str, int]) -> dict[str, Answers]:
    with Asker(address) as asker:
        asker.prepare()
        return {name: asker.run(name, list(steps)) for name, steps in CASES.items()}


def _write(cases: dict[str, Any]) -> None:
    lines = [f'{{"kafka": "{KAFKA_VERSION}", "cases": {{']
    for name, rows in cases.items():
        steps = ",\n".join(json.dumps(row) for row in rows)
        lines.append(f"{json.dumps(name)}: [\n{steps}\n]{'' if name == list(cases)[-1] else ','}")
    DATA.write_text("\n".join([*lines, "}}"]) + "\n")


if __name__ == "__main__":
    record()
