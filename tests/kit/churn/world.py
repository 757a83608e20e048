"""What all threads of a churn share, and the connections of each."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
import traceback
from collections import Counter
from typing import Any
from uuid import UUID

from kit.churn.topics import Log, Topics
from kit.history import Recorder
from kit.machine import scaled
from kit.replicated import ReplicatedCluster
from kit.wire import WireClient
from raylog.protocol.errors import ErrorCode
from raylog.protocol.wire.fetch import FetchRequest, FetchResponse
from raylog.protocol.wire.produce import ProduceResponse

__all__ = ["PASSING", "ChurnThread", "Unanswered", "WatchedCluster", "World"]

METADATA, LIST_OFFSETS = 3, 2
METADATA_VERSION, LIST_OFFSETS_VERSION = 12, 11
ROUTES_MAX_AGE_S = 0.5
ANSWER_S = 90.0
"""No request waits longer for its answer, on however busy a machine."""

PASSING = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.offset_not_available,
        ErrorCode.request_timed_out,
        ErrorCode.broker_not_available,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.not_controller,
        ErrorCode.network_exception,
        ErrorCode.coordinator_not_available,
    }
)
"""What a client may be told while leaders move and topics come and go."""


class Unanswered(Exception):
    """The broker is away, or went away before it answered."""


class WatchedCluster(ReplicatedCluster):
    """One whose processes can be looked at from outside."""

    def pid(self, broker_id: int) -> int:
        """The process id of a broker that runs."""
        return self._processes[broker_id].pid


class World:
    """The cluster, the topics, what is known of leaders, and what went wrong."""

    def __init__(self, cluster: WatchedCluster, seed: int) -> None:
        self.cluster = cluster
        self.seed = seed
        self.recorder = Recorder()
        self.topics = Topics(self.recorder)
        self.stopping = threading.Event()
        self.counts: Counter[str] = Counter()
        """What happened, how often; each count has one thread."""
        self.faults: list[str] = []
        self.values = itertools.count()
        self.times: dict[tuple[int, int], int] = {}
        """Log and offset → the record's timestamp, of what was read."""
        self.up_since = dict.fromkeys(range(cluster.size), time.monotonic())
        """When each broker began to serve; a killed one is not there."""
        self.addresses = {broker: cluster.address(broker) for broker in range(cluster.size)}
        self._leaders: dict[tuple[str, int], int] = {}
        self._ids: dict[str, UUID] = {}
        self._routes_at = 0.0
        self._routes_lock = threading.Lock()

    def fault(self, text: str) -> None:
        if text not in self.faults:
            self.faults.append(text)

    def judge_code(self, code: int, what: str) -> None:
        """Note a code that no client should be told."""
        if code and ErrorCode(code) not in PASSING:
            self.fault(f"{what}: {ErrorCode(code).name}")

    def leader(self, log: Log, connections: Connections) -> int | None:
        """Who leads the log as brokers tell; None while nobody does, or while they know another life of its name."""
        self.refresh(connections)
        if self._ids.get(log.life.name) != log.life.topic_id:
            return None
        leader = self._leaders.get((log.life.name, log.index), -1)
        return leader if leader in self.up_since else None

    def refresh(self, connections: Connections, max_age_s: float = ROUTES_MAX_AGE_S) -> None:
        """Ask some broker for metadata, unless somebody did a moment ago."""
        with self._routes_lock:
            if time.monotonic() - self._routes_at < max_age_s:
                return
            for broker in random.sample(sorted(self.up_since), len(self.up_since)):
                with contextlib.suppress(Unanswered):
                    self._leaders, self._ids = connections.metadata(broker)
                    self._routes_at = time.monotonic()
                    return


class Connections:
    """One thread's connections to the brokers, made when they are needed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._clients: dict[int, WireClient] = {}

    def close(self) -> None:
        for broker in list(self._clients):
            self.drop(broker)

    def drop(self, broker: int) -> None:
        client = self._clients.pop(broker, None)
        if client is not None:
            client.sock.close()

    def _use(self, broker: int, what: str, call: Any) -> Any:
        begun = time.monotonic()
        try:
            client = self._clients.get(broker)
            if client is None:
                client = self._clients[broker] = WireClient(self._world.addresses[broker], timeout_s=scaled(ANSWER_S))
            return call(client)
        except TimeoutError as error:
            self.drop(broker)
            if begun > self._world.up_since.get(broker, time.monotonic()):
                self._world.fault(f"{what} at broker {broker} had no answer within {ANSWER_S} s")
            raise Unanswered(f"{what} at broker {broker}") from error
        except (OSError, EOFError) as error:
            self.drop(broker)
            raise Unanswered(f"{what} at broker {broker}: {error}") from error

    def ask(self, broker: int, api_key: int, version: int, **values: Any) -> Any:
        """Raises Unanswered."""
        return self._use(broker, f"API {api_key}", lambda client: client.ask(api_key, version, **values))

    def fetch(self, broker: int, version: int, request: FetchRequest) -> FetchResponse[memoryview]:
        """Raises Unanswered."""
        answer: FetchResponse[memoryview] = self._use(broker, "Fetch", lambda client: client.fetch(version, request))
        return answer

    def produce(self, broker: int, log: Log, batch: bytes, **options: Any) -> ProduceResponse:
        """By topic id. Raises Unanswered."""
        answer: ProduceResponse = self._use(
            broker,
            "Produce",
            lambda client: client.produce(
                "", batch, version=13, topic_id=log.life.topic_id, partition=log.index, acks=-1, **options
            ),
        )
        return answer

    def metadata(self, broker: int) -> tuple[dict[tuple[str, int], int], dict[str, UUID]]:
        """Leaders, and topic ids by name, as one broker tells them. Raises Unanswered."""
        answer = self.ask(broker, METADATA, METADATA_VERSION, topics=None)
        found = [topic for topic in answer.topics if topic.error_code is ErrorCode.none]
        leaders = {(topic.name, each.partition_index): each.leader_id for topic in found for each in topic.partitions}
        return leaders, {topic.name: topic.topic_id for topic in found}

    def list_offsets(
        self, broker: int, asked: dict[tuple[str, int], int]
    ) -> dict[tuple[str, int], tuple[int, int, int]]:
        """Error code, offset and timestamp of each partition. Raises Unanswered."""
        topics: dict[str, list[dict[str, int]]] = {}
        for (name, index), timestamp in asked.items():
            part = {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
            topics.setdefault(name, []).append(part)
        answer = self.ask(
            broker,
            LIST_OFFSETS,
            LIST_OFFSETS_VERSION,
            replica_id=-1,
            topics=[{"name": name, "partitions": parts} for name, parts in topics.items()],
        )
        return {
            (topic.name, each.partition_index): (int(each.error_code), each.offset, each.timestamp)
            for topic in answer.topics
            for each in topic.partitions
        }


class ChurnThread(threading.Thread):
    """A thread of a churn: what ends it too early is a fault of the churn."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.world = world
        self.stopping = world.stopping
        self.rng = random.Random(f"{world.seed} {name}")
        self.connections = Connections(world)

    def run(self) -> None:
        try:
            self.begin()
            while not self.stopping.is_set():
                self.step()
        except Exception:  # noqa: BLE001 (told with the judgement)
            self.world.fault(f"the churn's own thread {self.name} ended: {traceback.format_exc()}")
        finally:
            try:
                self.end()
            finally:
                self.connections.close()

    def begin(self) -> None: ...

    def step(self) -> None:
        raise NotImplementedError

    def end(self) -> None: ...

    def pause(self, seconds: float) -> None:
        """Until then, or until it is to stop."""
        self.stopping.wait(seconds)
