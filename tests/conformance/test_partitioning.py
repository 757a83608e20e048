"""A key goes to the same partition whoever sends it: the hash is the one of Kafka's Java client."""

from __future__ import annotations

import confluent_kafka
import kafka
import pytest

from kit.cluster import InProcessCluster
from raylog.client import Consumer, Producer

pytestmark = pytest.mark.conformance

KEYS = [b"", b"a", b"UA", b"flights", b"\xff" * 9, *(b"key-%d" % n for n in range(200))]


def test_keys_go_to_the_same_partitions(brokers: InProcessCluster) -> None:
    servers = brokers.bootstrap_servers
    brokers.create_topic("by-key", partitions=7)
    with Producer(servers) as ours:
        for key in KEYS:
            ours.send("by-key", b"raylog", key)
    theirs = kafka.KafkaProducer(bootstrap_servers=servers.split(","))
    for key in KEYS:
        theirs.send("by-key", b"kafka-python", key)
    theirs.close()
    librdkafka = confluent_kafka.Producer({"bootstrap.servers": servers, "partitioner": "murmur2"})
    for key in KEYS:
        librdkafka.produce("by-key", b"confluent-kafka", key)
    assert librdkafka.flush(20) == 0

    with Consumer(servers, ["by-key"], auto_offset_reset="earliest") as consumer:
        placed: dict[bytes, dict[bytes, int]] = {}
        for record in consumer.iterate(until_end=True):
            placed.setdefault(record.value, {})[record.key] = record.partition
    assert set(placed) == {b"raylog", b"kafka-python", b"confluent-kafka"}
    assert placed[b"raylog"] == placed[b"kafka-python"] == placed[b"confluent-kafka"]
    assert len(set(placed[b"raylog"].values())) == 7
