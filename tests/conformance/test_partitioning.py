"""A key goes to the same partition whoever sends it: the hashes are those of Kafka's Java client and of librdkafka."""

from __future__ import annotations

import random

import confluent_kafka
import kafka
import pytest

from kit.cluster import InProcessCluster
from raylog.client import Consumer, Producer

pytestmark = pytest.mark.conformance

KEYS = [b"", b"a", b"UA", b"flights", b"\xff" * 9, *(b"key-%d" % n for n in range(200))]
PARTITIONS = 7


def placed(servers: str, topic: str) -> dict[bytes, dict[bytes | None, set[int]]]:
    """Per value, which is who sent it, the partitions of each key."""
    found: dict[bytes, dict[bytes | None, set[int]]] = {}
    with Consumer(servers, [topic], auto_offset_reset="earliest") as consumer:
        for record in consumer.iterate(until_end=True):
            found.setdefault(record.value, {}).setdefault(record.key, set()).add(record.partition)
    return found


def test_keys_go_to_the_same_partitions(brokers: InProcessCluster) -> None:
    servers = brokers.bootstrap_servers
    brokers.create_topic("by-key", partitions=PARTITIONS)
    with Producer(servers) as ours:
        for key in KEYS:
            ours.send("by-key", b"raylog", key)
    theirs = kafka.KafkaProducer(bootstrap_servers=servers.split(","))
    for key in KEYS:
        theirs.send("by-key", b"kafka-python", key)
    theirs.close()
    found = placed(servers, "by-key")
    assert set(found) == {b"raylog", b"kafka-python"}
    assert found[b"raylog"] == found[b"kafka-python"]
    assert len(set().union(*found[b"raylog"].values())) == PARTITIONS


@pytest.mark.parametrize(
    "partitioner", ["consistent", "consistent_random", "murmur2", "murmur2_random", "fnv1a", "fnv1a_random"]
)
def test_hashes_are_those_of_librdkafka(brokers: InProcessCluster, partitioner: str) -> None:
    """Of keys of every length and byte, the empty one and none among them, from rows and from columns."""
    servers, topic = brokers.bootstrap_servers, f"by-{partitioner}"
    brokers.create_topic(topic, partitions=PARTITIONS)
    chance = random.Random(7)
    keys: list[bytes | None] = [*KEYS, *(chance.randbytes(n % 40) for n in range(1_000))]
    if partitioner == "consistent_random":
        keys = list(filter(None, keys))
    if not partitioner.endswith("random"):
        keys += [None] * 3
    librdkafka = confluent_kafka.Producer({"bootstrap.servers": servers, "partitioner": partitioner})
    with Producer(servers, partitioner=partitioner) as ours:
        for key in keys:
            ours.send(topic, b"raylog", key)
            librdkafka.produce(topic, b"librdkafka", key)
        ours.send_batch(topic, [b"columns"] * len(keys), keys)
    assert librdkafka.flush(20) == 0
    found = placed(servers, topic)
    assert found[b"raylog"] == found[b"columns"] == found[b"librdkafka"]
    assert found[b"raylog"].keys() == set(keys)
    assert all(len(partitions) == 1 for partitions in found[b"raylog"].values())


@pytest.mark.parametrize(("partitioner", "key"), [("consistent_random", b""), ("fnv1a_random", None), ("random", b"k")])
def test_what_no_hash_decides_is_spread(brokers: InProcessCluster, partitioner: str, key: bytes | None) -> None:
    servers, topic = brokers.bootstrap_servers, f"spread-{partitioner}"
    brokers.create_topic(topic, partitions=PARTITIONS)
    with Producer(servers, partitioner=partitioner, batch_size=100) as ours:
        for _ in range(200):
            ours.send(topic, b"rows", key)
        for _ in range(40):
            ours.send_batch(topic, [b"columns"] * 5, [key] * 5)
    found = placed(servers, topic)
    assert all(len(found[who][key]) > 1 for who in (b"rows", b"columns"))
