"""What the versions of the APIs about groups mean: what the coordinator is asked, and the shape of the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kit.machine import scaled
from kit.node import Node
from kit.wire import request
from raylog.broker.groups.classic.described import DescribedGroup, DescribedMember
from raylog.broker.groups.classic.messages import Join, Joined, JoinedMember, Leaver, MemberIdIs, Sync, Synced
from raylog.broker.handlers import TABLE
from raylog.broker.handlers.context import Connection, DelayedReply
from raylog.coordination.metadata.model import BrokerInfo, Endpoint
from raylog.protocol.errors import GroupIdNotFound, NotCoordinator, RaylogError, UnknownMemberId
from raylog.protocol.ids import BrokerEpoch, BrokerId, Generation, GroupId, InstanceId, MemberId
from raylog.protocol.wire.messages import decode_response

KEYS = {row.name: row.key for row in TABLE}
HOST = "10.0.0.9"


class Recorded:
    """Stands for the coordinator: remembers what it was asked, and answers what it was told to."""

    def __init__(self) -> None:
        self.asked: Any = None
        self.answer: Any = None

    def join(self, group: GroupId, join: Join) -> Future[Joined | MemberIdIs]:
        return self._later(join)

    def sync(self, group: GroupId, sync: Sync) -> Future[Synced]:
        return self._later(sync)

    def leave(self, group: GroupId, leavers: Sequence[Leaver]) -> Sequence[RaylogError | None]:
        self.asked = leavers
        return self.answer  # type: ignore[no-any-return]

    def describe(self, group: GroupId) -> DescribedGroup:
        if isinstance(self.answer, RaylogError):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]

    def find_coordinator(self, group: GroupId) -> BrokerInfo:
        endpoint = Endpoint("PLAINTEXT", f"{group}-host", 9092)
        return BrokerInfo(BrokerId(len(group)), BrokerEpoch(1), (endpoint,))

    def _later(self, asked: Any) -> Future[Any]:
        self.asked = asked
        later: Future[Any] = Future()
        if isinstance(self.answer, RaylogError):
            later.set_exception(self.answer)
        else:
            later.set_result(self.answer)
        return later


@pytest.fixture
def groups() -> Recorded:
    return Recorded()


@pytest.fixture
def node(tmp_path: Path, groups: Recorded) -> Iterator[Node]:
    with Node(tmp_path) as node:
        node.ports = replace(node.ports, groups=groups)  # type: ignore[arg-type]
        yield node


def ask(node: Node, api: str, version: int, **values: Any) -> Any:
    reply = node.answer(request(KEYS[api], version, **values)[4:], Connection("PLAINTEXT", HOST))
    if isinstance(reply, DelayedReply):
        assert reply.wait(scaled(10.0))
        reply = reply.finish()
    assert isinstance(reply, bytes)
    return decode_response(KEYS[api], version, reply)[1]


JOINED = Joined(
    MemberId("m"), Generation(4), "consumer", "range", MemberId("n"), (JoinedMember(MemberId("m"), None, b"x"),), True
)
JOIN = {
    "group_id": "g",
    "member_id": "m",
    "group_instance_id": "i",
    "session_timeout": timedelta(seconds=10),
    "rebalance_timeout": timedelta(minutes=2),
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b"sub"}],
}


@pytest.mark.parametrize(
    ("version", "rebalance_ms", "instance", "needs_id", "can_skip"),
    [
        (0, 10_000, None, False, False),
        (1, 120_000, None, False, False),
        (3, 120_000, None, False, False),
        (4, 120_000, None, True, False),
        (5, 120_000, "i", True, False),
        (8, 120_000, "i", True, False),
        (9, 120_000, "i", True, True),
    ],
)
def test_join_means_what_its_version_can_say(
    node: Node, groups: Recorded, version: int, rebalance_ms: int, instance: str | None, needs_id: bool, can_skip: bool
) -> None:
    groups.answer = JOINED
    ask(node, "JoinGroup", version, **JOIN)
    join = groups.asked
    assert (join.session_timeout_ms, join.rebalance_timeout_ms) == (10_000, rebalance_ms)
    assert (join.instance_id, join.needs_id, join.can_skip_assignment) == (instance, needs_id, can_skip)
    assert (join.member_id, join.client_id, join.client_host) == ("m", "wire-test", f"/{HOST}")
    assert (join.protocol_type, join.protocols) == ("consumer", (("range", b"sub"),))


def test_answer_to_join_names_all_that_was_settled(node: Node, groups: Recorded) -> None:
    groups.answer = JOINED
    answer = ask(node, "JoinGroup", 9, **JOIN)
    assert (answer.error_code, answer.generation_id, answer.leader, answer.member_id) == (0, 4, "n", "m")
    assert (answer.protocol_type, answer.protocol_name, answer.skip_assignment) == ("consumer", "range", True)
    assert [(each.member_id, each.group_instance_id, each.metadata) for each in answer.members] == [("m", None, b"x")]


def test_join_without_an_id_is_told_its_id(node: Node, groups: Recorded) -> None:
    groups.answer = MemberIdIs(MemberId("new"))
    answer = ask(node, "JoinGroup", 5, **JOIN)
    assert (answer.error_code, answer.member_id, answer.generation_id) == (ErrorCode.member_id_required, "new", -1)
    assert (answer.leader, answer.members) == ("", ())


@pytest.mark.parametrize(("version", "nothing"), [(6, ""), (7, None)])
@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (MemberIdIs(MemberId("m")), ErrorCode.member_id_required),
        (UnknownMemberId("m"), ErrorCode.unknown_member_id),
    ],
)
def test_refused_join_has_no_protocol(
    node: Node, groups: Recorded, refusal: object, code: ErrorCode, version: int, nothing: str | None
) -> None:
    groups.answer = refusal
    answer = ask(node, "JoinGroup", version, **JOIN)
    assert answer.error_code is code
    assert (answer.protocol_name, getattr(answer, "protocol_type", None)) == (nothing, None)
    assert (answer.member_id, answer.generation_id, answer.leader, answer.members) == ("m", -1, "", ())


def test_refused_sync_assigns_nothing(node: Node, groups: Recorded) -> None:
    groups.answer = UnknownMemberId("m")
    who = {"group_id": "g", "generation_id": 4, "member_id": "m"}
    answer = ask(node, "SyncGroup", 5, **who, protocol_type="consumer", protocol_name="range")
    assert (answer.error_code, answer.assignment) == (ErrorCode.unknown_member_id, b"")
    assert (answer.protocol_type, answer.protocol_name) == (None, None)


@pytest.mark.parametrize(("version", "named"), [(4, None), (5, "range")])
def test_sync_names_the_protocol_from_version_five(
    node: Node, groups: Recorded, version: int, named: str | None
) -> None:
    groups.answer = Synced("consumer", "range", b"share")
    shares = [{"member_id": "m", "assignment": b"share"}]
    who = {"group_id": "g", "generation_id": 4, "member_id": "m", "group_instance_id": "i"}
    answer = ask(
        node, "SyncGroup", version, **who, protocol_type=named and "consumer", protocol_name=named, assignments=shares
    )
    sync = groups.asked
    assert (sync.who.member_id, sync.who.generation, sync.who.instance_id) == ("m", 4, InstanceId("i"))
    assert (sync.protocol_type, sync.protocol) == (named and "consumer", named)
    assert sync.assignments == (("m", b"share"),)
    assert (answer.error_code, answer.assignment) == (0, b"share")
    assert getattr(answer, "protocol_name", None) == named


def test_one_member_leaves_before_version_three(node: Node, groups: Recorded) -> None:
    groups.answer = [UnknownMemberId("m")]
    assert ask(node, "LeaveGroup", 2, group_id="g", member_id="m").error_code == ErrorCode.unknown_member_id
    assert groups.asked == (Leaver(MemberId("m")),)


def test_many_members_leave_from_version_three(node: Node, groups: Recorded) -> None:
    groups.answer = [None, UnknownMemberId("n")]
    members = [{"member_id": "m", "group_instance_id": "i"}, {"member_id": "n", "group_instance_id": None}]
    answer = ask(node, "LeaveGroup", 3, group_id="g", members=members)
    assert groups.asked == (Leaver(MemberId("m"), InstanceId("i")), Leaver(MemberId("n")))
    assert answer.error_code == 0
    assert [(each.member_id, each.group_instance_id, each.error_code) for each in answer.members] == [
        ("m", "i", ErrorCode.none),
        ("n", None, ErrorCode.unknown_member_id),
    ]


@pytest.mark.parametrize("version", [0, 3])
def test_one_coordinator_is_found_before_version_four(node: Node, version: int) -> None:
    answer = ask(node, "FindCoordinator", version, key="abc", key_type=0)
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 3, "abc-host", 9092)


def test_many_coordinators_are_found_from_version_four(node: Node) -> None:
    answer = ask(node, "FindCoordinator", 4, key_type=0, coordinator_keys=["abc", "de"])
    assert [(each.key, each.node_id, each.host, each.port, each.error_code) for each in answer.coordinators] == [
        ("abc", 3, "abc-host", 9092, 0),
        ("de", 2, "de-host", 9092, 0),
    ]


@pytest.mark.parametrize(
    ("key_type", "code"),
    [(1, ErrorCode.transactional_id_authorization_failed), (2, ErrorCode.invalid_request)],
)
def test_only_groups_have_coordinators(node: Node, key_type: int, code: ErrorCode) -> None:
    answer = ask(node, "FindCoordinator", 3, key="abc", key_type=key_type)
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (code, -1, "", -1)


MEMBER = DescribedMember(MemberId("m"), InstanceId("i"), "client", "/h", b"sub", b"share")


def described(node: Node, version: int, **more: Any) -> Any:
    [group] = ask(node, "DescribeGroups", version, groups=["g"], **more).groups
    return group


def test_described_group_has_all_that_is_known(node: Node, groups: Recorded) -> None:
    groups.answer = DescribedGroup("Stable", "consumer", "range", (MEMBER,))
    group = described(node, 4)
    assert (group.error_code, group.group_id, group.group_state) == (0, "g", "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    [member] = group.members
    assert (member.member_id, member.group_instance_id) == ("m", "i")
    assert (member.client_id, member.client_host) == ("client", "/h")
    assert (member.member_metadata, member.member_assignment) == (b"sub", b"share")


def test_operations_on_a_group_are_told_when_asked_for(node: Node, groups: Recorded) -> None:
    groups.answer = DescribedGroup("Empty", "", "", ())
    allowed = described(node, 3, include_authorized_operations=True).authorized_operations
    assert allowed == 1 << 3 | 1 << 6 | 1 << 8, "READ, DELETE, DESCRIBE of Kafka's AclOperation"
    assert described(node, 3, include_authorized_operations=False).authorized_operations == -(2**31)


@pytest.mark.parametrize(
    ("version", "error", "code", "state"),
    [
        (5, GroupIdNotFound("g"), ErrorCode.none, "Dead"),
        (6, GroupIdNotFound("g"), ErrorCode.group_id_not_found, "Dead"),
        (5, NotCoordinator("g"), ErrorCode.not_coordinator, ""),
        (6, NotCoordinator("g"), ErrorCode.not_coordinator, ""),
    ],
)
def test_group_that_cannot_be_described_is_empty(
    node: Node, groups: Recorded, version: int, error: RaylogError, code: ErrorCode, state: str
) -> None:
    groups.answer = error
    group = described(node, version)
    assert (group.error_code, group.group_state) == (code, state)
    assert (group.protocol_type, group.protocol_data, group.members) == ("", "", ())
