"""What one client wrote, every client reads: keys, headers, nulls, each compression, values of 1 byte to 1 MB.

The codec is looked up on disk, in the headers of the batches: a client that silently sends uncompressed fails here.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kafka.codec import has_snappy

from kit.clients import CLIENTS, Client, KafkaPython, Row
from kit.cluster import InProcessCluster
from raylog.protocol.records import BatchHeader, Codec, batch_headers

pytestmark = pytest.mark.conformance

COMPRESSIONS = [codec.name.lower() for codec in Codec]

rng = random.Random(11)
WORDS = [b"departure", b"arrival", b"delay", b"carrier", b"UA", b"\x00\xff"]
HEADERS: list[tuple[str, bytes | None]] = [
    ("a", b"1"),
    ("a", b"2"),
    ("empty", b""),
    ("null", None),
    ("Zürich", "ü".encode()),
]
ROWS: list[Row] = [
    (b"key", b"v", []),
    (None, b"no key", []),
    (b"no value", None, [("reason", b"tombstone")]),
    (b"", b"", []),
    (b"headers", b"x", HEADERS),
]
ROWS += [(b"%d" % n, b" ".join(rng.choices(WORDS, k=20)), [("n", b"%d" % n)]) for n in range(200)]
ROWS += [(b"size", b" ".join(rng.choices(WORDS, k=size))[:size], []) for size in (1, 10, 1_000, 100_000, 1_000_000)]
# Alone in its batch, since some clients send uncompressed what doesn't get smaller.
ROWS.append((b"random", rng.randbytes(300_000), []))


def batches_on_disk(cluster: InProcessCluster, topic: str) -> list[BatchHeader]:
    """The headers of all batches of partition 0."""
    segments: list[Path] = sorted(cluster.root.glob(f"broker-*/**/{topic}-0/*.log"))
    return [header for segment in segments for _, header in batch_headers(segment.read_bytes())]


def rows_for(client: Client) -> list[Row]:
    """The rows that the client can write."""
    if client.null_headers:
        return ROWS
    return [(key, value, [header for header in headers if header[1] is not None]) for key, value, headers in ROWS]


def needs_snappy(client: Client, compression: str) -> None:
    if compression == "snappy" and isinstance(client, KafkaPython) and not has_snappy():
        pytest.skip("kafka-python needs the package python-snappy for snappy")


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("writer", CLIENTS, ids=lambda client: client.name)
def test_what_one_client_writes_every_client_reads(brokers: InProcessCluster, writer: Client, compression: str) -> None:
    needs_snappy(writer, compression)
    topic = f"{writer.name}-{compression}"
    brokers.create_topic(topic)
    rows = rows_for(writer)
    writer.write(brokers.bootstrap_servers, topic, 0, rows, compression)

    headers = batches_on_disk(brokers, topic)
    assert sum(header.record_count for header in headers) == len(rows)
    assert len(headers) < len(rows) / 2
    compressed = {header.codec for header in headers if header.record_count > 1}
    assert compressed == {Codec.from_name(compression)}

    for reader in CLIENTS:
        if not (compression == "snappy" and isinstance(reader, KafkaPython) and not has_snappy()):
            assert reader.read(brokers.bootstrap_servers, topic, 0, len(rows)) == rows, reader.name


@pytest.mark.parametrize("writer", CLIENTS, ids=lambda client: client.name)
def test_default_settings_write_with_a_producer_id_where_the_client_is_idempotent(
    brokers: InProcessCluster, writer: Client
) -> None:
    """kafka-python and raylog are idempotent by default, librdkafka is not."""
    topic = f"default-{writer.name}"
    brokers.create_topic(topic)
    writer.write(brokers.bootstrap_servers, topic, 0, rows_for(writer)[:10], "none")
    idempotent = {header.has_producer for header in batches_on_disk(brokers, topic)}
    assert idempotent == {writer.name != "confluent-kafka"}
