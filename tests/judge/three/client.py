"""A client that asks until it is answered: it finds the leader anew, and sends the same again.

What it met on the way is counted; a code that no client tries again ends it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Sequence
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self, TypeVar

from kio.schema.errors import ErrorCode

from kit.waiting import wait_until
from kit.wire import WireClient, produce_request
from raylog.protocol.wire.produce import parse_produce_response

__all__ = ["Again", "Client", "Cluster"]

T = TypeVar("T")
PATIENCE_S = 120.0
TIMEOUT_MS = 5_000
METADATA, PRODUCE_VERSION = 3, 9


class Cluster(Protocol):
    """Brokers that can be killed, numbered from 0."""

    size: int

    def address(self, broker_id: int) -> tuple[str, int]: ...
    def kill(self, broker_id: int) -> object: ...
    def start(self, broker_id: int) -> None: ...
    def wait_serving(self, broker_id: int) -> None: ...


class Again(Exception):
    """It has not been answered yet."""


class Client:
    """Of one cluster; ``met``: the codes that were answered, and tried again."""

    def __init__(self, cluster: Cluster) -> None:
        self.met: Counter[str] = Counter()
        self._last = ""
        self._cluster = cluster
        self._connections: dict[int, WireClient] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections.values():
            connection.sock.close()

    def until(self, what: str, attempt: Callable[[], T]) -> T:
        """What ``attempt`` gives once it does not raise :class:`Again`. After PATIENCE_S the AssertionError tells what
        was met last, and what before."""

        def tried() -> list[T]:
            try:
                return [attempt()]
            except Again as again:
                self._last = str(again)
                return []

        return wait_until(
            tried, PATIENCE_S, what, interval_s=0.05, instead=lambda: f"at last {self._last}; in all {dict(self.met)}"
        )[0]

    def check(self, error: int, fine: Container[ErrorCode] = (), passing: Container[ErrorCode] = ()) -> None:
        """Raises :class:`Again` for an error that passes: because clients try it again, or as one of ``passing``.
        AssertionError for another that is not ``fine``."""
        code = ErrorCode(error)
        if code is ErrorCode.none or code in fine:
            return
        assert code.retriable or code in passing, f"{code.name}, which no client tries again"
        self.again(code.name)

    def again(self, why: str, found: object = "") -> NoReturn:
        """Raises :class:`Again` with what was ``found`` instead, and counts it."""
        self.met[why] += 1
        raise Again(f"{why} {found}".rstrip())

    def ask(self, broker_id: int, api: int, version: int, **values: Any) -> Any:
        """Ask one broker once."""
        return self._at(broker_id, lambda connection: connection.ask(api, version, **values))

    def ask_any(self, api: int, version: int, **values: Any) -> Any:
        """Ask the first one that answers."""
        for broker_id in range(self._cluster.size):
            try:
                return self.ask(broker_id, api, version, **values)
            except Again:
                continue
        raise Again("no broker answers")

    def ask_controller(self, api: int, version: int, **values: Any) -> Any:
        """Ask the broker that the metadata call the controller."""
        controller = self.ask_any(METADATA, 12, topics=[]).controller_id
        if controller < 0:
            self.again("no controller")
        return self.ask(controller, api, version, **values)

    def partitions(self, topic: str, broker_id: int | None = None) -> dict[int, Any]:
        """What the metadata tell of a topic's partitions: this broker's, or those of the first that answers."""
        wanted = [{"name": topic, "topic_id": None}]
        if broker_id is None:
            [found] = self.ask_any(METADATA, 12, topics=wanted).topics
        else:
            [found] = self.ask(broker_id, METADATA, 12, topics=wanted).topics
        self.check(found.error_code)
        return {part.partition_index: part for part in found.partitions}

    def leader(self, topic: str, partition: int) -> int:
        """As the metadata tell it."""
        found = self.partitions(topic).get(partition)
        if found is None or found.leader_id < 0:
            self.again("no leader")
        leader: int = found.leader_id
        return leader

    def produce(
        self, topic: str, partition: int, batches: Sequence[bytes], sent: Callable[[int], None] = lambda _: None
    ) -> list[int]:
        """The offset of each batch. They are sent one behind the other, and those that are refused once more; ``sent``
        is called with the leader when they are sent first."""
        offsets: dict[int, int] = {}
        told = [sent]

        def attempt() -> list[int]:
            left = [number for number in range(len(batches)) if number not in offsets]
            leader = self.leader(topic, partition)

            def exchange(connection: WireClient) -> None:
                for number in left:
                    connection.send(
                        produce_request(
                            topic, batches[number], version=PRODUCE_VERSION, partition=partition, acks=-1,
                            timeout_ms=TIMEOUT_MS,
                        )
                    )  # fmt: skip
                if told:
                    told.pop()(leader)
                for number in left:
                    self._take(number, left, connection.receive(), offsets)

            self._at(leader, exchange)
            if len(offsets) < len(batches):
                raise Again("a batch was refused")
            return [offsets[number] for number in range(len(batches))]

        return self.until(f"{topic}-{partition} takes records", attempt)

    def _take(self, number: int, left: Sequence[int], frame: bytes, offsets: dict[int, int]) -> None:
        """Behind a batch that was refused, the next one is out of order."""
        [written] = parse_produce_response(PRODUCE_VERSION, frame)[1].topics
        [part] = written.partitions
        behind_refused = any(each not in offsets for each in left if each < number)
        try:
            self.check(part.error_code, passing={ErrorCode.out_of_order_sequence_number} if behind_refused else ())
        except Again:
            return
        offsets[number] = part.base_offset

    def _at(self, broker_id: int, use: Callable[[WireClient], T]) -> T:
        try:
            if broker_id not in self._connections:
                self._connections[broker_id] = WireClient(self._cluster.address(broker_id))
            return use(self._connections[broker_id])
        except (OSError, EOFError):
            if connection := self._connections.pop(broker_id, None):
                connection.sock.close()
            self.again("closed")
