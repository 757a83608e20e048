"""Kafka's own tools administrate our brokers: kafka-configs, and the Java admin client as kafka-topics uses it."""

from __future__ import annotations

import subprocess

import pytest

from kit import kafka_java, maven
from kit.cluster import InProcessCluster
from kit.demanded import java_left_out
from kit.machine import scaled

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(java_left_out(), reason="java and mvn are not installed"),
]

TIMEOUT_S = 60
JVM = ("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A Java program of Kafka's package, or a source file that uses it."""
    path = f"{maven.jars(kafka_java.KAFKA_4)}/*"
    return subprocess.run(
        [*JVM, path, *arguments], capture_output=True, text=True, timeout=scaled(TIMEOUT_S), check=False
    )  # fmt: skip


def kafka_configs(brokers: InProcessCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run("kafka.admin.ConfigCommand", "--bootstrap-server", brokers.bootstrap_servers, *arguments)


def test_kafka_configs_changes_and_describes_settings(brokers: InProcessCluster) -> None:
    brokers.create_topic("by-kafka-configs")
    topic = ("--entity-type", "topics", "--entity-name", "by-kafka-configs")
    changed = kafka_configs(brokers, *topic, "--alter", "--add-config", "retention.ms=7000,cleanup.policy=[delete]")
    assert "Completed updating config" in changed.stdout, changed.stderr
    told = kafka_configs(brokers, *topic, "--describe").stdout
    assert "retention.ms=7000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=7000" in told
    assert "cleanup.policy=delete" in told


def test_kafka_configs_changes_a_setting_of_all_brokers_and_takes_it_away(brokers: InProcessCluster) -> None:
    everybody = ("--entity-type", "brokers", "--entity-default")
    try:
        changed = kafka_configs(brokers, *everybody, "--alter", "--add-config", "producer.id.expiration.ms=5000")
        assert "Completed updating default config" in changed.stdout, changed.stderr
        told = kafka_configs(brokers, *everybody, "--describe").stdout
        assert "synonyms={DYNAMIC_DEFAULT_BROKER_CONFIG:producer.id.expiration.ms=5000}" in told
    finally:
        kafka_configs(brokers, *everybody, "--alter", "--delete-config", "producer.id.expiration.ms")
    assert "5000" not in kafka_configs(brokers, *everybody, "--describe").stdout


def test_kafka_configs_is_told_what_cannot_be(brokers: InProcessCluster) -> None:
    static = kafka_configs(
        brokers, "--entity-type", "brokers", "--entity-name", "1", "--alter", "--add-config", "log.dirs=/x"
    )
    assert static.returncode != 0
    assert "InvalidRequestException: log.dirs cannot change while a broker runs" in static.stderr
    quotas = kafka_configs(brokers, "--entity-type", "users", "--describe")
    assert "UnsupportedVersionException: The node does not support DESCRIBE_CLIENT_QUOTAS" in quotas.stderr


def test_the_java_admin_client_grows_a_topic_and_describes_it_by_pages(brokers: InProcessCluster) -> None:
    brokers.create_topic("by-java")
    done = run(str(maven.SOURCES / "Topics.java"), brokers.bootstrap_servers, "by-java", "7", "2")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == [str(index) for index in range(7)]
    assert [row[1] for row in rows] == [str(brokers.leader("by-java", index).broker_id) for index in range(7)]
    assert {row[2] for row in rows} == {"1"}
