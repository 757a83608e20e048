"""Members of groups over sockets: what waits for others holds up nobody else, and every version says what it can."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kit.node import Node
from kit.waiting import wait_until
from kit.wire import WireClient, request
from raylog.protocol.ids import GroupId
from raylog.protocol.wire.messages import decode_response

METADATA, JOIN, HEARTBEAT, LEAVE, SYNC = 3, 11, 12, 13, 14
GROUP = GroupId("g")
CONFIG = {"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1", "group.max.size": "2"}
WAIT_S = 10.0

pytestmark = pytest.mark.system


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, config=CONFIG) as node:
        yield node


@pytest.fixture
def address(node: Node) -> tuple[str, int]:
    return node.serve()


def wishes(member_id: str = "", **more: Any) -> dict[str, Any]:
    values = {
        "group_id": "g",
        "member_id": member_id,
        "session_timeout": timedelta(seconds=30),
        "rebalance_timeout": timedelta(seconds=30),
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"topics"}],
    }
    return values | more


def join(client: WireClient, version: int = 9, **more: Any) -> Any:
    """Join as whoever gets an id first, from version 4 on."""
    joined = client.ask(JOIN, version, **wishes(**more))
    if joined.error_code is ErrorCode.member_id_required:
        joined = client.ask(JOIN, version, **wishes(joined.member_id, **more))
    assert joined.error_code is ErrorCode.none
    return joined


def sync(client: WireClient, joined: Any, version: int = 5, **more: Any) -> Any:
    shares = [{"member_id": member.member_id, "assignment": b"share"} for member in joined.members]
    who = {"member_id": joined.member_id, "generation_id": joined.generation_id}
    named = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
    return client.ask(SYNC, version, group_id="g", assignments=shares, **{**who, **named, **more})


@pytest.mark.parametrize("version", range(10))
def test_join_group_in_every_version(address: tuple[str, int], version: int) -> None:
    with WireClient(address) as client:
        first = client.ask(JOIN, version, **wishes())
        assert first.error_code is (ErrorCode.member_id_required if version >= 4 else ErrorCode.none)
        joined = first if version < 4 else client.ask(JOIN, version, **wishes(first.member_id))
        assert (joined.error_code, joined.leader, joined.protocol_name) == (ErrorCode.none, joined.member_id, "range")
        assert b"topics" in {member.metadata for member in joined.members}
        refused = client.ask(JOIN, version, **wishes("nobody"))
        assert (refused.error_code, refused.generation_id) == (ErrorCode.unknown_member_id, -1)
        assert refused.protocol_name == (None if version >= 7 else "")


def test_a_member_of_the_first_version_is_waited_for_as_long_as_its_session(node: Node) -> None:
    """Version 0 has one timeout for both."""
    with WireClient(node.serve()) as client:
        old = client.ask(JOIN, 0, **wishes(session_timeout=timedelta(seconds=3)))
        new = client.ask(JOIN, 0, **wishes())
    assert (old.error_code, new.error_code) == (ErrorCode.none, ErrorCode.none)
    assert new.generation_id == old.generation_id + 1


@pytest.mark.parametrize("version", range(6))
def test_sync_heartbeat_and_leave_in_every_version(address: tuple[str, int], version: int) -> None:
    with WireClient(address) as client:
        joined = join(client)
        synced = sync(client, joined, version)
        assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"share")
        who = {"group_id": "g", "member_id": joined.member_id}
        beat = min(version, 4)
        assert client.ask(HEARTBEAT, beat, **who, generation_id=1).error_code is ErrorCode.none
        assert client.ask(HEARTBEAT, beat, **who, generation_id=0).error_code is ErrorCode.illegal_generation
        members = [{"member_id": joined.member_id}, {"member_id": "nobody"}]
        left = client.ask(LEAVE, version, **who, members=members)
        assert left.error_code is ErrorCode.none
        if version >= 3:
            codes = [member.error_code for member in left.members]
            assert codes == [ErrorCode.none, ErrorCode.unknown_member_id]
        assert client.ask(HEARTBEAT, beat, **who, generation_id=1).error_code is ErrorCode.unknown_member_id


def test_the_protocol_is_checked_where_it_is_named(address: tuple[str, int]) -> None:
    with WireClient(address) as client:
        joined = join(client)
        assert sync(client, joined, protocol_name="sticky").error_code is ErrorCode.inconsistent_group_protocol
        assert sync(client, joined, protocol_name=None).error_code is ErrorCode.inconsistent_group_protocol
        synced = sync(client, joined)
        assert (synced.error_code, synced.protocol_name) == (ErrorCode.none, "range")


def is_rebalancing(client: WireClient, member: Any) -> bool:
    """Whether the group tells the member so."""
    who = {"group_id": "g", "member_id": member.member_id, "generation_id": member.generation_id}
    return bool(client.ask(HEARTBEAT, 4, **who).error_code is ErrorCode.rebalance_in_progress)


def test_a_full_group_and_a_session_out_of_bounds_are_refused(address: tuple[str, int]) -> None:
    with WireClient(address) as client:
        long = client.ask(JOIN, 9, **wishes(session_timeout=timedelta(hours=1)))
        assert long.error_code is ErrorCode.invalid_session_timeout
        for _ in range(3):  # an id that was given out takes no place
            other = {**wishes(), "group_id": "other"}
            assert client.ask(JOIN, 9, **other).error_code is ErrorCode.member_id_required
    with WireClient(address) as first, WireClient(address) as second, WireClient(address) as third:
        leader = join(first)
        newcomer = second.ask(JOIN, 9, **wishes())
        second.send(request(JOIN, 9, **wishes(newcomer.member_id)))
        wait_until(lambda: is_rebalancing(first, leader), WAIT_S, "the newcomer waits")
        join(first, member_id=leader.member_id)
        second.receive()
        assert third.ask(JOIN, 9, **wishes()).error_code is ErrorCode.group_max_size_reached


@pytest.mark.parametrize(("api_key", "version"), [(JOIN, 9), (SYNC, 5), (HEARTBEAT, 4), (LEAVE, 5)])
def test_an_empty_group_id_is_refused(address: tuple[str, int], api_key: int, version: int) -> None:
    with WireClient(address) as client:
        values = {**wishes(), "protocol_name": "range", "generation_id": 0, "group_id": ""}
        response = client.ask(api_key, version, **values)
    assert response.error_code is ErrorCode.invalid_group_id


def test_what_comes_after_a_join_that_waits_is_answered_after_it(address: tuple[str, int]) -> None:
    with WireClient(address) as first, WireClient(address) as second:
        leader = join(first)
        newcomer = second.ask(JOIN, 9, **wishes())
        second.send(request(JOIN, 9, **wishes(newcomer.member_id)) + request(METADATA, 9, topics=[]))
        wait_until(lambda: is_rebalancing(first, leader), WAIT_S, "the newcomer waits")
        again = join(first, member_id=leader.member_id)
        _, joined = decode_response(JOIN, 9, second.receive())
        _, metadata = decode_response(METADATA, 9, second.receive())
        assert (joined.generation_id, joined.leader) == (again.generation_id, leader.member_id)
        assert [broker.node_id for broker in metadata.brokers] == [1]


def test_who_leaves_its_connection_while_it_waits_frees_its_thread(node: Node, address: tuple[str, int]) -> None:
    server = node.server
    assert server is not None
    with WireClient(address) as first:
        leader = join(first)
        with WireClient(address) as second:
            newcomer = second.ask(JOIN, 9, **wishes())
            second.send(request(JOIN, 9, **wishes(newcomer.member_id)))
            wait_until(lambda: node.groups.describe(GROUP).state == "PreparingRebalance", WAIT_S, "it waits")
        wait_until(lambda: server.connections() == {"PLAINTEXT": 1}, WAIT_S, "its connection is closed")
        again = join(first, member_id=leader.member_id)
        assert newcomer.member_id in {member.member_id for member in again.members}  # until its session ends


def test_who_leaves_its_group_and_its_connection_while_it_joins_is_no_member(
    node: Node, address: tuple[str, int]
) -> None:
    """As librdkafka's consumer that is closed: nobody would answer for it until its session ended."""
    with WireClient(address) as first:
        leader = join(first)
        with WireClient(address) as second:
            newcomer = second.ask(JOIN, 9, **wishes())
            leaves = request(LEAVE, 4, group_id=GROUP, members=[{"member_id": newcomer.member_id}])
            second.send(request(JOIN, 9, **wishes(newcomer.member_id)) + leaves)
            wait_until(lambda: node.groups.describe(GROUP).state == "PreparingRebalance", WAIT_S, "it waits")
        again = join(first, member_id=leader.member_id)
        assert newcomer.member_id in {member.member_id for member in again.members}
        wait_until(
            lambda: [member.member_id for member in node.groups.describe(GROUP).members] == [leader.member_id],
            WAIT_S,
            "it has left",
        )
