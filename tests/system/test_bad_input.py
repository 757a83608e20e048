"""Bad input over a real socket: the Kafka error that fits or an orderly end, and other clients never notice."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from kit.cluster import InProcessCluster
from kit.wire import WireClient, produce_request, request
from raylog.broker.handlers import TABLE, ApiRow
from raylog.protocol.batches.header import read_header
from raylog.protocol.records import Record, decode_batches, encode_batch
from raylog.protocol.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from raylog.protocol.wire.primitives import ZERO_UUID

BATCH = encode_batch([Record(b"value", b"key") for _ in range(3)])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path_factory.mktemp("bad-input")) as cluster:
        cluster.create_topic("good")
        cluster.create_topic("small", config={"max.message.bytes": "1000"})
        yield cluster


@pytest.fixture
def address(cluster: InProcessCluster) -> tuple[str, int]:
    host, _, port = cluster.bootstrap_servers.rpartition(":")
    return host, int(port)


class Bystander:
    """A client that was there before, and after whatever happened still has its connection and its records."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.client = WireClient(address)
        self.written = 0
        self.work()

    def work(self) -> None:
        produced = self.client.produce("good", encode_batch([Record(b"fine")])).topics[0].partitions[0]
        assert produced.error_code == 0
        part = FetchPartition(0, produced.base_offset, 1 << 20)
        request = FetchRequest(0, 1, [FetchTopic("good", ZERO_UUID, [part])])
        found = self.client.fetch(12, request).topics[0].partitions[0]
        records = decode_batches(found.records or b"", from_offset=produced.base_offset)
        assert [record.value for record in records] == [b"fine"]


@pytest.fixture(autouse=True)
def bystander(address: tuple[str, int]) -> Iterator[Bystander]:
    bystander = Bystander(address)
    with bystander.client:
        yield bystander
        bystander.work()


@pytest.fixture
def client(address: tuple[str, int]) -> Iterator[WireClient]:
    with WireClient(address) as client:
        yield client


# --- frames
# -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [-1, 0, 2**31 - 1, -(2**31)])
def test_a_frame_of_an_impossible_length_ends_the_connection(client: WireClient, length: int) -> None:
    client.send(struct.pack(">i", length) + b"whatever comes behind it")
    assert client.closed()


def test_a_frame_that_stays_away_harms_nobody(client: WireClient, bystander: Bystander) -> None:
    client.send(struct.pack(">i", 50_000_000) + bytes(100_000))
    bystander.work()


@pytest.mark.parametrize("size", [1, 3, 7, 9])
def test_a_frame_too_short_for_a_header_ends_the_connection(client: WireClient, size: int) -> None:
    client.send(struct.pack(">i", size) + bytes(size))
    assert client.closed()


def test_a_request_before_the_bad_frame_is_still_answered(client: WireClient) -> None:
    client.send(request(3, 9, topics=None) + struct.pack(">i", -1))
    assert client.receive()
    assert client.closed()


# --- APIs and versions
# ------------------------------------------------------------------------------------------


def header(api_key: int, version: int, body: bytes = b"") -> bytes:
    frame = struct.pack(">hhih", api_key, version, 7, -1) + body
    return struct.pack(">i", len(frame)) + frame


@pytest.mark.parametrize("api_key", [-1, 7, 11, 999, 32767])
def test_an_unknown_api_ends_the_connection(client: WireClient, api_key: int) -> None:
    client.send(header(api_key, 0))
    assert client.closed()


@pytest.mark.parametrize(
    ("api_key", "version"), [(0, 2), (0, 14), (0, -1), (1, 3), (1, 19), (3, 14), (3, -1), (22, 6), (19, 99)]
)
def test_an_unknown_version_ends_the_connection(client: WireClient, api_key: int, version: int) -> None:
    client.send(header(api_key, version))
    assert client.closed()


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_an_unknown_version_of_api_versions_gets_a_v0_answer_and_may_go_on(client: WireClient, version: int) -> None:
    client.send(header(18, version, b"\x00\x01\x02"))
    frame = client.receive()
    correlation_id, error, count, key, low, high = struct.unpack(">ihihhh", frame)
    assert (correlation_id, error, count, key, low, high) == (7, 35, 1, 18, 0, 4)
    assert client.ask(18, 0).error_code is ErrorCode.none


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_body_of_noise_ends_the_connection(client: WireClient, row: ApiRow) -> None:
    client.send(header(row.key, row.max_version, b"\x7f" * 40))
    assert client.closed()


# --- batches
# ----------------------------------------------------------------------------------------------------


def patched(position: int, data: bytes, *, fix_crc: bool = False) -> bytes:
    batch = bytearray(BATCH)
    batch[position : position + len(data)] = data
    if fix_crc:
        batch[17:21] = struct.pack(">I", crc32c(bytes(batch[21:])))
    return bytes(batch)


def flip_a_bit() -> bytes:
    return patched(len(BATCH) - 1, bytes([BATCH[-1] ^ 1]))


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (flip_a_bit(), ErrorCode.corrupt_message),
        (patched(17, b"\x00\x00\x00\x00"), ErrorCode.corrupt_message),
        (patched(16, b"\x01"), ErrorCode.invalid_record),
        (patched(16, b"\x00"), ErrorCode.invalid_record),
        (patched(16, b"\x7f"), ErrorCode.corrupt_message),
        (patched(8, struct.pack(">i", 5)), ErrorCode.corrupt_message),
        (patched(8, struct.pack(">i", -1)), ErrorCode.corrupt_message),
        (patched(8, struct.pack(">i", 2**31 - 1)), ErrorCode.invalid_record),
        (patched(23, struct.pack(">i", 7), fix_crc=True), ErrorCode.invalid_record),
        (patched(57, struct.pack(">i", -5), fix_crc=True), ErrorCode.invalid_record),
        (patched(57, struct.pack(">i", 100), fix_crc=True), ErrorCode.invalid_record),
        (patched(21, struct.pack(">h", 7), fix_crc=True), ErrorCode.unsupported_compression_type),
        (patched(21, struct.pack(">h", 1 << 5), fix_crc=True), ErrorCode.invalid_record),
        (BATCH[:40], ErrorCode.invalid_record),
        (b"\x00", ErrorCode.invalid_record),
        (BATCH + b"rest", ErrorCode.invalid_record),
    ],
    ids=[
        "bit flipped",
        "wrong CRC",
        "magic 1",
        "magic 0",
        "magic 127",
        "length too small",
        "negative length",
        "length beyond the request",
        "last offset and count disagree",
        "negative count",
        "count too high",
        "unknown codec",
        "control batch",
        "cut off",
        "one byte",
        "rest behind it",
    ],
)
def test_a_bad_batch_is_refused_and_the_connection_goes_on(client: WireClient, batch: bytes, code: ErrorCode) -> None:
    end = client.ask(2, 6, topics=[{"name": "good", "partitions": [{"partition_index": 0, "timestamp": -1}]}])
    part = client.produce("good", batch).topics[0].partitions[0]
    assert (part.error_code, part.base_offset) == (code.value, -1)
    assert part.error_message
    produced = client.produce("good", BATCH).topics[0].partitions[0]
    assert (produced.error_code, produced.base_offset) == (0, end.topics[0].partitions[0].offset)


def test_a_batch_over_max_message_bytes_is_refused(client: WireClient) -> None:
    large, fits = encode_batch([Record(bytes(1000))]), encode_batch([Record(bytes(800))])
    assert read_header(fits).size <= 1000
    assert client.produce("small", large).topics[0].partitions[0].error_code == ErrorCode.message_too_large
    assert client.produce("small", fits).topics[0].partitions[0].error_code == 0


def test_a_bad_batch_without_acks_ends_the_connection(client: WireClient) -> None:
    client.send(produce_request("good", flip_a_bit(), acks=0))
    assert client.closed()


# --- topics and settings
# ----------------------------------------------------------------------------------------


def create(client: WireClient, name: str, **configs: str) -> Any:
    topic = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }
    [created] = client.ask(19, 7, topics=[topic]).topics
    return created


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../up", "a b", "ü", "x" * 250, "nul\x00"])
def test_an_illegal_topic_name_is_refused(client: WireClient, name: str) -> None:
    created = create(client, name)
    assert created.error_code is ErrorCode.invalid_topic_exception
    assert created.error_message
    [asked] = client.ask(3, 9, topics=[{"name": name}], allow_auto_topic_creation=True).topics
    assert asked.error_code is ErrorCode.invalid_topic_exception


@pytest.mark.parametrize(
    "configs",
    [{"no_such_setting": "1"}, {"retention_ms": "soon"}, {"segment_bytes": "-5"}, {"cleanup_policy": "compact"}],
    ids=str,
)
def test_an_unknown_or_unfit_config_is_refused_by_name(client: WireClient, configs: dict[str, str]) -> None:
    created = create(client, "never-made", **configs)
    assert created.error_code is ErrorCode.invalid_config
    assert next(iter(configs)).replace("_", ".") in created.error_message
    known = client.ask(3, 9, topics=None).topics
    assert "never-made" not in [topic.name for topic in known]
