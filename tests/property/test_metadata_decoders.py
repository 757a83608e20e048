"""Every decoder of the metadata store's nodes: bytes in, a value or CorruptMetadata out, and nothing else.

Whatever a decoder answers can be written again, and read again as the same: so no value slips through that a later
encoder, a struct or a path cannot bear.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raylog.broker.groups.classic.claims import decode_claim, decode_group, encode_claim, encode_group
from raylog.coordination.metadata import group_paths, paths, producer_ids
from raylog.coordination.metadata.model import NO_BROKER_EPOCH
from raylog.coordination.store.node_json import CorruptMetadata
from raylog.protocol.ids import (
    NO_TIMESTAMP,
    BrokerId,
    GroupId,
    PartitionIndex,
    TopicName,
    TopicPartition,
)

ONE, GROUP = BrokerId(1), GroupId("readers")
TP = TopicPartition(TopicName("flights"), PartitionIndex(3))
NAMES = (
    "version", "id", "brokerid", "endpoints", "host", "port", "rack", "listener_security_protocol_map", "topic_id",
    "partitions", "adding_replicas", "removing_replicas", "leader", "leader_epoch", "isr", "elr", "incarnations",
    "controller_epoch", "config", "entity_path", "broker", "block_start", "block_end", "kind", "offset", "metadata",
    "timestamp", "subscription", "pattern", "machine", "generation", "members", "coordinator", "broker_epoch",
    "protocol_type", "protocol", "node", "actor", "directory_ids", "clean_stop", "intact_since", "disks_since",
    "boot_id",
)  # fmt: skip
"""Of all fields in all nodes."""
REPLICAS = (BrokerId(1), BrokerId(2))


def _reencoded_broker(data: bytes) -> object:
    info = paths.decode_broker(ONE, data, None, NO_BROKER_EPOCH)
    assert paths.decode_broker(ONE, paths.encode_broker(info, NO_TIMESTAMP), None, NO_BROKER_EPOCH) == info
    assert all(0 <= endpoint.port < 1 << 16 for endpoint in info.endpoints)
    return info


def _reencoded_topic(data: bytes) -> object:
    found = paths.decode_topic(TP.topic, data)
    assert paths.decode_topic(TP.topic, paths.encode_topic(found)) == found
    assert all(replicas and len({*replicas}) == len(replicas) for replicas in found.replicas)
    return found


def _reencoded_state(data: bytes) -> object:
    state = paths.decode_partition_state(TP, data, 7, REPLICAS)
    assert paths.decode_partition_state(TP, paths.encode_partition_state(state), 7, REPLICAS) == state
    assert state.isr or state.elr
    return state


def _reencoded_member(data: bytes) -> object:
    member = group_paths.decode_member("/m", data)
    assert group_paths.decode_member("/m", group_paths.encode_member(member, NO_TIMESTAMP)) == member
    return member


def _reencoded_shares(data: bytes) -> object:
    shares = group_paths.decode_assignment(GROUP, data)
    encoded = group_paths.encode_assignment(shares)  # in order
    assert group_paths.encode_assignment(group_paths.decode_assignment(GROUP, encoded)) == encoded
    return shares


def _reencoded_group(data: bytes) -> object:
    group = decode_group("/g", data)
    assert decode_group("/g", encode_group(group)) == group
    return group


def _reencoded_claim(data: bytes) -> object:
    claim = decode_claim("/c", data)
    assert decode_claim("/c", encode_claim(claim)) == claim
    return claim


def _text_again(found: object) -> object:
    json.dumps(found, ensure_ascii=False).encode()
    return found


DECODERS: dict[str, Callable[[bytes], object]] = {
    "controller epoch": paths.decode_controller_epoch,
    "feature level": paths.decode_feature_level,
    "cluster id": lambda data: _text_again(paths.decode_cluster_id(data)),
    "controller": paths.decode_controller,
    "broker": _reencoded_broker,
    "raylog broker": lambda data: paths.decode_former_life(ONE, data),
    "topic": _reencoded_topic,
    "partition state": _reencoded_state,
    "config": lambda data: _text_again(paths.decode_config("/config/topics/t", data)),
    "config change": lambda data: _text_again(paths.decode_config_change("/config/changes/c", data)),
    "producer ids": producer_ids.decode_block,
    "kind": lambda data: group_paths.decode_kind(GROUP, data),
    "offset": lambda data: group_paths.decode_offset("/o", data),
    "details": lambda data: group_paths.decode_committed("/o", b"7", data),
    "member": _reencoded_member,
    "owner": lambda data: _text_again(group_paths.decode_owner("/o", data)),
    "assignment": _reencoded_shares,
    "group state": _reencoded_group,
    "claim": _reencoded_claim,
}

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 5)
    | st.sampled_from([2**31 - 1, 2**31, 2**63, 10**30, 1.5, float("inf"), float("nan"), "", "1", "-1", "..", "\x00"])
    | st.sampled_from(["\ud800", "PLAINTEXT://h:1", "PLAINTEXT://h\x00:1", "A://h:99999", "static", "white_list"])
    | st.sampled_from(
        ["actors", "clients", "topics/..", "AAAAAAAAAAAAAAAAAAAAAQ", "12345678-1234-5678-1234-567812345678"]
    )
)
_names = st.sampled_from(NAMES) | st.sampled_from(["0", "1", "2", "-1", "٣", "flights", "..", "a b", "\ud800", "m"])
_values: st.SearchStrategy[Any] = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=4),
    max_leaves=12,
)
_objects = st.dictionaries(_names, _values, max_size=12).map(lambda value: json.dumps(value).encode())
_DEEP = b"[" * 100_000
_DEEP_OBJECT = b'{"partitions":' * 50_000
_LONG_NUMBER = b'{"brokerid":' + b"9" * 10_000 + b"}"


def _unreadable(name: str, data: bytes) -> str | None:
    """The node that the decoder complains about, in few words; None where it answers a value."""
    try:
        DECODERS[name](data)
    except CorruptMetadata as error:
        return error.path if len(str(error)) < 500 else str(error)
    return None


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.binary(max_size=64) | _objects | st.sampled_from([b"\xff\xfe", b"null", b"9" * 30, b" 7 ", b"1_0"]))
@example(data=b"")
@example(data=_DEEP)
@example(data=_DEEP_OBJECT)
@example(data=_LONG_NUMBER)
@example(data=b"9" * 5_000)
@example(data=b" " * 900_000)
def test_decoder_answers_a_value_or_corrupt_metadata(name: str, data: bytes) -> None:
    path = _unreadable(name, data)
    assert path is None or path.startswith("/"), "it names the node"


FIELDS: dict[str, bytes] = {
    "controller": b'{"version":1,"brokerid":1,"timestamp":"5"}',
    "broker": b'{"version":5,"host":"h","port":1,"endpoints":["PLAINTEXT://h:1"],"rack":"r",'
    b'"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"}}',
    "raylog broker": b'{"version":1,"node":"n","actor":"a","directory_ids":["12345678-1234-5678-1234-567812345678"],'
    b'"clean_stop":true,"intact_since":3,"disks_since":2,"boot_id":"b"}',
    "topic": b'{"version":3,"topic_id":"AAAAAAAAAAAAAAAAAAAAAQ","partitions":{"0":[1,2],"1":[2,3]},'
    b'"adding_replicas":{"0":[2]},"removing_replicas":{"1":[3]}}',
    "partition state": b'{"controller_epoch":3,"leader":1,"version":1,"leader_epoch":4,"isr":[1,2],"elr":[3],'
    b'"incarnations":{"1":4,"2":7}}',
    "config": b'{"version":1,"config":{"retention.ms":"5"}}',
    "config change": b'{"version":2,"entity_path":"topics/t"}',
    "producer ids": b'{"version":1,"broker":1,"block_start":"1000","block_end":"1999"}',
    "details": b'{"version":1,"offset":7,"leader_epoch":2,"metadata":"m","timestamp":5}',
    "member": b'{"version":1,"subscription":{"flights":1},"pattern":"static","timestamp":"5","host":"h","port":9,'
    b'"machine":"m"}',
    "assignment": b'{"version":1,"generation":4,"members":{"a":{"flights":[0,1]},"b":{}}}',
    "claim": b'{"version":1,"coordinator":1,"broker_epoch":2}',
    "group state": b'{"version":1,"generation":3,"protocol_type":"consumer",'
    b'"protocol":"range","leader":"m","members":[{"id":"m","instance_id":null,"client_id":"c","client_host":"/h",'
    b'"session_timeout_ms":6000,"rebalance_timeout_ms":6000,"metadata":"AAA=","assignment":""}]}',
}
"""A whole value for each decoder of JSON objects; a field of it is replaced."""


@pytest.mark.parametrize("name", FIELDS)
@given(data=st.data())
def test_decoder_bears_a_wrong_value_anywhere(name: str, data: st.DataObject) -> None:
    value = json.loads(FIELDS[name])
    DECODERS[name](json.dumps(value).encode())  # it is one
    spoil(value, data)
    path = _unreadable(name, json.dumps(value).encode())
    assert path is None or path.startswith("/"), "it names the node"


def spoil(value: Any, data: st.DataObject) -> None:
    """Replace one thing, however deep inside."""
    while True:
        keys = sorted(value) if isinstance(value, dict) else range(len(value))
        key = data.draw(st.sampled_from(keys))
        inner = value[key]
        if not isinstance(inner, (dict, list)) or not inner or data.draw(st.booleans()):
            value[key] = data.draw(_values)
            return
        value = inner
