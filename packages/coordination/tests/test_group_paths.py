"""The nodes of consumer groups: Kafka's where it had some, and ids that are no names of nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.coordination.metadata import group_paths
from raylog.coordination.metadata.group_model import CommittedOffset, GroupKind, Registered, Shares
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.protocol.ids import (
    NO_TOPIC_ID,
    Generation,
    GroupId,
    LeaderEpoch,
    MemberId,
    Offset,
    PartitionIndex,
    TimestampMs,
    TopicId,
    TopicName,
    TopicPartition,
)

GROUP = GroupId("readers")
TP = TopicPartition(TopicName("flights"), PartitionIndex(3))


def test_nodes_are_where_tools_of_the_zookeeper_era_look() -> None:
    assert group_paths.member(GROUP, MemberId("one-1")) == "/consumers/readers/ids/one-1"
    assert group_paths.owner(GROUP, TP) == "/consumers/readers/owners/flights/3"
    assert group_paths.offset(GROUP, TP) == "/consumers/readers/offsets/flights/3"
    assert group_paths.detail(GROUP, TP) == "/raylog/groups/readers/offsets/flights/3"
    assert group_paths.encode_offset(Offset(12)) == b"12"


@given(st.text())
def test_any_id_is_the_name_of_one_node_and_found_again(text: str) -> None:
    name = group_paths.node_name(text)
    assert group_paths.group_of(name) == group_paths.topic_of(name) == text
    assert name not in ("", ".", "..")
    assert name.isascii()
    assert name.isprintable()
    assert "/" not in name


def test_plain_ids_stay_as_they_are() -> None:
    for plain in ("readers", "a.b-c_d", "console-consumer-12", "team:billing (1)"):
        assert group_paths.node_name(plain) == plain
    assert group_paths.node_name("a/b%") == "a%2Fb%25"


def test_values_survive() -> None:
    for kind in GroupKind:
        assert group_paths.decode_kind(GROUP, group_paths.encode_kind(kind)) is kind
    shares = Shares(Generation(4), {MemberId("a"): (TP, TP._replace(topic=TopicName("other"))), MemberId("b"): ()})
    assert group_paths.decode_assignment(GROUP, group_paths.encode_assignment(shares)) == shares
    for registered in (
        Registered(frozenset({TP.topic, TopicName("other")}), None, "host", 9),
        Registered(frozenset(), "flights.*"),
    ):
        assert group_paths.decode_member("/m", group_paths.encode_member(registered, TimestampMs(5))) == registered
    assert group_paths.decode_owner("/o", group_paths.encode_owner(MemberId("ä"))) == "ä"


def test_a_member_is_registered_in_kafkas_words() -> None:
    value = json.loads(group_paths.encode_member(Registered(frozenset({TP.topic}), None), TimestampMs(5)))
    assert value == {"version": 1, "subscription": {"flights": 1}, "pattern": "static", "timestamp": "5"}


def test_what_was_committed_beside_another_offset_is_not_this_ones() -> None:
    committed = CommittedOffset(Offset(12), LeaderEpoch(3), 'beside "it" 🙂', TimestampMs(77))
    topic = TopicId(UUID(int=7))
    detail = group_paths.encode_detail(committed, topic)
    assert group_paths.decode_committed("/o", b"12", detail) == (committed, topic)
    assert group_paths.decode_committed("/o", b"13", detail) == (CommittedOffset(Offset(13)), NO_TOPIC_ID)
    assert group_paths.decode_committed("/o", b"12", b"") == (CommittedOffset(Offset(12)), NO_TOPIC_ID)
    detail = group_paths.encode_detail(committed, NO_TOPIC_ID)
    assert group_paths.decode_committed("/o", b"12", detail) == (committed, NO_TOPIC_ID)


@pytest.mark.parametrize("none", [b"", b"-1", b"-5"])
def test_no_offset(none: bytes) -> None:
    assert group_paths.decode_committed("/o", none, b"") is None


@pytest.mark.parametrize(
    ("path", "decode"),
    [
        ("/consumers/g/offsets/t/0", lambda data: group_paths.decode_committed("/consumers/g/offsets/t/0", data, b"")),
        ("/o", lambda data: group_paths.decode_committed("/o", b"7", data)),
        ("/raylog/groups/readers", lambda data: group_paths.decode_kind(GROUP, data)),
        ("/raylog/groups/readers/assignment", lambda data: group_paths.decode_assignment(GROUP, data)),
        ("/m", lambda data: group_paths.decode_member("/m", data)),
    ],
)
@pytest.mark.parametrize("data", [b"{", b"[]", b'"x"', b'{"version": 1, "offset": 7}', b"\xff"])
def test_damaged_values_name_their_node(path: str, decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(CorruptMetadata, match=path):
        decode(data)
