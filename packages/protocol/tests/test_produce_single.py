"""The short ways through Produce, for one batch to one partition, agree with the general ones."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.protocol.errors import InvalidRequest
from raylog.protocol.wire import produce
from raylog.protocol.wire.primitives import REQUEST_HEADER, ZERO_UUID
from raylog.protocol.wire.produce import (
    PartitionRecords,
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
    ProduceResponse,
    RecordError,
    TopicRecords,
    encode_produce_request,
    encode_produce_response,
    parse_produce_request,
)

VERSIONS = range(9, 14)
TOPIC_ID = UUID(int=0x1234 << 100 | 5)


def body_of(version: int, request: ProduceRequest) -> bytes:
    frame = b"".join(encode_produce_request(version, request, correlation_id=1, client_id=None))
    return frame[4 + REQUEST_HEADER.size + 3 :]  # length, fixed part, null client id and no tags


def request_of(name: str, records: bytes | None, topic_id: UUID = ZERO_UUID) -> ProduceRequest:
    return ProduceRequest(None, 1, 1000, [TopicRecords(name, topic_id, [PartitionRecords(3, records)])])


def generally(version: int, body: bytes, monkeypatch: pytest.MonkeyPatch) -> ProduceRequest:
    with monkeypatch.context() as patch:
        patch.setattr(produce, "_parse_single", lambda version, body: None)
        return parse_produce_request(version, body)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [0, 1, 61, 126, 127, 128, 16_382, 16_383, 16_384, 70_000, 2_100_000])
def test_a_single_batch_is_parsed_the_short_way(version: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    body = body_of(version, request_of("täglich", b"x" * size, TOPIC_ID))
    single = produce._parse_single(version, memoryview(body))
    assert single is not None
    assert single == generally(version, body, monkeypatch)


@pytest.mark.parametrize(
    "request_",
    [
        request_of("t" * 127, b"x"),
        request_of("", b"x"),
        request_of("t", None),
        ProduceRequest("transactional", 1, 1000, request_of("t", b"x").topics),
        ProduceRequest(None, 1, 1000, []),
        ProduceRequest(None, 1, 1000, [*request_of("t", b"x").topics, *request_of("u", b"y").topics]),
        ProduceRequest(None, 1, 1000, [TopicRecords("t", ZERO_UUID, [PartitionRecords(0, b"x")] * 2)]),
    ],
    ids=["long name", "no name", "null", "transactional", "no topic", "two topics", "two partitions"],
)
def test_other_requests_take_the_general_way(request_: ProduceRequest) -> None:
    body = body_of(9, request_)
    assert produce._parse_single(9, memoryview(body)) is None
    assert parse_produce_request(9, body) == request_


@given(st.data())
def test_damaged_requests_never_parse_differently(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from([9, 13]))
    body = bytearray(body_of(version, request_of("topic", b"records", TOPIC_ID)))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    del body[data.draw(st.integers(0, len(body))) :]
    single = produce._parse_single(version, memoryview(body))
    if single is not None:
        with pytest.MonkeyPatch.context() as patch:
            assert single == generally(version, bytes(body), patch)


def test_an_endless_varint_is_refused_at_once() -> None:
    body = body_of(9, request_of("t", b""))[:-4] + b"\xff" * 1_000_000
    with pytest.raises(InvalidRequest):
        parse_produce_request(9, body)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "part",
    [
        ProducedPartition(3, 0, 1 << 40, -1, 7),
        ProducedPartition(3, 0, 0, 1_700_000_000_000, 0),
        ProducedPartition(3, 2, error_message="damaged"),
        ProducedPartition(3, 0, 5, record_errors=[RecordError(1, "bad")]),
        ProducedPartition(3, 6, leader_id=4, leader_epoch=9),
    ],
)
def test_responses_are_the_same_either_way(
    version: int, part: ProducedPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    response = ProduceResponse([ProducedTopic("täglich", TOPIC_ID, [part])], throttle_ms=11)
    short = encode_produce_response(version, 5, response)
    monkeypatch.setattr(produce, "_encode_single", lambda version, correlation_id, response: None)
    assert encode_produce_response(version, 5, response) == short
