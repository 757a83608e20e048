"""A member of a group as Kafka's clients are one, request by request: for tests of what coordinators answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from types import TracebackType
from typing import Any, NamedTuple, Self

from kio.schema.errors import ErrorCode

from kit.waiting import wait_until
from kit.wire import WireClient
from raylog.protocol.wire import consumer_protocol

__all__ = ["LOOK_FURTHER", "WireMember"]

WAIT_S = 30.0
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN, HEARTBEAT, LEAVE, SYNC = 8, 9, 10, 11, 12, 13, 14
VERSIONS = {OFFSET_COMMIT: 8, OFFSET_FETCH: 8, FIND_COORDINATOR: 4, JOIN: 9, HEARTBEAT: 4, LEAVE: 5, SYNC: 5}
LOOK_FURTHER = frozenset(
    (ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available, ErrorCode.not_coordinator)
)
"""At which a client looks for the coordinator anew, and tries again."""

Address = tuple[str, int]


class Gone(NamedTuple):
    """The broker's end of the connection is gone: nobody knows what became of the request."""

    error_code: None = None


class WireMember:
    """One member with one topic, ``t``; one thread uses it."""

    def __init__(
        self,
        group: str,
        brokers: Callable[[], Iterable[Address]],
        *,
        instance: str | None = None,
        session_ms: int = 10_000,
        timeout_s: float = 10.0,
    ) -> None:
        """``brokers``: where one may ask for the coordinator; ``timeout_s``: of one request."""
        self.group = group
        self.member_id = ""
        self.generation = -1
        self.assignment = b""
        self.coordinator: int | None = None
        self.codes: list[ErrorCode] = []
        """Every error code that it was answered, in order."""
        self._brokers = brokers
        self._instance = instance
        self._session_ms = session_ms
        self._timeout_s = timeout_s
        self._client: WireClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        if self._client is not None:
            self._client.sock.close()
        self._client = self.coordinator = None

    def join(self, assignment: bytes = b"share") -> None:
        """Join and sync until that is answered without an error; who leads gives all the same ``assignment``."""
        wait_until(lambda: self._join_once(assignment), WAIT_S, f"{self.group}: {self._instance or 'a member'} joins")

    def try_join(self) -> Any:
        """One JoinGroup, answered once the generation begins."""
        joined = self.ask(
            JOIN,
            member_id=self.member_id,
            group_instance_id=self._instance,
            session_timeout=timedelta(milliseconds=self._session_ms),
            rebalance_timeout=timedelta(minutes=1),
            protocol_type=consumer_protocol.PROTOCOL_TYPE,
            protocols=[{"name": "range", "metadata": consumer_protocol.encode_subscription(["t"])}],
        )
        if joined.error_code in (ErrorCode.none, ErrorCode.member_id_required):
            self.member_id, self.generation = joined.member_id, joined.generation_id
        elif joined.error_code is ErrorCode.unknown_member_id:
            self.member_id = ""
        return joined

    def sync(self, members: Iterable[str] = (), assignment: bytes = b"") -> Any:
        """One SyncGroup; the leader's names all ``members``."""
        synced = self.ask(
            SYNC,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._instance,
            protocol_type=consumer_protocol.PROTOCOL_TYPE,
            protocol_name="range",
            assignments=[{"member_id": member, "assignment": assignment} for member in members],
        )
        if synced.error_code is ErrorCode.none:
            self.assignment = synced.assignment
        return synced

    def _join_once(self, assignment: bytes) -> bool:
        joined = self.try_join()
        if joined.error_code is not ErrorCode.none:
            return False
        members = [] if joined.skip_assignment else [member.member_id for member in joined.members]
        return self.sync(members, assignment).error_code is ErrorCode.none

    def heartbeat(self) -> ErrorCode | None:
        """The code that it was answered; None: the coordinator is gone."""
        who = {"member_id": self.member_id, "generation_id": self.generation, "group_instance_id": self._instance}
        code: ErrorCode | None = self.ask(HEARTBEAT, **who).error_code
        return code

    def commit(self, offset: int, *, generation: int | None = None) -> ErrorCode | None:
        """Of partition 0; by default as a member of its generation. The code, as :meth:`heartbeat`."""
        response = self.ask(OFFSET_COMMIT, **self.commit_values(offset, generation))
        code: ErrorCode | None = None if isinstance(response, Gone) else _only_partition(response).error_code
        if code not in (None, ErrorCode.none):
            self.codes.append(code)
        return code

    def commit_values(self, offset: int, generation: int | None = None) -> dict[str, Any]:
        """What an OffsetCommit says."""
        epoch = self.generation if generation is None else generation
        return {
            "group_id": self.group,
            "generation_id_or_member_epoch": epoch,
            "generation_id": epoch,
            "member_id": self.member_id,
            "group_instance_id": self._instance,
            "topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": offset}]}],
        }

    def committed(self) -> int:
        """Of partition 0; -1: nothing was committed."""
        asked = [{"group_id": self.group, "topics": [{"name": "t", "partition_indexes": [0]}]}]

        def answered() -> Any:
            response = self.ask(OFFSET_FETCH, groups=asked)
            return None if isinstance(response, Gone) or response.groups[0].error_code.value else response

        response = wait_until(answered, WAIT_S, "the offsets are told")
        return int(_only_partition(response.groups[0]).committed_offset)

    def leave(self) -> Any:
        return self.ask(LEAVE, members=[{"member_id": self.member_id, "group_instance_id": self._instance}])

    def ask(self, api_key: int, **values: Any) -> Any:
        """The coordinator's response, or Gone; who is not it any more is looked for anew the next time."""
        client = wait_until(self._connected, WAIT_S, f"a coordinator of {self.group} is found")
        try:
            response = client.ask(api_key, VERSIONS[api_key], **{"group_id": self.group, **values})
        except (OSError, EOFError):
            self.disconnect()
            return Gone()
        code = getattr(response, "error_code", ErrorCode.none)
        if code is not ErrorCode.none:
            self.codes.append(code)
        if code in LOOK_FURTHER:
            self.disconnect()
        return response

    def _connected(self) -> WireClient | None:
        if self._client is None:
            found = self._find()
            if found is not None:
                self.coordinator, address = found
                try:
                    self._client = WireClient(address, timeout_s=self._timeout_s)
                except OSError:
                    pass
        return self._client

    def _find(self) -> tuple[int, Address] | None:
        for address in self._brokers():
            try:
                with WireClient(address, timeout_s=self._timeout_s) as client:
                    response = client.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=[self.group])
            except (OSError, EOFError):
                continue
            [found] = response.coordinators
            if found.error_code is ErrorCode.none:
                return found.node_id, (found.host, found.port)
        return None


def _only_partition(response: Any) -> Any:
    [topic] = response.topics
    [partition] = topic.partitions
    return partition
