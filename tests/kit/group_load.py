"""A load of records for groups whose members are processes (``kit.group_processes``), and the judgement on them."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from confluent_kafka import Producer

from kit.group_history import Judgement, judge
from kit.group_processes import Members
from kit.waiting import wait_until
from raylog.client.admin import Admin
from raylog.protocol.ids import LATEST, TopicPartition

WAIT_S = 60.0
BATCH = 40
SEND_S = 0.02
"""Between two times that so many records are sent."""
PRODUCER = {
    "enable.idempotence": True,
    "max.in.flight.requests.per.connection": 1,  # with more it may send twice by itself: conformance/test_known_traps
    "linger.ms": 5,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
}


class Load:
    """Some records into each partition, all the time, while its ``with`` lasts."""

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        self.servers, self.topic, self.partitions = servers, topic, partitions
        self._stopping = threading.Event()
        self._failed: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        with Admin(self.servers) as admin:
            admin.create_topic(self.topic, self.partitions)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        assert self._failed == []

    def ends(self) -> list[int]:
        """How many records each partition has."""
        with Admin(self.servers) as admin:
            found = admin.list_offsets({(self.topic, partition): LATEST for partition in range(self.partitions)})
        return [found[TopicPartition(self.topic, partition)].offset for partition in range(self.partitions)]

    def committed(self, group: str) -> list[int]:
        """Where the group stands in each partition; 0 where it never committed."""
        with Admin(self.servers) as admin:
            found = admin.list_group_offsets(group)
        offsets = (found.get(TopicPartition(self.topic, partition)) for partition in range(self.partitions))
        return [0 if each is None else each.offset for each in offsets]

    def _run(self) -> None:
        producer = Producer({"bootstrap.servers": self.servers, **PRODUCER})

        def delivered(error: object, _: object) -> None:
            if error is not None:
                self._failed.append(str(error))

        number = 0
        while not self._stopping.wait(SEND_S):
            for _ in range(BATCH):
                partition = number % self.partitions
                producer.produce(self.topic, b"%d" % number, partition=partition, on_delivery=delivered)
                number += 1
            producer.poll(0)
        producer.flush(WAIT_S)


def finished(members: Members, load: Load, group: str) -> Judgement:
    """Let the group read all that there is, and leave; then judge what its members did."""
    load.stop()
    ends = load.ends()
    wait_until(lambda: load.committed(group) == ends, WAIT_S, "all is read and committed", interval_s=0.2)
    members.leave(*members.living)
    judgement = judge(members.events(), ends, load.committed(group))
    assert judgement.handed_out - judgement.repeated == sum(ends)
    return judgement


def told_since(members: Members, since: float, *what: str) -> dict[int, float]:
    """When each partition was last told to be so."""
    return {event.v["partition"]: event.t for event in members.events() if event.t > since and event.what in what}
