"""Topics are created, described and deleted by the admin clients that others wrote."""

from __future__ import annotations

import confluent_kafka
import kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]
from kafka.admin import NewTopic as KafkaPythonTopic

from kit.cluster import InProcessCluster
from kit.machine import scaled
from kit.waiting import wait_until

pytestmark = pytest.mark.conformance


def test_confluent_admin(brokers: InProcessCluster) -> None:
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap_servers})
    (created,) = admin.create_topics([NewTopic("by-confluent", 5, 1, config={"retention.ms": "5000"})]).values()
    assert created.result(scaled(20)) is None

    wait_until(lambda: "by-confluent" in admin.list_topics(timeout=scaled(10)).topics, 10, "the topic is listed")
    described = admin.list_topics("by-confluent", timeout=scaled(10))
    assert len(described.brokers) == 3
    partitions = described.topics["by-confluent"].partitions
    assert sorted(partitions) == [0, 1, 2, 3, 4]
    assert {partition.leader for partition in partitions.values()} == {0, 1, 2}

    (asked,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "by-confluent")]).values()
    configs = asked.result(scaled(20))
    assert (configs["retention.ms"].value, configs["retention.ms"].is_default) == ("5000", False)
    assert configs["segment.bytes"].is_default

    for name, code in [("by-confluent", "TOPIC_ALREADY_EXISTS"), ("no/such", "TOPIC_EXCEPTION")]:
        (refused,) = admin.create_topics([NewTopic(name, 1, 1)]).values()
        with pytest.raises(confluent_kafka.KafkaException, match=code):
            refused.result(scaled(20))
    (copied,) = admin.create_topics([NewTopic("copied", 1, 4)]).values()
    with pytest.raises(confluent_kafka.KafkaException, match="INVALID_REPLICATION_FACTOR"):
        copied.result(scaled(20))

    (deleted,) = admin.delete_topics(["by-confluent"]).values()
    assert deleted.result(scaled(20)) is None
    wait_until(lambda: "by-confluent" not in admin.list_topics(timeout=scaled(10)).topics, 10, "the topic is gone")


def test_kafka_python_admin(brokers: InProcessCluster) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=brokers.bootstrap_servers.split(","))
    try:
        admin.create_topics([KafkaPythonTopic("by-kafka-python", 4, 1, topic_configs={"retention.ms": "5000"})])
        wait_until(lambda: "by-kafka-python" in _names(admin), 10, "the topic is listed")
        (topic,) = admin.describe_topics(["by-kafka-python"])
        assert sorted(partition["partition_index"] for partition in topic["partitions"]) == [0, 1, 2, 3]
        assert len(admin.describe_cluster()["brokers"]) == 3
        with pytest.raises(kafka.errors.TopicAlreadyExistsError):
            admin.create_topics([KafkaPythonTopic("by-kafka-python", 1, 1)])
        with pytest.raises(kafka.errors.InvalidReplicationFactorError):
            admin.create_topics([KafkaPythonTopic("copied", 1, 4)])
        admin.delete_topics(["by-kafka-python"])
        wait_until(lambda: "by-kafka-python" not in _names(admin), 10, "the topic is gone")
    finally:
        admin.close()


def _names(admin: kafka.KafkaAdminClient) -> set[str]:
    return {topic if isinstance(topic, str) else topic["name"] for topic in admin.list_topics()}
