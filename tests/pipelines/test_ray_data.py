"""Topics as datasets of Ray Data and back: real brokers, a real Ray cluster of two nodes."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import ray
import ray.data
from ray.exceptions import RayTaskError

from kit.cluster import InProcessCluster
from kit.machine import scaled
from kit.odd_logs import append_as_stored, compacted, control_batch
from kit.ray_nodes import NODES, ray_nodes
from raylog.client import Admin, Producer
from raylog.client.batches.decode import SCHEMA
from raylog.client.data import read, read_at, write
from raylog.client.ranges.offset_ranges import DataLoss, OffsetRange
from raylog.client.ranges.range_reader import RangeReading
from raylog.client.ray_data.source import TopicDatasource
from raylog.protocol.errors import (
    InvalidConfig,
    InvalidRequest,
    MessageTooLarge,
    RaylogError,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import Offset, PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import Record

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\..*"),  # Ray Data's, of its own settings
]

COUNT = 3_000
PARTITIONS = 4
FIRST_MS = 1_700_000_000_000
_numbers = count()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Ray's node ids by their addresses; this process is connected, and datasets tell no progress."""
    with ray_nodes(tmp_path_factory.mktemp("ray")) as address:
        try:
            ray.init(address=address, log_to_driver=False, logging_level="warning")
            context = ray.data.DataContext.get_current()
            context.enable_progress_bars = False
            yield {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes()}
        finally:
            ray.shutdown()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, nodes: dict[str, str]) -> Iterator[InProcessCluster]:
    """A broker at each node's address; the topic "numbers" has COUNT records, keyed, in batches of each compression."""
    overrides = {broker: {"listeners": f"PLAINTEXT://{address}:0"} for broker, address in enumerate(NODES)}
    with InProcessCluster(
        tmp_path_factory.mktemp("brokers"),
        brokers=len(NODES),
        config={"auto.create.topics.enable": "false"},
        overrides=overrides,
    ) as started:
        started.create_topic("numbers", partitions=PARTITIONS)
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            with Producer(started.bootstrap_servers, compression_type=codec, linger_ms=5) as producer:
                for number in range(COUNT // 5):
                    producer.send(
                        "numbers", b"%d" % number, b"%d" % (number % 50), timestamp=FIRST_MS + number,
                        partition=number % PARTITIONS,
                    )  # fmt: skip
        yield started


@pytest.fixture(scope="module")
def servers(cluster: InProcessCluster) -> str:
    return cluster.bootstrap_servers


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    """A new one of one partition."""
    name = f"t{next(_numbers)}"
    cluster.create_topic(name)
    return name


def table_of(dataset: ray.data.Dataset) -> pa.Table:
    """All rows, in the order of their offsets where those were read."""
    table = pa.concat_tables(ray.get(dataset.to_arrow_refs()))
    places = [(name, "ascending") for name in ("topic", "partition", "offset") if name in table.column_names]
    return table.sort_by(places) if places else table


def test_every_record_is_read_once(servers: str) -> None:
    dataset = read("numbers", bootstrap_servers=servers)
    assert dataset.schema().base_schema == SCHEMA
    table = table_of(dataset)
    places = set(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert (len(table), len(places)) == (COUNT, COUNT)
    values = Counter(int(value) for value in table["value"].to_pylist())
    assert values == dict.fromkeys(range(COUNT // 5), 5)
    assert all(int(row["key"]) == int(row["value"]) % 50 for row in table.slice(0, 100).to_pylist())
    assert pc.min(table["timestamp"]).cast(pa.int64()).as_py() == FIRST_MS
    assert set(table["timestamp_type"].to_pylist()) == {0}
    assert dataset.count() == COUNT


def test_ranges_are_read_on_their_leader_s_node(cluster: InProcessCluster, nodes: dict[str, str], servers: str) -> None:
    cluster.create_topic("wide", partitions=PARTITIONS)
    with Producer(servers) as producer:
        for number in range(100 * PARTITIONS):
            producer.send("wide", bytes(10_000), partition=number % PARTITIONS)  # blocks that Ray does not inline
    leaders = {partition: nodes[NODES[cluster.leader("wide", partition).broker_id]] for partition in range(PARTITIONS)}
    assert set(leaders.values()) == set(nodes.values())
    dataset = read("wide", bootstrap_servers=servers, override_num_blocks=4 * PARTITIONS).materialize()
    blocks = dataset.to_arrow_refs()
    made_at = ray.experimental.get_object_locations(blocks)
    near = 0
    for block in blocks:
        [node] = made_at[block]["node_ids"]  # before it is fetched from there
        [partition] = set(ray.get(block)["partition"].to_pylist())
        near += node == leaders[partition]
    print(f"share of ranges read on their leader's node: {near / len(blocks):.2f}")
    assert len(blocks) == 4 * PARTITIONS
    assert near / len(blocks) >= 0.9
    assert read("wide", bootstrap_servers=servers, label_selector={}).count() == 100 * PARTITIONS


def test_a_node_that_is_gone_is_no_obstacle(servers: str, topic: str, nodes: dict[str, str]) -> None:
    with Producer(servers) as producer:
        producer.send(topic, b"v")
    piece = OffsetRange(TopicPartition(TopicName(topic), PartitionIndex(0)), Offset(0), Offset(1))
    source = TopicDatasource(RangeReading(servers), [piece])
    dataset = read_at("0" * 56, source, override_num_blocks=1)
    assert dataset.map_batches(lambda table: table, batch_format="pyarrow").take_all()[0]["value"] == b"v"


def killed_once(marker: Path) -> Callable[[pa.Table], pa.Table]:
    """For map_batches: the first worker that has a table is gone, as by kill -9."""

    def kill(table: pa.Table) -> pa.Table:
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return table
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    return kill


def test_a_worker_that_is_killed_changes_no_record(servers: str, tmp_path: Path) -> None:
    marker = tmp_path / "killed"
    dataset = read("numbers", bootstrap_servers=servers, columns=["partition", "offset"])
    table = table_of(dataset.map_batches(killed_once(marker), batch_format="pyarrow"))
    assert marker.exists()
    places = Counter(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert len(places) == places.total() == COUNT


def test_a_worker_that_is_killed_while_writing_loses_no_record(
    cluster: InProcessCluster, servers: str, tmp_path: Path
) -> None:
    cluster.create_topic("retried")
    marker = tmp_path / "killed"
    rows = ray.data.from_items([{"value": b"%d" % number} for number in range(1_000)], override_num_blocks=4)
    written = write(rows.map_batches(killed_once(marker), batch_format="pyarrow"), "retried", bootstrap_servers=servers)
    assert marker.exists()
    assert written == 1_000
    values = table_of(read("retried", bootstrap_servers=servers))["value"].to_pylist()
    assert set(values) == {b"%d" % number for number in range(1_000)}  # at least once


def test_columns_are_chosen_before_they_are_read(servers: str) -> None:
    named = table_of(read("numbers", bootstrap_servers=servers, columns=["offset", "key"]))
    assert named.column_names == ["offset", "key"]
    assert len(named) == COUNT
    pushed = read("numbers", bootstrap_servers=servers).select_columns(["value"])
    assert table_of(pushed).column_names == ["value"]
    assert len(read("numbers", bootstrap_servers=servers).limit(7).take_all()) == 7


def test_places_are_those_of_read_kafka(servers: str) -> None:
    def read_offsets(**places: Any) -> Counter[int]:
        table = table_of(read("numbers", bootstrap_servers=servers, columns=["partition", "offset"], **places))
        return Counter(table["partition"].to_pylist())

    assert read_offsets(start_offset=10, end_offset=13) == dict.fromkeys(range(PARTITIONS), 3)
    per_partition = {"numbers": {0: 5, 1: "latest", 3: "latest"}}
    assert read_offsets(start_offset=per_partition, end_offset={"numbers": {0: 7, 2: 1}}) == {0: 2, 2: 1}
    late = datetime.fromtimestamp((FIRST_MS + 10 * COUNT) / 1_000, UTC)
    assert read_offsets(start_offset=late) == {}
    assert read_offsets(end_offset=late) == dict.fromkeys(range(PARTITIONS), COUNT // PARTITIONS)
    first = datetime.fromtimestamp(FIRST_MS / 1_000, UTC).replace(tzinfo=None)
    assert read_offsets(start_offset=first) == dict.fromkeys(range(PARTITIONS), COUNT // PARTITIONS)


def test_an_empty_topic_is_an_empty_dataset(servers: str, topic: str) -> None:
    dataset = read(topic, bootstrap_servers=servers)
    assert dataset.count() == 0
    assert dataset.take_all() == []
    assert dataset.schema().base_schema == SCHEMA


def test_the_end_may_be_control_records_or_compacted_away(cluster: InProcessCluster, servers: str, topic: str) -> None:
    records = [Record(value=b"%d" % number) for number in range(5)]
    append_as_stored(cluster, topic, 0, compacted(records, {0, 2}), control_batch())
    table = table_of(read(topic, bootstrap_servers=servers, columns=["offset", "value"]))
    assert table.to_pydict() == {"offset": [0, 2], "value": [b"0", b"2"]}
    only_control = read(topic, bootstrap_servers=servers, start_offset=5)
    assert only_control.count() == 0
    append_as_stored(cluster, topic, 0, compacted(records, {1}))
    assert table_of(read(topic, bootstrap_servers=servers))["offset"].to_pylist() == [0, 2, 7]


def test_headers_keep_their_order_and_repeated_keys(servers: str, topic: str) -> None:
    headers = [("h", b"1"), ("g", None), ("h", b"2")]
    with Producer(servers) as producer:
        producer.send(topic, None, b"k", headers=headers)
        producer.send(topic, b"v")
    rows = read(topic, bootstrap_servers=servers).take_all()
    assert [(row["key"], row["value"]) for row in rows] == [(b"k", None), (None, b"v")]
    assert [(header["key"], header["value"]) for header in rows[0]["headers"]] == headers
    assert list(rows[1]["headers"]) == []


def test_times_of_type_1_are_the_broker_s(cluster: InProcessCluster, servers: str) -> None:
    cluster.create_topic("appended", config={"message.timestamp.type": "LogAppendTime"})
    with Producer(servers) as producer:
        landed = producer.send("appended", b"v", timestamp=FIRST_MS).result(scaled(30))
    table = table_of(read("appended", bootstrap_servers=servers, columns=["timestamp", "timestamp_type"]))
    assert table["timestamp_type"].to_pylist() == [1]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [landed.timestamp]
    assert landed.timestamp > FIRST_MS


def test_offsets_that_are_gone_are_a_loud_loss(servers: str, topic: str) -> None:
    with Producer(servers) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number)
    planned = read(topic, bootstrap_servers=servers)
    accepted = read(topic, bootstrap_servers=servers, fail_on_data_loss=False)
    with Admin(servers) as admin:
        admin.delete_records({(topic, 0): 4})
    with pytest.raises(DataLoss, match=rf"{topic}-0 has offsets 4 to 9, not 20"):
        read(topic, bootstrap_servers=servers, end_offset=20)
    with pytest.raises(DataLoss, match=rf"{topic}-0 has offsets 4 to 9, not 0"):
        read(topic, bootstrap_servers=servers, start_offset=0)
    some = read(topic, bootstrap_servers=servers, start_offset=0, end_offset=20, fail_on_data_loss=False)
    assert some.count() == accepted.count() == 6
    with pytest.raises(RayTaskError, match=rf"DataLoss.*{topic}-0: offsets 0 to 3 are gone"):
        planned.count()


def test_a_topic_that_is_created_anew_is_a_loss(servers: str, cluster: InProcessCluster, topic: str) -> None:
    with Producer(servers) as producer:
        producer.send(topic, b"v")
    planned = read(topic, bootstrap_servers=servers)
    with Admin(servers) as admin:
        admin.delete_topics([topic])
    cluster.create_topic(topic)
    with Producer(servers) as producer:
        producer.send(topic, b"another")
    with pytest.raises(RayTaskError, match="DataLoss"):
        planned.take_all()


def test_unfit_arguments_are_named(servers: str) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="nosuch"):
        read("nosuch", bootstrap_servers=servers)
    with pytest.raises(InvalidRequest, match=r"columns=\['nosuch'\]"):
        read("numbers", bootstrap_servers=servers, columns=["nosuch"])
    with pytest.raises(InvalidConfig, match=r"no\.such"):
        read("numbers", bootstrap_servers=servers, no_such=1)
    with pytest.raises(ValueError, match="no partition numbers-9"):
        read("numbers", bootstrap_servers=servers, start_offset={"numbers": {9: 0}})
    with pytest.raises(ValueError, match="override_num_blocks=0 must be at least 1"):
        read("numbers", bootstrap_servers=servers, override_num_blocks=0)
    with pytest.raises(ValueError, match="end_offset 3 is before start_offset 5"):
        read("numbers", bootstrap_servers=servers, start_offset=5, end_offset=3)


def test_what_is_written_is_read_again(cluster: InProcessCluster, servers: str) -> None:
    cluster.create_topic("copy", partitions=3)
    columns = ["key", "value", "timestamp", "headers"]
    dataset = read("numbers", bootstrap_servers=servers, columns=columns)
    assert write(dataset, "copy", bootstrap_servers=servers, compression_type="zstd") == COUNT
    copied = table_of(read("copy", bootstrap_servers=servers))
    original = table_of(dataset)
    order = [(name, "ascending") for name in ("timestamp", "value")]
    assert copied.select(columns[:3]).sort_by(order) == original.select(columns[:3]).sort_by(order)
    partitions: dict[bytes, set[int]] = {}
    for key, partition in zip(copied["key"].to_pylist(), copied["partition"].to_pylist(), strict=True):
        partitions.setdefault(key, set()).add(partition)
    assert len(partitions) == 50
    assert all(len(homes) == 1 for homes in partitions.values())


def test_rows_name_their_partition_and_may_be_text(cluster: InProcessCluster, servers: str) -> None:
    cluster.create_topic("named", partitions=2)
    rows = ray.data.from_items([{"value": f"v{number}", "partition": number % 2} for number in range(10)])
    assert write(rows, "named", bootstrap_servers=servers) == 10
    table = table_of(read("named", bootstrap_servers=servers))
    assert sorted(table["value"].to_pylist()) == sorted(b"v%d" % number for number in range(10))
    assert all(int(row["value"][1:]) % 2 == row["partition"] for row in table.to_pylist())


def test_no_rows_are_no_records(servers: str, topic: str) -> None:
    assert write(read(topic, bootstrap_servers=servers, columns=["value"]), topic, bootstrap_servers=servers) == 0
    assert read(topic, bootstrap_servers=servers).count() == 0


def test_what_cannot_be_written_says_why(servers: str, topic: str) -> None:
    def send(rows: list[dict[str, Any]], to: str = topic, **config: Any) -> int:
        return write(ray.data.from_items(rows), to, bootstrap_servers=servers, **config)

    with pytest.raises(ValueError, match=r"columns value, delay cannot be written .* select_columns"):
        send([{"value": b"v", "delay": 3}])
    with pytest.raises(ValueError, match="column value is int64, not bytes or text: encode it"):
        send([{"value": 3}])
    with pytest.raises(InvalidConfig, match=r"no\.such"):
        send([{"value": b"v"}], no_such=1)
    with pytest.raises(RaylogError, match="nosuch"):
        send([{"value": b"v"}], "nosuch", max_block_ms=5_000)
    with pytest.raises(RayTaskError) as failed:
        send([{"value": bytes(2_000_000)}], max_request_size=10_000_000)  # more than max.message.bytes
    assert isinstance(failed.value.cause, MessageTooLarge)
    assert read(topic, bootstrap_servers=servers).count() == 0
