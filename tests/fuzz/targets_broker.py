"""Targets inside a broker: every request through its handler, control messages, metadata nodes, and files on disk."""

from __future__ import annotations

import logging
import shutil
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from fuzz.target import Target, filled, fix_checksums
from fuzz.targets_wire import fetch_frames, produce_frames
from kit.node import LISTENER, Node
from kit.partitions import NOW, append
from raylog.broker.groups.classic.claims import Claim, decode_claim, decode_group, encode_claim, encode_group
from raylog.broker.groups.classic.stored import StoredGroup, StoredMember
from raylog.broker.handlers import TABLE
from raylog.broker.handlers.context import CloseConnection, Connection, DelayedReply
from raylog.coordination.control.peer_control import Ack, AckStatus, Receiver, UpdateState, local_changes
from raylog.coordination.control.proposals import (
    DamagedReplica,
    Drain,
    DrainAnswer,
    IsrAnswer,
    IsrChange,
    OfflineReplica,
    Outcome,
    Proposal,
    ProposeIsr,
    ReplicasDamaged,
    ReplicasOffline,
    Verdict,
    decode_proposal,
)
from raylog.coordination.controller.controller import CreatedTopic, NewPartitions, NewTopic
from raylog.coordination.metadata import group_paths, paths, producer_ids
from raylog.coordination.metadata.group_model import CommittedOffset, GroupKind, Registered, Shares
from raylog.coordination.metadata.model import BrokerInfo, ClusterState, Endpoint, PartitionState, TopicState
from raylog.protocol.errors import InvalidRequest, RaylogError, UnsupportedVersion
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Generation,
    GroupId,
    InstanceId,
    LeaderEpoch,
    MemberId,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)
from raylog.protocol.wire import fetch, produce
from raylog.protocol.wire.messages import decode_response, encode_request, parse_request_header, request_type

# --- every request through its handler ---------------------------------------------------------------------------

TOPIC = "t"
ANY_TOPIC_ID = bytes(range(16))
"""Stands in inputs for the topic's id, which is another one in each process."""

FRESH_AFTER = 500
"""After so many requests they meet a new broker: so that an input breaks something by itself, or nearly."""


PATIENCE_S = 0.2
"""For a reply that comes later: commits of offsets take a moment."""


class _Defects(logging.Handler):
    """Exceptions that a handler did not expect: it answers the client all the same, and logs them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[BaseException | str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.exc_info and record.exc_info[1]) or record.getMessage())


class _PlainNode(Node):
    """A broker whose controller promises topics and partitions and makes none: the real one has a limit to them."""

    def create_topics(
        self, topics: Sequence[NewTopic], *, timeout_ms: int, validate_only: bool
    ) -> Sequence[CreatedTopic | RaylogError]:
        return [CreatedTopic(new.name, TopicId(UUID(int=1)), max(new.partitions, 1), 1, new.configs) for new in topics]

    def create_partitions(
        self, topics: Sequence[NewPartitions], *, timeout_ms: int, validate_only: bool
    ) -> Sequence[TopicName | RaylogError]:
        return [new.name for new in topics]


class _Broker:
    """The broker under test, made anew now and then."""

    def __init__(self) -> None:
        self._root = tempfile.TemporaryDirectory(prefix="raylog-fuzz-")
        self._made = 0
        self._requests = FRESH_AFTER
        self._defects = _Defects()
        log = logging.getLogger("raylog")
        log.addHandler(self._defects)
        log.propagate = False  # warnings of hostile clients are of no interest here
        self._node: Node | None = None

    def answer(self, frame: bytes) -> None:
        """One request; its answer must be readable, and must not hide a defect."""
        node = self._fresh()
        topic = node.table.state().topic(TopicName(TOPIC))
        assert topic is not None
        frame = _prepared(frame.replace(ANY_TOPIC_ID, topic.id.bytes))
        self._defects.seen.clear()
        try:
            reply = node.answer(frame, Connection(LISTENER))
        except (CloseConnection, InvalidRequest, UnsupportedVersion):
            reply = None
        if node.table.state().topic(TopicName(TOPIC)) is None:
            self._requests = FRESH_AFTER
        for defect in self._defects.seen:
            raise AssertionError("a handler met what it did not expect") from (
                defect if isinstance(defect, BaseException) else AssertionError(defect)
            )
        if reply is not None:
            _check(frame, reply)

    def _fresh(self) -> Node:
        self._requests += 1
        if self._node is None or self._requests > FRESH_AFTER:
            self.close()
            self._made, self._requests = self._made + 1, 0
            directory = Path(self._root.name) / str(self._made)
            self._node = _PlainNode(directory, config={"group.initial.rebalance.delay.ms": "0"})
            self._node.clock_ms = NOW
            self._node.create_topic(TOPIC, partitions=2)
            self._node.create_topic("elsewhere", leader=2)
            append(self._node.partition(TOPIC), b"one", b"two", timestamps=(4, 2))
        return self._node

    def close(self) -> None:
        """End the broker and delete what it wrote."""
        if self._node is not None:
            self._node.__exit__(None, None, None)
            shutil.rmtree(Path(self._root.name) / str(self._made))
            self._node = None

    def forget(self) -> None:
        """As if there had never been one."""
        self.close()
        self._root.cleanup()
        logging.getLogger("raylog").removeHandler(self._defects)


def _prepared(frame: bytes) -> bytes:
    """Checksums put right, and no wish to wait."""
    changed = bytearray(frame)
    try:
        header = parse_request_header(changed)
        if header.api_key == produce.API_KEY:
            request = produce.parse_produce_request(header.version, memoryview(changed)[header.body_pos :])
            for topic in request.topics:
                for part in topic.partitions:
                    if isinstance(part.records, memoryview):
                        fix_checksums(part.records)
        elif header.api_key == fetch.API_KEY:
            at = header.body_pos + (4 if header.version < 15 else 0)
            struct.pack_into(">i", changed, at, 0)
    except (InvalidRequest, UnsupportedVersion, struct.error):
        pass
    return bytes(changed)


def _check(frame: bytes, reply: Any) -> None:
    header = parse_request_header(frame)
    if isinstance(reply, DelayedReply):
        if not reply.wait(PATIENCE_S):  # a member waits for others
            reply.abandon()
            return
        reply = reply.finish()
    if isinstance(reply, bytes):
        data = reply
    else:
        pieces = []
        for part in reply:
            if isinstance(part, bytes):
                pieces.append(part)
            else:
                pieces.append(part.read())
                part.release()
        data = b"".join(pieces)
    if header.api_key == produce.API_KEY:
        correlation_id, _ = produce.parse_produce_response(header.version, data)
    elif header.api_key == fetch.API_KEY:
        correlation_id, _ = fetch.parse_fetch_response(header.version, data)
    else:
        known = any(row.key == header.api_key and row.max_version >= header.version >= 0 for row in TABLE)
        correlation_id, _ = decode_response(header.api_key, header.version if known else 0, data)
    assert correlation_id == header.correlation_id


_broker: list[_Broker] = []


def handlers(data: bytes) -> None:
    """A request's frame without its length, through the handler that it asks for."""
    if not _broker:
        _broker.append(_Broker())
    _broker[0].answer(data)


def forget_broker() -> None:
    """For who goes on with other work in this process: no broker, no files of it."""
    while _broker:
        _broker.pop().forget()


def _handler_seeds() -> Iterator[bytes]:
    yield from produce_frames()
    yield from fetch_frames()
    named = {"name": TOPIC, "topic": TOPIC, "topics": None, "resource_name": TOPIC, "resource_type": 2}
    for row in TABLE:
        if row.key in (produce.API_KEY, fetch.API_KEY):
            continue
        for version in range(row.min_version, row.max_version + 1):
            kind = request_type(row.key, version)
            options: list[dict[str, Any]] = [
                {"name": TOPIC, "topic": TOPIC, "resource_name": TOPIC, "resource_type": 2, "current_leader_epoch": -1},
                {"topic_id": UUID(bytes=ANY_TOPIC_ID), "name": None, "resource_type": 4, "resource_name": "1"},
                named,
            ]
            for values_ in options:
                try:
                    yield encode_request(filled(kind, **values_), 1, "c")[4:]
                except (TypeError, ValueError, AttributeError):
                    continue  # a field of that name is of another kind in this message


# --- control messages --------------------------------------------------------------------------------------------


def _act(before: ClusterState, after: ClusterState) -> None:
    local_changes(BrokerId(1), before, after)


def control(data: bytes) -> None:
    """What a broker takes from whoever claims to be its controller, and the controller from a broker."""
    receiver = Receiver(BrokerId(1))
    receiver.registered(BrokerEpoch(1))
    for payload in (_UPDATE, data):
        try:
            ack = receiver.receive(payload, _act)
        except InvalidRequest:
            continue
        assert Ack.decode(ack.encode()) == ack
    try:
        update = UpdateState.decode(data)
    except InvalidRequest:
        pass
    else:
        assert UpdateState.decode(update.encode()) == update
    for read in (Ack.decode, IsrAnswer.decode, DrainAnswer.decode, decode_proposal):
        try:
            message: Ack | IsrAnswer | DrainAnswer | Proposal = read(data)
        except InvalidRequest:
            continue
        assert read(message.encode()) == message


def _update(*, sequence: int, full: bool) -> bytes:
    partition = PartitionState((BrokerId(1), BrokerId(2)), BrokerId(1), LeaderEpoch(3), (BrokerId(1),))
    broker = BrokerInfo(
        BrokerId(1), BrokerEpoch(1), (Endpoint("PLAINTEXT", "host", 9092),), "rack", "node", "actor", (UUID(int=5),)
    )
    return UpdateState(
        BrokerId(1), ControllerEpoch(1), BrokerEpoch(1), sequence, full, "cluster", (broker,),
        (TopicState(TopicName(TOPIC), TopicId(UUID(int=7)), (partition,), {"retention.ms": "5"}),),
        (TopicName("gone"),), {"1": {"max.connections": "9"}},
    ).encode()  # fmt: skip


_UPDATE = _update(sequence=1, full=True)


def _control_seeds() -> Iterator[bytes]:
    yield _UPDATE
    yield _update(sequence=2, full=False)
    yield Ack(AckStatus.OK, BrokerId(1), BrokerEpoch(1), ControllerEpoch(1), 3).encode()
    sender = (BrokerId(1), BrokerEpoch(1), ControllerEpoch(1))
    members = ((BrokerId(1), BrokerEpoch(1)), (BrokerId(2), BrokerEpoch(7)))
    yield ProposeIsr(*sender, (IsrChange(_TP, TopicId(UUID(int=7)), LeaderEpoch(3), 4, members),)).encode()
    yield ReplicasOffline(*sender, (OfflineReplica(_TP, TopicId(UUID(int=7))),), "why").encode()
    yield ReplicasDamaged(*sender, (DamagedReplica(_TP, TopicId(UUID(int=7)), LeaderEpoch(3)),)).encode()
    yield Drain(*sender).encode()
    yield IsrAnswer(ControllerEpoch(1), (Outcome(_TP, Verdict.STALE, _STATE, "why"),)).encode()
    yield DrainAnswer(Verdict.OK, ControllerEpoch(1), (_TP,), "why").encode()


# --- nodes of the metadata store ---------------------------------------------------------------------------------

_TP = TopicPartition(TopicName(TOPIC), PartitionIndex(0))
_MEMBER = StoredMember(MemberId("m"), InstanceId("i"), "client", "/host", 6_000, 60_000, b"topics", b"share")
_STORED = StoredGroup(Generation(3), "consumer", "range", MemberId("m"), (_MEMBER,))
_GROUP = GroupId("readers")
_INFO = BrokerInfo(
    BrokerId(1), BrokerEpoch(1), (Endpoint("PLAINTEXT", "host", 9092),), "rack", "n", "a", (UUID(int=5),)
)
_STATE = PartitionState((BrokerId(1),), BrokerId(1), LeaderEpoch(3), (BrokerId(1),))

_NODES = (
    (paths.decode_controller_epoch, paths.encode_number(5)),
    (lambda data: group_paths.decode_offset("/o", data), group_paths.encode_offset(Offset(7))),
    (paths.decode_cluster_id, paths.encode_cluster_id("id")),
    (paths.decode_controller, paths.encode_controller(BrokerId(1), TimestampMs(5))),
    (
        lambda data: paths.decode_broker(BrokerId(1), data, None, BrokerEpoch(1)),
        paths.encode_broker(_INFO, TimestampMs(5)),
    ),
    (
        lambda data: paths.decode_broker(BrokerId(1), paths.encode_broker(_INFO, TimestampMs(5)), data, BrokerEpoch(1)),
        paths.encode_raylog_broker(_INFO),
    ),
    (
        lambda data: paths.decode_topic(TopicName(TOPIC), data),
        paths.encode_topic(paths.TopicAssignment(TopicId(UUID(int=7)), ((BrokerId(1),),))),
    ),
    (
        lambda data: paths.decode_partition_state(_TP, data, 0, (BrokerId(1),)),
        paths.encode_partition_state(_STATE),
    ),
    (lambda data: paths.decode_config("/c", data), paths.encode_config({"retention.ms": "5"})),
    (lambda data: paths.decode_config_change("/n", data), paths.encode_config_change("topics/t")),
    (
        producer_ids.decode_block,
        producer_ids.encode_block(producer_ids.ProducerIdBlock(BrokerId(1), 0, 999)),  # type: ignore[arg-type]
    ),
    (
        lambda data: group_paths.decode_committed("/o", b"7", data),
        group_paths.encode_detail(
            CommittedOffset(Offset(7), LeaderEpoch(2), "meta", TimestampMs(5)), TopicId(UUID(int=3))
        ),
    ),
    (lambda data: group_paths.decode_kind(_GROUP, data), group_paths.encode_kind(GroupKind.ACTORS)),
    (
        lambda data: group_paths.decode_member("/m", data),
        group_paths.encode_member(Registered(frozenset(), "flights.*", "host", 9), TimestampMs(5)),
    ),
    (
        lambda data: group_paths.decode_assignment(_GROUP, data),
        group_paths.encode_assignment(Shares(Generation(3), {MemberId("m"): (_TP,)})),
    ),
    (lambda data: decode_group("/s", data), encode_group(_STORED)),
    (lambda data: decode_claim("/c", data), encode_claim(Claim(BrokerId(1), BrokerEpoch(2)))),
)


def nodes(data: bytes) -> None:
    """Which node, then its value, that another program may have written."""
    if not data:
        return
    decode, _ = _NODES[data[0] % len(_NODES)]
    try:
        decode(data[1:])
    except paths.CorruptMetadata:
        pass


def _node_seeds() -> Iterator[bytes]:
    for number, (_, value) in enumerate(_NODES):
        yield bytes([number]) + value


BROKER_TARGETS = {
    "handlers": Target(handlers, _handler_seeds, max_len=1024),
    "control": Target(control, _control_seeds, max_len=1024),
    "nodes": Target(nodes, _node_seeds, max_len=512),
}
