"""What one client wrote, every client reads: keys, headers, nulls, each compression, values of 1 byte to 1 MB.

The codec is looked up on disk, in the headers of the batches: a client that silently sends uncompressed fails here.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kit import kafka_java
from kit.clients import PYTHON_CLIENTS, Client, KafkaPython, Kcat, Row
from kit.cluster import InProcessCluster
from raylog.protocol.records import BatchHeader, Codec, batch_headers

pytestmark = pytest.mark.conformance

NAMES = [client.name for client in (*PYTHON_CLIENTS, Kcat(), *kafka_java.RELEASES)]
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


@pytest.mark.timeout(180)
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("writer_name", NAMES)
def test_what_one_client_writes_every_client_reads(
    brokers: InProcessCluster, clients: dict[str, Client], writer: Client, compression: str
) -> None:
    topic = f"{writer.name}-{compression}"
    brokers.create_topic(topic)
    rows = writer.writable(ROWS)
    writer.write(brokers.bootstrap_servers, topic, 0, rows, compression)

    headers = batches_on_disk(brokers, topic)
    assert sum(header.record_count for header in headers) == len(rows)
    assert len(headers) < len(rows) / 2
    compressed = {header.codec for header in headers if header.record_count > 1}
    assert compressed == {Codec.from_name(compression)}

    for reader in clients.values():
        read = reader.read(brokers.bootstrap_servers, topic, 0, len(rows))
        assert read == [reader.readable(row) for row in rows], reader.name


@pytest.mark.parametrize("writer_name", NAMES)
def test_default_settings_write_with_a_producer_id_where_the_client_is_idempotent(
    brokers: InProcessCluster, writer: Client
) -> None:
    """Java, kafka-python and raylog are idempotent by default; librdkafka and aiokafka are not."""
    topic = f"default-{writer.name}"
    brokers.create_topic(topic)
    writer.write(brokers.bootstrap_servers, topic, 0, writer.writable(ROWS)[:10], "none")
    assert {header.has_producer for header in batches_on_disk(brokers, topic)} == {writer.idempotent}


@pytest.mark.parametrize("release", [(0, 11), (1, 0), (2, 0), (2, 4), (2, 8), (3, 7), (4, 0)], ids=str)
def test_kafka_python_speaks_the_versions_of_older_releases(
    brokers: InProcessCluster, release: tuple[int, ...]
) -> None:
    """Asked to, it uses the API versions of that release and does not ask which ones the broker has."""
    client = KafkaPython(release)
    brokers.create_topic(client.name)
    rows = client.writable(ROWS)
    client.write(brokers.bootstrap_servers, client.name, 0, rows, "gzip")
    assert client.read(brokers.bootstrap_servers, client.name, 0, len(rows)) == rows


def test_kcat_writes_and_shows_headers(brokers: InProcessCluster, clients: dict[str, Client]) -> None:
    kcat = clients.get("kcat")
    if not isinstance(kcat, Kcat):
        pytest.skip("kcat is not installed")
    brokers.create_topic("kcat-headers")
    at = (brokers.bootstrap_servers, "kcat-headers", 0)
    kcat.run("-P", *at, "-H", "a=1", "-H", "a=2", "-H", "empty=", stdin=b"value")
    expected: list[tuple[str, bytes | None]] = [("a", b"1"), ("a", b"2"), ("empty", b"")]
    for reader in clients.values():
        assert reader.read(*at, 1) == [reader.readable((None, b"value", expected))], reader.name
    assert kcat.run("-C", *at, "-o", "beginning", "-c", 1, "-f", "%h") == b"a=1,a=2,empty="
