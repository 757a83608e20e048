"""Administration over sockets, on several brokers: settings that change while they run, topics that grow and come by
themselves, and APIs that are not there. The wire is spoken byte by byte, so that each request goes to the broker meant.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from kit import kafka_apis
from kit.cluster import InProcessCluster
from kit.topics import stored_configs
from kit.waiting import wait_until
from kit.wire import WireClient
from raylog.broker.broker import Broker
from raylog.broker.config import AUTO_CREATE_TOPICS_ENABLE, MAX_CONNECTIONS, NUM_PARTITIONS
from raylog.broker.handlers import TABLE
from raylog.coordination.metadata import paths
from raylog.protocol.ids import TopicName
from raylog.protocol.records import Record, encode_batch

KEYS = {row.name: row.key for row in TABLE}
WAIT_S = 10.0
SET, DELETE = 0, 1
TOPIC, BROKER = 2, 4


def ask(broker: Broker, api: str, version: int, **values: Any) -> Any:
    host, port = next(iter(broker.endpoints.values()))
    with WireClient((host, port)) as client:
        return client.ask(KEYS[api], version, **values)


def alter(broker: Broker, kind: int, name: str, **values: str | None) -> Any:
    """IncrementalAlterConfigs of one resource; "_" stands for ".", None deletes."""
    entries = [
        {"name": key.replace("_", "."), "config_operation": DELETE if value is None else SET, "value": value}
        for key, value in values.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": entries}
    [result] = ask(broker, "IncrementalAlterConfigs", 1, resources=[resource]).responses
    return result


def describe(broker: Broker, kind: int, name: str, setting: str) -> tuple[str, int]:
    """Value and source."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [setting]}
    [result] = ask(broker, "DescribeConfigs", 4, resources=[resource]).results
    assert result.error_code is ErrorCode.none, result.error_message
    [config] = result.configs
    return config.value, config.config_source


def await_described(broker: Broker, kind: int, name: str, setting: str, wanted: tuple[str, int]) -> None:
    """Until the broker tells of it: a change is answered when it is stored, even if it takes long to be heard of."""

    def told() -> tuple[str, int]:
        return describe(broker, kind, name, setting)

    wait_until(lambda: told() == wanted, WAIT_S, f"{setting} is told as {wanted}", instead=told)


def in_force_everywhere(cluster: InProcessCluster, setting: Any, value: object) -> None:
    wait_until(
        lambda: all(broker.partitions.broker()[setting] == value for broker in cluster.brokers.values()),
        WAIT_S,
        f"every broker has {setting.name}={value}",
    )


def others(cluster: InProcessCluster) -> list[Broker]:
    """The brokers that are not the controller."""
    return [broker for broker in cluster.brokers.values() if broker is not cluster.controller]


def create(broker: Broker, name: str) -> Any:
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": [], "configs": []}
    [result] = ask(broker, "CreateTopics", 7, topics=[topic]).topics
    return result


# --- settings


def test_a_setting_for_all_brokers_holds_everywhere_over_restarts_and_controllers(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, brokers=3, config={"num.partitions": "2"}) as cluster:
        somewhere = others(cluster)[0]
        assert alter(somewhere, BROKER, "", num_partitions="5", max_connections="77").error_code is ErrorCode.none
        await_described(somewhere, BROKER, str(somewhere.broker_id), "num.partitions", ("5", 3))
        in_force_everywhere(cluster, NUM_PARTITIONS, 5)
        in_force_everywhere(cluster, MAX_CONNECTIONS, 77)
        assert create(cluster.controller, "five").num_partitions == 5

        old = cluster.controller.broker_id
        cluster.restart(old)
        wait_until(lambda: cluster.controller.broker_id != old, WAIT_S, "another controller")
        in_force_everywhere(cluster, NUM_PARTITIONS, 5)
        assert create(cluster.controller, "five-again").num_partitions == 5

        assert alter(cluster.brokers[old], BROKER, "", num_partitions=None).error_code is ErrorCode.none
        in_force_everywhere(cluster, NUM_PARTITIONS, 2)
        assert create(cluster.controller, "two").num_partitions == 2


def test_a_brokers_own_setting_is_its_own_and_any_broker_may_change_it(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, brokers=2) as cluster:
        one, other = cluster.brokers[0], cluster.brokers[1]
        assert alter(other, BROKER, "0", auto_create_topics_enable="false").error_code is ErrorCode.none
        wait_until(lambda: not one.partitions.broker()[AUTO_CREATE_TOPICS_ENABLE], WAIT_S, "broker 0 has it")
        assert other.partitions.broker()[AUTO_CREATE_TOPICS_ENABLE]
        assert describe(one, BROKER, "0", "auto.create.topics.enable") == ("false", 2)
        for name, code in [("9", ErrorCode.broker_not_available), ("x", ErrorCode.invalid_request)]:
            assert alter(one, BROKER, name, num_partitions="1").error_code is code
        assert alter(one, BROKER, "00", num_partitions="1").error_code is ErrorCode.invalid_request
        cluster.stop(1)
        assert alter(one, BROKER, "1", num_partitions="3").error_code is ErrorCode.none, "it is only down"
        assert cluster.start(1).partitions.broker()[NUM_PARTITIONS] == 3


def test_a_topics_setting_takes_effect_on_its_leader_wherever_it_was_changed(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, brokers=3) as cluster:
        cluster.create_topic("t")
        leader = cluster.leader("t", 0)
        elsewhere = next(broker for broker in cluster.brokers.values() if broker is not leader)
        assert alter(elsewhere, TOPIC, "t", max_message_bytes="100").error_code is ErrorCode.none
        await_described(elsewhere, TOPIC, "t", "max.message.bytes", ("100", 1))
        log = next(iter(leader.partitions.led().values())).log
        wait_until(lambda: log.config.max_message_bytes == 100, WAIT_S, "the leader's log has it")
        big = encode_batch([Record(b"x" * 200, timestamp=1)])
        host, port = next(iter(leader.endpoints.values()))
        with WireClient((host, port)) as client:
            refused = client.produce("t", big)
            assert refused.topics[0].partitions[0].error_code == ErrorCode.message_too_large
            assert alter(elsewhere, TOPIC, "t", max_message_bytes=None).error_code is ErrorCode.none
            wait_until(lambda: log.config.max_message_bytes > 100, WAIT_S, "the leader's log has the default again")
            assert client.produce("t", big).topics[0].partitions[0].error_code == ErrorCode.none


def test_without_the_store_a_change_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path) as cluster:
        cluster.create_topic("t")
        cluster.stores[0].suspend()
        result = alter(cluster.brokers[0], TOPIC, "t", flush_ms="1")
        assert (result.error_code, "did not confirm" in result.error_message) == (ErrorCode.request_timed_out, True)
        cluster.stores[0].resume()
        assert stored_configs(cluster.stores[0], paths.topic_config(TopicName("t"))) == {}


def test_a_notice_of_another_program_is_heard_and_one_that_is_rubbish_does_no_harm(tmp_path: Path) -> None:
    """As kafka-configs with ``--zookeeper`` writes them."""
    with InProcessCluster(tmp_path, brokers=2) as cluster:
        cluster.create_topic("t")
        store = cluster.stores[0]
        store.create(paths.CONFIG_CHANGE_PREFIX, b"rubbish", sequence=True)
        store.set(paths.topic_config(TopicName("t")), b'{"version":1,"config":{"retention.ms":"12345"}}')
        store.create(paths.CONFIG_CHANGE_PREFIX, b'{"version":2,"entity_path":"topics/t"}', sequence=True)

        def retention(broker: Broker) -> object:
            return broker.partitions.topic(TopicName("t")).overrides.get("retention.ms")

        wait_until(lambda: {retention(broker) for broker in cluster.brokers.values()} == {12345}, WAIT_S, "it is heard")
        assert store.children(paths.CONFIG_CHANGES) == []


def test_unreadable_overrides_stay_as_known_and_can_be_set(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, brokers=2) as cluster:
        cluster.create_topic("t", config={"flush.ms": "5"})
        store = cluster.stores[cluster.controller.broker_id]
        store.set(paths.topic_config(TopicName("t")), b"rubbish")
        store.create(paths.CONFIG_CHANGE_PREFIX, b'{"version":2,"entity_path":"topics/t"}', sequence=True)
        somewhere, topic = cluster.brokers[0], TopicName("t")
        wait_until(lambda: not store.children(paths.CONFIG_CHANGES), WAIT_S, "the change is heard")
        assert somewhere.partitions.state().topics[topic].configs == {"flush.ms": "5"}
        old = cluster.controller.broker_id
        cluster.restart(old)
        cluster.create_topic("after")
        assert alter(cluster.brokers[old], TOPIC, "t", flush_ms="7").error_code is ErrorCode.none
        await_described(cluster.brokers[old], TOPIC, "t", "flush.ms", ("7", 1))


def test_topic_that_cannot_be_read_is_told_and_stops_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another program wrote the node. The topic may be whole on the disks, so it is not left out as if deleted."""
    with InProcessCluster(tmp_path, brokers=2) as cluster:
        cluster.create_topic("t")
        store = cluster.stores[0]
        store.create("/brokers/topics/strange", b"rubbish")
        said = "/brokers/topics/strange holds no JSON"
        wait_until(lambda: said in caplog.text, WAIT_S, "the controller names the node")
        assert cluster.leader("t", 0).produce("t", 0, encode_batch([Record(b"v", timestamp=1)])) == (0, 0)
        assert create(cluster.controller, "beside").error_code is ErrorCode.none
        store.delete("/brokers/topics/strange")
        assert create(cluster.controller, "after").error_code is ErrorCode.none


# --- more partitions


def test_a_topic_grows_and_its_new_partitions_serve_with_its_settings(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path, brokers=3) as cluster:
        cluster.create_topic("t", config={"segment.bytes": "5000"})
        wanted = [{"name": "t", "count": 6, "assignments": None}]
        [refused] = ask(others(cluster)[0], "CreatePartitions", 3, topics=wanted).results
        assert refused.error_code is ErrorCode.not_controller
        [grown] = ask(cluster.controller, "CreatePartitions", 3, topics=wanted).results
        assert grown.error_code is ErrorCode.none, grown.error_message
        for index in range(6):
            leader = cluster.leader("t", index)
            assert leader.produce("t", index, encode_batch([Record(b"v", timestamp=1)])) == (0, 0)
        for broker in cluster.brokers.values():
            led = broker.partitions.led()
            assert len(led) == 2
            assert {partition.log.config.segment_bytes for partition in led.values()} == {5000}
        [topic] = ask(cluster.controller, "DescribeTopicPartitions", 0, topics=[{"name": "t"}]).topics
        assert [partition.partition_index for partition in topic.partitions] == list(range(6))
        cluster.restart(cluster.controller.broker_id)
        assert len(cluster.controller.partitions.state().topics[TopicName("t")].partitions) == 6


# --- topics that come by themselves


@pytest.mark.parametrize("version", [0, 3, 4, 9, 13])
def test_the_first_metadata_says_unknown_and_the_topic_comes_by_itself(tmp_path: Path, version: int) -> None:
    """What Kafka answers: UNKNOWN_TOPIC_OR_PARTITION at first, which makes clients ask again."""
    with InProcessCluster(tmp_path, brokers=2, config={"num.partitions": "3"}) as cluster:
        for broker in (cluster.brokers[0], cluster.brokers[1]):
            name = f"by-{broker.broker_id}"
            asked = {"topics": [{"name": name}], "allow_auto_topic_creation": True}
            [first] = ask(broker, "Metadata", version, **asked).topics
            assert (first.name, first.error_code, first.partitions) == (name, ErrorCode.unknown_topic_or_partition, ())

            def again(broker: Broker = broker, asked: dict[str, Any] = asked) -> Any:
                [topic] = ask(broker, "Metadata", version, **asked).topics
                return topic if topic.error_code is ErrorCode.none else None

            topic = wait_until(again, WAIT_S, "the topic is there")
            assert [partition.error_code for partition in topic.partitions] == [ErrorCode.none] * 3


def test_no_topic_comes_by_itself_where_broker_or_client_forbids_it(tmp_path: Path) -> None:
    with InProcessCluster(tmp_path) as cluster:
        broker = cluster.brokers[0]
        unknown = ErrorCode.unknown_topic_or_partition

        def ask_for(name: str, *, allow: bool) -> ErrorCode:
            [topic] = ask(broker, "Metadata", 9, topics=[{"name": name}], allow_auto_topic_creation=allow).topics
            code: ErrorCode = topic.error_code
            return code

        assert ask_for("client-forbids", allow=False) is unknown
        assert alter(broker, BROKER, "", auto_create_topics_enable="false").error_code is ErrorCode.none
        in_force_everywhere(cluster, AUTO_CREATE_TOPICS_ENABLE, False)
        assert ask_for("broker-forbids", allow=True) is unknown
        assert alter(broker, BROKER, "", auto_create_topics_enable="true").error_code is ErrorCode.none
        assert ask_for("comes", allow=True) is unknown
        wait_until(lambda: ask_for("comes", allow=True) is ErrorCode.none, WAIT_S, "the topic is there")
        assert set(broker.partitions.state().topics) == {"comes"}


# --- what is not offered


def test_an_api_that_is_not_offered_ends_the_connection_and_no_other(tmp_path: Path) -> None:
    """Kafka's own way: not in ApiVersions, so clients say so themselves; who sends it all the same is cut off."""
    missing = [api for api in kafka_apis.load().values() if api.key not in KEYS.values()]
    assert {"DescribeAcls", "DescribeClientQuotas", "CreateDelegationToken", "ConsumerGroupHeartbeat"} <= {
        api.name for api in missing
    }
    with InProcessCluster(tmp_path) as cluster:
        host, port = next(iter(cluster.brokers[0].endpoints.values()))
        with WireClient((host, port)) as bystander:
            offered = {api.api_key for api in bystander.ask(18, 0).api_keys}
            assert offered == set(KEYS.values())
            for api in missing:
                with WireClient((host, port)) as client:
                    header = api.key.to_bytes(2, "big") + max(api.versions, default=0).to_bytes(2, "big")
                    frame = header + bytes(4) + b"\xff\xff" + bytes(8)
                    client.send(len(frame).to_bytes(4, "big") + frame)
                    assert client.closed(), api.name
            assert bystander.ask(18, 0).error_code is ErrorCode.none


# --- time


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31)])
def test_requests_without_time_do_nothing(tmp_path: Path, timeout_ms: int) -> None:
    timeout = timedelta(milliseconds=timeout_ms)
    with InProcessCluster(tmp_path) as cluster:
        cluster.create_topic("t")
        controller = cluster.controller
        new = {"name": "n", "num_partitions": 1, "replication_factor": 1}
        [made] = ask(controller, "CreateTopics", 7, topics=[new], timeout=timeout).topics
        [grown] = ask(controller, "CreatePartitions", 3, topics=[{"name": "t", "count": 2}], timeout=timeout).results
        [deleted] = ask(controller, "DeleteTopics", 5, topic_names=["t"], timeout=timeout).responses
        election = ask(controller, "ElectLeaders", 2, topic_partitions=None, election_type=0, timeout=timeout)
        moves = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [0]}]}]
        moved = ask(controller, "AlterPartitionReassignments", 1, topics=moves, timeout=timeout)
        codes = {each.error_code for each in (made, grown, deleted, election, moved)}
        assert codes == {ErrorCode.request_timed_out}
        topics = {topic.name: len(topic.partitions) for topic in cluster.controller.partitions.state().topics.values()}
        assert topics == {"t": 1}
        assert create(controller, "n").error_code is ErrorCode.none, "nobody makes it later"
