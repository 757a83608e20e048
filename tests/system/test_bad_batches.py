"""Batches that are sound but for what they claim, over a real socket: refused as by Kafka, and nothing is stored."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from kit.cluster import InProcessCluster
from kit.wire import WireClient
from raylog.protocol.records import Codec, Record, TimestampType, encode_batch

IDEMPOTENT = {"producer_id": 7_000, "producer_epoch": 0, "base_sequence": 0}


def sent(**how: Any) -> bytes:
    """A batch that a client makes so on purpose."""
    return encode_batch([Record(b"value", b"key", timestamp=1)], **how)


def claiming(count: int, codec: Codec) -> bytes:
    """A sound batch, but for how many records its header says that it has."""
    data = bytearray(sent(codec=codec))
    struct.pack_into(">i", data, 23, count - 1)
    struct.pack_into(">i", data, 57, count)
    data[17:21] = struct.pack(">I", crc32c(bytes(data[21:])))
    return bytes(data)


REFUSED: dict[str, tuple[bytes, ErrorCode]] = {
    **{f"too many records for {codec.name}": (claiming(2**31 - 1, codec), ErrorCode.invalid_record) for codec in Codec},
    "base offset": (sent(base_offset=5), ErrorCode.invalid_record),
    "LogAppendTime": (sent(timestamp_type=TimestampType.LOG_APPEND_TIME), ErrorCode.invalid_timestamp),
    "transactional without an id": (
        sent(**IDEMPOTENT, transactional=True),
        ErrorCode.transactional_id_authorization_failed,
    ),
    "transactional without a producer": (sent(transactional=True), ErrorCode.invalid_record),
    "producer without a sequence": (sent(**(IDEMPOTENT | {"base_sequence": -1})), ErrorCode.invalid_record),
    "producer without an epoch": (sent(**(IDEMPOTENT | {"producer_epoch": -1})), ErrorCode.invalid_record),
    "two batches of a producer": (sent(**IDEMPOTENT) * 2, ErrorCode.invalid_record),
    "two batches": (sent() * 2, ErrorCode.invalid_record),
    "control batch": (sent(control=True), ErrorCode.invalid_record),
    "control batch of a producer": (sent(**IDEMPOTENT, control=True), ErrorCode.invalid_record),
    "no batch": (b"", ErrorCode.invalid_record),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessCluster]:
    with InProcessCluster(tmp_path_factory.mktemp("bad-batches")) as cluster:
        cluster.create_topic("t")
        cluster.create_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
        for name in ("t", "stamped"):
            cluster.leader(name, 0)  # a broker knows a topic a moment before it leads in it
        yield cluster


@pytest.fixture
def client(cluster: InProcessCluster) -> Iterator[WireClient]:
    host, _, port = cluster.bootstrap_servers.rpartition(":")
    with WireClient((host, int(port))) as client:
        yield client


@pytest.mark.parametrize("topic", ["t", "stamped"])
@pytest.mark.parametrize("what", REFUSED)
def test_a_batch_is_refused_and_nothing_is_stored(client: WireClient, topic: str, what: str) -> None:
    batch, code = REFUSED[what]
    end = client.ask(2, 6, topics=[{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}])
    part = client.produce(topic, batch).topics[0].partitions[0]
    assert (part.error_code, part.base_offset) == (code.value, -1)
    assert part.error_message
    produced = client.produce(topic, sent()).topics[0].partitions[0]
    assert (produced.error_code, produced.base_offset) == (0, end.topics[0].partitions[0].offset)


def test_zstd_is_refused_where_old_clients_could_not_read_it(client: WireClient) -> None:
    produced = client.produce("t", sent(codec=Codec.ZSTD), version=6).topics[0].partitions[0]
    assert produced.error_code == ErrorCode.unsupported_compression_type
    assert client.produce("t", sent(codec=Codec.ZSTD), version=7).topics[0].partitions[0].error_code == 0
