"""What may be asked of read and stream, and what is refused, in one sentence, before anything is read."""

from __future__ import annotations

from typing import Any

import pytest

from raylog.client.ranges.offset_ranges import EARLIEST, LATEST, AtTime, Selection
from raylog.protocol.errors import InvalidConfig
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.spark.reading.columns import SPARK_COLUMNS
from raylog.spark.reading.options import ReadOptions, read_options
from raylog.spark.reading.values import ParseMode, ValueFormat

FLIGHTS_0 = TopicPartition(TopicName("flights"), PartitionIndex(0))


def batch(**options: Any) -> ReadOptions:
    return read_options({"subscribe": "flights", **options}, streaming=False)


def stream(**options: Any) -> ReadOptions:
    return read_options({"subscribe": "flights", **options}, streaming=True)


def test_defaults_are_those_of_spark_s_kafka_source() -> None:
    asked = batch()
    assert asked.selection == Selection(topics=("flights",))
    assert (asked.starting, asked.ending) == (EARLIEST, LATEST)
    assert (asked.columns, asked.fail_on_data_loss, asked.value) == (SPARK_COLUMNS[:-1], True, None)
    assert (asked.min_partitions, asked.max_records_per_partition) == (None, None)
    assert stream().starting == LATEST
    assert stream().max_trigger_delay_ms == 15 * 60_000


def test_values_may_be_texts() -> None:
    asked = batch(failOnDataLoss="False", includeHeaders="true", minPartitions=" 8 ", maxRecordsPerPartition="9")
    assert (asked.fail_on_data_loss, asked.columns) == (False, SPARK_COLUMNS)
    assert (asked.min_partitions, asked.max_records_per_partition) == (8, 9)
    moving = stream(maxOffsetsPerTrigger=100, minOffsetsPerTrigger="10", maxTriggerDelay="90s", groupIdPrefix="etl")
    assert (moving.max_offsets_per_trigger, moving.min_offsets_per_trigger) == (100, 10)
    assert (moving.max_trigger_delay_ms, moving.group_id_prefix) == (90_000, "etl")


@pytest.mark.parametrize(
    ("text", "ms"), [("1500", 1_500), ("1500ms", 1_500), ("2 s", 2_000), ("3min", 180_000), ("1h", 3_600_000)]
)
def test_times_have_spark_s_units(text: str, ms: int) -> None:
    assert stream(maxTriggerDelay=text).max_trigger_delay_ms == ms


def test_topics_are_selected_in_three_ways() -> None:
    assert batch(subscribe=" b, a,,b").selection == Selection(topics=("a", "b"))
    assert batch(subscribe=["b", "a"]).selection == Selection(topics=("a", "b"))
    one = read_options({"subscribePattern": "fl.*"}, streaming=False)
    assert one.selection == Selection(pattern="fl.*")
    two = read_options({"assign": '{"flights": [0]}'}, streaming=False)
    assert two.selection == Selection(partitions=(FLIGHTS_0,))


def test_of_several_places_to_start_the_first_counts() -> None:
    by_partition, offsets = '{"flights": {"0": 5}}', '{"flights": {"0": 7}}'
    asked = batch(startingOffsets=offsets)
    assert (asked.starting_option, asked.starting) == ("startingOffsets", {FLIGHTS_0: 7})
    asked = batch(startingOffsets=offsets, startingOffsetsByTimestamp=by_partition)
    assert (asked.starting_option, asked.starting) == ("startingOffsetsByTimestamp", AtTime({FLIGHTS_0: 5}))
    asked = batch(startingOffsets=offsets, startingOffsetsByTimestamp=by_partition, startingTimestamp=3)
    assert (asked.starting_option, asked.starting, asked.or_latest) == ("startingTimestamp", AtTime(3), False)
    assert batch(startingTimestamp=3, startingOffsetsByTimestampStrategy="latest").or_latest
    assert batch(endingTimestamp="9").ending == AtTime(9)


def test_kafka_s_settings_go_to_the_consumer() -> None:
    asked = batch(**{"kafka.bootstrap.servers": "a:1", "kafka.fetch.max.bytes": "10", "kafka.group.id": "g"})
    assert (asked.bootstrap_servers, asked.consumer, asked.group_id) == ("a:1", {"fetch_max_bytes": "10"}, "g")
    both = read_options({"subscribe": "t", "kafka.bootstrap.servers": "a:1"}, streaming=False, bootstrap_servers="b:2")
    assert (both.bootstrap_servers, both.consumer) == ("b:2", {})
    assert (both.isolation_level, batch(**{"kafka.isolation.level": "read_committed"}).isolation_level) == (0, 1)
    with pytest.raises(InvalidConfig, match=r"fetch\.max\.bites"):
        batch(**{"kafka.fetch.max.bites": 1})
    with pytest.raises(InvalidConfig, match=r"fetch\.max\.bytes"):
        batch(**{"kafka.fetch.max.bytes": "many"})


def test_values_are_decoded_on_demand() -> None:
    value = batch(value="json", schema="id long", mode="dropMalformed").value
    assert value is not None
    assert (value.format, value.schema, value.mode) == (ValueFormat.JSON, "id long", ParseMode.DROPMALFORMED)
    text = batch(value="string").value
    assert text is not None
    assert (text.format, text.mode, text.corrupt_column) == (ValueFormat.STRING, ParseMode.FAILFAST, "_corrupt_record")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"startingoffset": "earliest"}, "unknown option 'startingoffset': did you mean startingOffsets?"),
        ({"fetch_max_bytes": 3}, "unknown option 'fetch_max_bytes': .* as kafka.fetch.max.bytes"),
        (
            {"fetchOffset.numRetries": 3},
            "'fetchOffset.numRetries' is of Spark's Kafka connector alone, .* leave it out",
        ),
        ({"maxOffsetsPerTrigger": 3}, "option 'maxOffsetsPerTrigger' is only for stream"),
        ({"kafka.auto.offset.reset": "earliest"}, "'kafka.auto.offset.reset' cannot be set: say where to start by"),
        ({"assign": '{"flights": [0]}'}, "give one of subscribe, subscribePattern, assign, not subscribe and assign"),
        ({"subscribe": None}, "give one of subscribe, subscribePattern, assign, not none"),
        ({"subscribe": " ,"}, "subscribe=' ,' names no topic"),
        ({"subscribe": 7}, 'subscribe=7 must be topics, as "a,b"'),
        ({"subscribe": b"t"}, "subscribe=b't' must be topics"),
        ({"subscribe": ["t", 7]}, r"subscribe=\['t', 7\] must be topics"),
        ({"subscribe": None, "subscribePattern": "("}, r"subscribePattern='\(' is no regular expression"),
        ({"startingOffsets": "latest"}, "leaves nothing to read"),
        ({"endingOffsets": "earliest"}, "leaves nothing to read"),
        ({"startingTimestamp": "now"}, "startingTimestamp='now' must be milliseconds since 1970"),
        ({"minPartitions": 0}, "minPartitions=0 must be a whole number of at least 1"),
        ({"minPartitions": "2.5"}, "minPartitions='2.5' must be a whole number"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss='no' must be true or false"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "must be one of error, latest"),
        ({"value": "avro"}, "value='avro' must be one of string, json, msgpack"),
        ({"value": "json"}, "value='json' needs schema="),
        ({"value": "string", "schema": "a int"}, "value='string' takes no schema"),
        ({"schema": "a int"}, "option 'schema' goes with value="),
        ({"value": "string", "mode": "ignore"}, "must be one of failfast, permissive, dropmalformed"),
        ({"value": "string", "mode": "permissive", "columnNameOfCorruptRecord": "key"}, "the name of another column"),
        ({"value": "string", "mode": "permissive", "columnNameOfCorruptRecord": "Value"}, "name of another column"),
        ({"value": "string", "dropped": object()}, "counts what mode=DROPMALFORMED leaves out"),
    ],
)
def test_unfit_options_are_refused_in_one_sentence(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        batch(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"endingOffsets": "latest"}, "option 'endingOffsets' is only for read"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay='soon' must be a time like 30s or 15m"),
        ({"minOffsetsPerTrigger": 9, "maxOffsetsPerTrigger": 8}, "minOffsetsPerTrigger=9 must be at most"),
    ],
)
def test_unfit_options_of_streams_are_refused_in_one_sentence(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        stream(**options)


def test_values_need_their_column() -> None:
    with pytest.raises(ValueError, match=r"decodes the column value, which columns=\['key'\] leaves out"):
        read_options({"subscribe": "t", "value": "string"}, streaming=False, columns=["key"])
