"""Produce and Fetch by hand: zero copies, version ranges, malformed bytes. That they agree with Kafka's schemas is
shown by the property tests against kio."""

from __future__ import annotations

import re
from dataclasses import dataclass
from uuid import UUID

import pytest
from kio.schema.index import schema_name_map

from raylog.protocol.batches.transactions import AbortedTransaction
from raylog.protocol.errors import CorruptMessage, InvalidRequest, UnsupportedVersion
from raylog.protocol.wire import fetch, produce
from raylog.protocol.wire.fetch import (
    FetchedPartition,
    FetchedTopic,
    FetchResponse,
    encode_fetch_response,
    parse_fetch_request,
    parse_fetch_response,
)
from raylog.protocol.wire.messages import parse_request_header
from raylog.protocol.wire.primitives import ZERO_UUID
from raylog.protocol.wire.produce import (
    PartitionRecords,
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
    ProduceResponse,
    TopicRecords,
    encode_produce_request,
    encode_produce_response,
    parse_produce_request,
    parse_produce_response,
)

TOPIC_ID = UUID("12345678-1234-5678-1234-567812345678")
PRODUCE_VERSIONS = range(produce.MIN_VERSION, produce.MAX_VERSION + 1)
FETCH_VERSIONS = range(fetch.MIN_VERSION, fetch.MAX_VERSION + 1)


def named(version: int) -> tuple[str, UUID]:
    return ("", TOPIC_ID) if version >= 13 else ("flights", ZERO_UUID)


def produce_frame(version: int, records: bytes | None) -> bytearray:
    """A Produce request's frame, without its length."""
    topic = TopicRecords(*named(version), [PartitionRecords(0, b"first"), PartitionRecords(3, records)])
    parts = encode_produce_request(version, ProduceRequest(None, -1, 1500, [topic]), correlation_id=7, client_id="me")
    frame = b"".join(parts)
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    return bytearray(frame[4:])


def test_the_version_ranges_are_those_of_the_schemas() -> None:
    assert list(PRODUCE_VERSIONS) == sorted(schema_name_map["produce"])
    assert list(FETCH_VERSIONS) == sorted(schema_name_map["fetch"])


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produced_records_are_writable_slices_of_the_frame(version: int) -> None:
    frame = produce_frame(version, b"second batch")
    header = parse_request_header(frame)
    assert header[:4] == (0, version, 7, "me")
    request = parse_produce_request(version, memoryview(frame)[header.body_pos :])
    (topic,) = request.topics
    assert topic[:2] == named(version)
    assert [partition.partition for partition in topic.partitions] == [0, 3]
    records = topic.partitions[1].records
    assert isinstance(records, memoryview)
    records[0:6] = b"SECOND"
    assert b"SECOND batch" in frame


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_null_records_stay_null(version: int) -> None:
    frame = produce_frame(version, None)
    request = parse_produce_request(version, memoryview(frame)[parse_request_header(frame).body_pos :])
    assert request.topics[0].partitions[1].records is None


def test_records_to_produce_are_not_copied() -> None:
    records = bytes(1000)
    topic = TopicRecords("t", ZERO_UUID, [PartitionRecords(0, records)])
    parts = encode_produce_request(9, ProduceRequest("tx", 1, 5, [topic]), correlation_id=1, client_id=None)
    assert any(part is records for part in parts)


@pytest.mark.parametrize("version", [-1, 0, 2, 14, 99])
def test_other_versions_of_produce_are_refused(version: int) -> None:
    with pytest.raises(
        UnsupportedVersion, match=re.escape(f"Produce version {version} is not known; known are 3 to 13")
    ):
        parse_produce_request(version, b"")
    with pytest.raises(UnsupportedVersion):
        encode_produce_request(version, ProduceRequest(None, 1, 1, []), correlation_id=1, client_id=None)
    with pytest.raises(UnsupportedVersion):
        encode_produce_response(version, 1, ProduceResponse([]))
    with pytest.raises(UnsupportedVersion):
        parse_produce_response(version, b"")


@pytest.mark.parametrize("version", [-1, 0, 3, 19, 99])
def test_other_versions_of_fetch_are_refused(version: int) -> None:
    with pytest.raises(UnsupportedVersion, match=re.escape(f"Fetch version {version} is not known; known are 4 to 18")):
        parse_fetch_request(version, b"")
    with pytest.raises(UnsupportedVersion):
        fetch.encode_fetch_request(version, fetch.FetchRequest(1, 1, []), correlation_id=1, client_id=None)
    with pytest.raises(UnsupportedVersion):
        encode_fetch_response(version, 1, FetchResponse[bytes]([]))
    with pytest.raises(UnsupportedVersion):
        parse_fetch_response(version, b"")


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_every_cut_of_a_produce_request_is_invalid(version: int) -> None:
    frame = produce_frame(version, b"records")
    body = memoryview(frame)[parse_request_header(frame).body_pos :]
    for end in range(len(body)):
        with pytest.raises(InvalidRequest):
            parse_produce_request(version, body[:end])
    with pytest.raises(InvalidRequest, match="left over"):
        parse_produce_request(version, bytes(body) + b"\0")


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_every_cut_of_a_produce_response_is_corrupt(version: int) -> None:
    topic = ProducedTopic(*named(version), [ProducedPartition(0, 87, 5, -1, 0, [produce.RecordError(2, "bad")], "why")])
    frame = encode_produce_response(version, 3, ProduceResponse([topic]))
    assert parse_produce_response(version, frame)[0] == 3
    for end in range(len(frame)):
        with pytest.raises(CorruptMessage):
            parse_produce_response(version, frame[:end])


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_every_cut_of_a_fetch_is_refused(version: int) -> None:
    partition = fetch.FetchPartition(1, 5, 1000, 2, 1, 0, TOPIC_ID, 4)
    forgotten = [fetch.ForgottenTopic(*named(version), [1, 2])]
    request = fetch.FetchRequest(500, 1, [fetch.FetchTopic(*named(version), [partition])], forgotten=forgotten)
    frame = fetch.encode_fetch_request(version, request, correlation_id=4, client_id="c")[4:]
    body = frame[parse_request_header(frame).body_pos :]
    assert parse_fetch_request(version, body).topics[0].partitions[0].fetch_offset == 5
    for end in range(len(body)):
        with pytest.raises(InvalidRequest):
            parse_fetch_request(version, body[:end])
    response = b"".join(encode_fetch_response(version, 3, fetched(version, b"records")))
    for end in range(len(response)):
        with pytest.raises(CorruptMessage):
            parse_fetch_response(version, response[:end])


def fetched(version: int, records: bytes) -> FetchResponse[bytes]:
    partition = FetchedPartition(0, 0, 10, 10, 0, records, [AbortedTransaction(1, 2)])
    return FetchResponse([FetchedTopic(*named(version), [partition])])


@dataclass(frozen=True)
class Slice:
    """As a piece of a file."""

    length: int


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetched_slices_pass_through_in_their_places(version: int) -> None:
    first, second = Slice(100), Slice(200)
    partitions = [
        FetchedPartition(0, records=first),
        FetchedPartition[Slice](1),
        FetchedPartition(2, records=second),
        FetchedPartition(3, records=Slice(0)),
    ]
    parts = encode_fetch_response(version, 9, FetchResponse([FetchedTopic(*named(version), partitions)]))
    assert [part for part in parts if isinstance(part, Slice)] == [first, second]
    frame = b"".join(part if isinstance(part, bytes) else b"x" * part.length for part in parts)
    correlation_id, response = parse_fetch_response(version, frame)
    assert correlation_id == 9
    lengths = [len(partition.records or b"") for partition in response.topics[0].partitions]
    assert lengths == [100, 0, 200, 0]


def test_missing_record_data_is_sent_as_empty_because_a_null_reads_as_damage() -> None:
    response: FetchResponse[bytes] = FetchResponse([FetchedTopic("t", ZERO_UUID, [FetchedPartition(0)])])
    _, parsed = parse_fetch_response(11, b"".join(encode_fetch_response(11, 1, response)))
    records = parsed.topics[0].partitions[0].records
    assert records is not None
    assert len(records) == 0


def test_fetched_records_are_views_of_the_frame() -> None:
    frame = bytearray(b"".join(encode_fetch_response(12, 1, fetched(12, b"batches"))))
    _, response = parse_fetch_response(12, frame)
    frame[frame.index(b"batches") : frame.index(b"batches") + 1] = b"B"
    records = response.topics[0].partitions[0].records
    assert records is not None
    assert bytes(records) == b"Batches"


@pytest.mark.parametrize("count", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x80\x00\x00\x00"])
def test_an_array_that_claims_billions_costs_nothing(count: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_produce_request(3, b"\xff\xff\x00\x01\x00\x00\x00\x05" + count + bytes(50))
    with pytest.raises(InvalidRequest):
        parse_fetch_request(4, bytes(17) + count + bytes(50))


def test_records_of_a_length_beyond_the_frame_are_refused() -> None:
    body = b"\xff\xff\x00\x01\x00\x00\x00\x05\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x00"
    for length in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xfe", b"\x00\x00\x00\x02"):
        with pytest.raises(InvalidRequest):
            parse_produce_request(3, body + length + b"x")


def test_a_number_that_does_not_fit_is_refused_when_encoding() -> None:
    with pytest.raises(InvalidRequest, match="cannot encode"):
        encode_produce_response(9, 1, ProduceResponse([], throttle_ms=2**31))
