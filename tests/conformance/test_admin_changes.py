"""Topics grow, settings change, and what is not offered is refused: by the admin clients that others wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourcePatternType,
    ResourceType,
)
from kafka.admin import ACLFilter, ACLOperation, ACLPermissionType, ResourcePattern
from kafka.admin import ConfigResource as KafkaPythonResource
from kafka.admin import NewPartitions as KafkaPythonPartitions
from kafka.admin import ResourceType as KafkaPythonType

from kit.cluster import InProcessCluster
from kit.machine import scaled
from raylog.protocol.ids import TopicName

pytestmark = pytest.mark.conformance

TIMEOUT_S = 20


@pytest.fixture
def confluent(brokers: InProcessCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": brokers.bootstrap_servers})


@pytest.fixture
def kafka_python(brokers: InProcessCluster) -> Iterator[kafka.KafkaAdminClient]:
    admin = kafka.KafkaAdminClient(bootstrap_servers=brokers.bootstrap_servers.split(","))
    yield admin
    admin.close()


def only(futures: dict[Any, Any]) -> Any:
    """The result of the one future."""
    (future,) = futures.values()
    return future.result(scaled(TIMEOUT_S))


def overrides(brokers: InProcessCluster, topic: str) -> dict[str, str]:
    """As the controller has them; a broker that answered a change knows it, others hear of it in a moment."""
    return dict(brokers.controller.partitions.state().topics[TopicName(topic)].configs)


def partition_count(brokers: InProcessCluster, topic: str) -> int:
    return len(brokers.controller.partitions.state().topics[TopicName(topic)].partitions)


def test_confluent_grows_a_topic(brokers: InProcessCluster, confluent: AdminClient) -> None:
    brokers.create_topic("grows-by-confluent")
    only(confluent.create_partitions([NewPartitions("grows-by-confluent", 4)]))
    assert partition_count(brokers, "grows-by-confluent") == 4
    with pytest.raises(confluent_kafka.KafkaException, match="only get more"):
        only(confluent.create_partitions([NewPartitions("grows-by-confluent", 4)]))
    with pytest.raises(confluent_kafka.KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        only(confluent.create_partitions([NewPartitions("nowhere", 4)]))


def edit(kind: ConfigResource.Type, name: str, *edits: tuple[AlterConfigOpType, str, str | None]) -> ConfigResource:
    entries = [ConfigEntry(key, value, incremental_operation=op) for op, key, value in edits]
    return ConfigResource(kind, name, incremental_configs=entries)


def test_confluent_changes_settings(brokers: InProcessCluster, confluent: AdminClient) -> None:
    brokers.create_topic("set-by-confluent", config={"flush.ms": "1"})
    topic, broker = ConfigResource.Type.TOPIC, ConfigResource.Type.BROKER
    put, delete = AlterConfigOpType.SET, AlterConfigOpType.DELETE
    wanted = edit(topic, "set-by-confluent", (put, "retention.ms", "7000"), (delete, "flush.ms", None))
    only(confluent.incremental_alter_configs([wanted]))
    told = only(confluent.describe_configs([ConfigResource(topic, "set-by-confluent")]))
    assert (told["retention.ms"].value, told["retention.ms"].source) == ("7000", 1)
    assert told["flush.ms"].is_default

    with pytest.warns(DeprecationWarning, match="alter_configs"):
        replaced = confluent.alter_configs([ConfigResource(topic, "set-by-confluent", {"segment.bytes": "1000"})])
    only(replaced)

    only(confluent.incremental_alter_configs([edit(broker, "1", (put, "num.partitions", "3"))]))
    told = only(confluent.describe_configs([ConfigResource(broker, "1")]))
    assert (told["num.partitions"].value, told["num.partitions"].source) == ("3", 2)
    assert told["broker.id"].is_read_only
    only(confluent.incremental_alter_configs([edit(broker, "1", (delete, "num.partitions", None))]))
    for resource, code in [
        (edit(topic, "set-by-confluent", (put, "no.such", "1")), "INVALID_CONFIG"),
        (edit(broker, "1", (put, "log.dirs", "/x")), "INVALID_REQUEST"),
        (edit(topic, "nowhere", (put, "flush.ms", "1")), "UNKNOWN_TOPIC_OR_PART"),
    ]:
        with pytest.raises(confluent_kafka.KafkaException, match=code):
            only(confluent.incremental_alter_configs([resource]))


def test_kafka_python_grows_a_topic_and_changes_settings(
    brokers: InProcessCluster, kafka_python: kafka.KafkaAdminClient
) -> None:
    brokers.create_topic("by-kafka-python-too")
    kafka_python.create_partitions({"by-kafka-python-too": KafkaPythonPartitions(3)})
    assert partition_count(brokers, "by-kafka-python-too") == 3
    resource = KafkaPythonResource("TOPIC", "by-kafka-python-too", configs={"retention.ms": "7000"})
    assert kafka_python.alter_configs([resource]) == {"topic": {"by-kafka-python-too": "OK"}}
    told = kafka_python.describe_configs([KafkaPythonResource("TOPIC", "by-kafka-python-too")])
    told = told["topic"]["by-kafka-python-too"]["retention.ms"]
    assert (told["value"], told["config_source"]) == ("7000", "DYNAMIC_TOPIC_CONFIG")


def test_aiokafka_grows_a_topic_and_changes_settings(brokers: InProcessCluster) -> None:
    brokers.create_topic("by-aiokafka")

    async def change() -> Any:
        admin = AIOKafkaAdminClient(bootstrap_servers=brokers.bootstrap_servers)
        await admin.start()
        try:
            await admin.create_partitions({"by-aiokafka": AioNewPartitions(3)})
            topic, broker = AioConfigResourceType.TOPIC, AioConfigResourceType.BROKER
            await admin.alter_configs([AioConfigResource(topic, "by-aiokafka", configs={"retention.ms": "7000"})])
            return await admin.describe_configs([AioConfigResource(broker, "1", configs={"num.partitions": ""})])
        finally:
            await admin.close()

    (told,) = asyncio.run(change())
    (resource,) = told.resources
    (config,) = resource[4]
    assert config[:2] == ("num.partitions", "1")
    assert partition_count(brokers, "by-aiokafka") == 3


def test_confluent_elects_preferred_leaders(brokers: InProcessCluster, confluent: AdminClient) -> None:
    """The preferred replica leads already, which is told as an error of its partition."""
    brokers.create_topic("elected")
    where = confluent_kafka.TopicPartition("elected", 0)
    told = confluent.elect_leaders(confluent_kafka.ElectionType.PREFERRED, [where]).result(scaled(TIMEOUT_S))
    assert told[where].code() == confluent_kafka.KafkaError.ELECTION_NOT_NEEDED


def test_kafka_python_lists_reassignments(kafka_python: kafka.KafkaAdminClient) -> None:
    assert not kafka_python.list_partition_reassignments()


# --- what is not offered: clients say so themselves, at once, and go on


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin: only({0: admin.describe_acls(ANY_ACL)}),
        lambda admin: only(admin.describe_user_scram_credentials(["somebody"])),
    ],
    ids=["acls", "scram"],
)
def test_confluent_says_that_an_api_is_not_there(confluent: AdminClient, ask: Callable[[AdminClient], object]) -> None:
    with pytest.raises(confluent_kafka.KafkaException, match="not supported by broker"):
        ask(confluent)
    assert len(confluent.list_topics(timeout=scaled(TIMEOUT_S)).brokers) == 3


ANY_ACL = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin: admin.describe_acls(
            ACLFilter(
                principal=None,
                host="*",
                operation=ACLOperation.ANY,
                permission_type=ACLPermissionType.ANY,
                resource_pattern=ResourcePattern(KafkaPythonType.TOPIC, "t"),
            )
        ),
        lambda admin: admin.describe_user_scram_credentials(),
    ],
    ids=["acls", "scram"],
)
def test_kafka_python_says_that_an_api_is_not_there(
    kafka_python: kafka.KafkaAdminClient, ask: Callable[[kafka.KafkaAdminClient], object]
) -> None:
    with pytest.raises(kafka.errors.IncompatibleBrokerVersion, match="does not support"):
        ask(kafka_python)
    assert len(kafka_python.describe_cluster()["brokers"]) == 3
