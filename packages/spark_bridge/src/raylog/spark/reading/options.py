"""◆ The options of ``read`` and ``stream``, in the names of Spark's Kafka source, checked in one place.

Values may be Python's or texts, as Spark's ``option`` takes them: ``minPartitions=8`` or ``"8"``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from raylog.client.config.client import server_text
from raylog.client.config.texts import digits
from raylog.client.fetch.consumer_config import CONSUMER_SETTINGS, isolation_level_of
from raylog.client.ranges.offset_ranges import (
    EARLIEST,
    LATEST,
    AtTime,
    OffsetSpec,
    Selection,
    parse_offsets,
    parse_partitions,
    parse_time,
    parse_times,
)
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.protocol.errors import InvalidTopic
from raylog.protocol.ids import Offset
from raylog.spark.reading.columns import choose_columns
from raylog.spark.reading.values import ParseMode, ValueFormat

_BOTH = (
    "subscribe", "subscribePattern", "assign", "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "failOnDataLoss", "includeHeaders", "minPartitions",
    "maxRecordsPerPartition", "groupIdPrefix", "value", "schema", "mode", "columnNameOfCorruptRecord", "dropped",
)  # fmt: skip
_BATCH = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STREAM = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_SELECTIONS = ("subscribe", "subscribePattern", "assign")

_KAFKA_CONNECTOR_S = ("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs")
"""How patient Spark's Kafka source is; here clients have one time for all that they try (default.api.timeout.ms)."""

_NOT_OURS = {
    "auto.offset.reset": "say where to start by startingOffsets",
    "enable.auto.commit": "Spark's checkpoint is the progress",
    "key.deserializer": "keys are binary; decode them in the query",
    "value.deserializer": "decode values by value=, or in the query",
    "interceptor.classes": "there are none",
}
"""Consumer settings that Spark's Kafka source refuses, too."""

_UNITS_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
"""Spark's units of time; a number without one is in milliseconds."""


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """How values are to be decoded."""

    format: ValueFormat
    schema: Any
    """DDL or a StructType; None for text."""
    mode: ParseMode
    corrupt_column: str
    dropped: Any
    """An accumulator that counts what ``DROPMALFORMED`` leaves out, or None."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What ``read`` and ``stream`` were asked for."""

    selection: Selection
    bootstrap_servers: str | None
    """None: as ``connect`` finds the cluster."""
    columns: tuple[str, ...]
    """Spark's names, in the wanted order."""
    starting: OffsetSpec | AtTime
    starting_option: str
    """The option that says where to start, for error messages."""
    ending: OffsetSpec | AtTime
    ending_option: str
    or_latest: bool
    """Where no record is so young as the starting time: start at the end instead of failing."""
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    """How long a trigger may wait for ``min_offsets_per_trigger``; 15 minutes by default, as Spark's."""
    group_id: str | None
    """``kafka.group.id``: the group that a stream shows its progress as."""
    group_id_prefix: str
    consumer: Mapping[str, Any]
    """Settings for consumers, with underscores."""
    isolation_level: int
    """Of these, as on the wire: 1 reads what is committed."""
    value: ValueOptions | None
    """None: values stay binary."""


def read_options(
    options: Mapping[str, Any],
    *,
    streaming: bool,
    bootstrap_servers: str | None = None,
    columns: Sequence[str] | None = None,
) -> ReadOptions:
    """``options`` as Spark's users write them, checked. Raises ValueError for one that is unknown, missing or unfit,
    and InvalidConfig for an unfit consumer setting."""
    consumer = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
    plain = {name: value for name, value in options.items() if not name.startswith("kafka.") and value is not None}
    _check_known(plain, streaming=streaming)
    servers, group_id = consumer.pop("bootstrap.servers", None), consumer.pop("group.id", None)
    settings, isolation = _consumer(consumer)
    starting_option, starting = _place(
        plain, "starting", LATEST if streaming else EARLIEST, None if streaming else LATEST
    )
    ending_option, ending = _place(plain, "ending", LATEST, EARLIEST)
    chosen = choose_columns(columns, include_headers=_flag(plain, "includeHeaders", default=False))
    least, most = _number(plain, "minOffsetsPerTrigger"), _number(plain, "maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise ValueError(f"minOffsetsPerTrigger={least} must be at most maxOffsetsPerTrigger={most}")
    return ReadOptions(
        selection=_selection(plain),
        bootstrap_servers=chosen_servers(bootstrap_servers, servers),
        columns=chosen,
        starting=starting,
        starting_option=starting_option,
        ending=ending,
        ending_option=ending_option,
        or_latest=_one_of(plain, "startingOffsetsByTimestampStrategy", ("error", "latest")) == "latest",
        fail_on_data_loss=_flag(plain, "failOnDataLoss", default=True),
        min_partitions=_number(plain, "minPartitions"),
        max_records_per_partition=_number(plain, "maxRecordsPerPartition"),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=_duration_ms(plain, "maxTriggerDelay", "15m"),
        group_id=None if group_id is None else _text("kafka.group.id", group_id),
        group_id_prefix=_text("groupIdPrefix", plain.get("groupIdPrefix", "raylog-spark")),
        consumer=settings,
        isolation_level=isolation,
        value=_value(plain, chosen),
    )


def chosen_servers(argument: str | None, option: str | None) -> str | None:
    """The addresses in ``bootstrap_servers``, else in ``kafka.bootstrap.servers``; None: in neither. Raises
    InvalidConfig."""
    given = option if argument is None else argument
    return None if given is None else server_text(given)


def _check_known(plain: Mapping[str, Any], *, streaming: bool) -> None:
    known = (*_BOTH, *(_STREAM if streaming else _BATCH))
    elsewhere = _BATCH if streaming else _STREAM
    for name in sorted(plain.keys() - set(known)):
        if name in elsewhere:
            raise ValueError(f"option {name!r} is only for {'read' if streaming else 'stream'}")
        if name in _KAFKA_CONNECTOR_S:
            raise ValueError(f"option {name!r} is of Spark's Kafka connector alone, and not needed here: leave it out")
        if (dotted := name.replace("_", ".")) in CONSUMER_SETTINGS:
            raise ValueError(f"unknown option {name!r}: consumer settings begin with kafka., as kafka.{dotted}")
        by_case = {option.lower(): option for option in known}
        near = get_close_matches(name.lower(), by_case, 1, 0.0)
        raise ValueError(f"unknown option {name!r}: did you mean {by_case[near[0]]}?")


def _consumer(given: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Settings for consumers, and their ``isolation.level``."""
    for name, instead in _NOT_OURS.items():
        if name in given:
            raise ValueError(f"option 'kafka.{name}' cannot be set: {instead}")
    settings = {name.replace(".", "_"): value for name, value in given.items()}
    return settings, isolation_level_of(settings)


def _selection(plain: Mapping[str, Any]) -> Selection:
    given = [name for name in _SELECTIONS if name in plain]
    if len(given) != 1:
        raise ValueError(f"give one of {', '.join(_SELECTIONS)}, not {' and '.join(given) or 'none'}")
    [name] = given
    value = plain[name]
    match name:
        case "assign":
            return Selection(partitions=parse_partitions(name, str(value)))
        case "subscribePattern":
            try:
                re.compile(_text(name, value))
            except re.error as error:
                raise ValueError(f"subscribePattern={value!r} is no regular expression: {error}") from error
            return Selection(pattern=value)
    return Selection(topics=topic_names(value))


def topic_names(subscribe: str | Iterable[str]) -> tuple[str, ...]:
    """The topics that ``subscribe`` lists, comma-separated or one by one. Raises ValueError when it lists none."""
    listed = subscribe.split(",") if isinstance(subscribe, str) else subscribe
    listed = tuple(listed) if isinstance(listed, Iterable) else (listed,)
    if not all(isinstance(name, str) for name in listed):
        raise ValueError(f'subscribe={subscribe!r} must be topics, as "a,b" or ["a", "b"]')
    names = tuple(sorted({name.strip() for name in listed} - {""}))
    if not names:
        raise ValueError(f"subscribe={subscribe!r} names no topic")
    for name in names:
        try:
            check_topic_name(name)
        except InvalidTopic as error:
            raise ValueError(f"subscribe: {error}") from error
    return names


def _text(name: str, given: Any) -> str:
    if not isinstance(given, str) or not given:
        raise ValueError(f"{name}={given!r} must be a text")
    return given


def _value(plain: Mapping[str, Any], columns: Sequence[str]) -> ValueOptions | None:
    if "value" not in plain:
        for name in ("schema", "mode", "columnNameOfCorruptRecord", "dropped"):
            if name in plain:
                raise ValueError(f"option {name!r} goes with value={' or '.join(ValueFormat)}, which is not given")
        return None
    format_ = ValueFormat(_one_of(plain, "value", tuple(ValueFormat)))
    mode = ParseMode(_one_of(plain, "mode", tuple(ParseMode)))
    schema, corrupt_column = plain.get("schema"), str(plain.get("columnNameOfCorruptRecord", "_corrupt_record"))
    if (schema is None) is not (format_ is ValueFormat.STRING):
        needs = "takes no schema" if schema is not None else "needs schema=, as 'id long, name string'"
        raise ValueError(f"value={str(format_)!r} {needs}")
    if "value" not in columns:
        raise ValueError(f"value={str(format_)!r} decodes the column value, which columns={list(columns)!r} leaves out")
    if mode is ParseMode.PERMISSIVE and corrupt_column.lower() in map(str.lower, columns):  # as Spark compares them
        raise ValueError(f"columnNameOfCorruptRecord={corrupt_column!r} is the name of another column")
    if "dropped" in plain and mode is not ParseMode.DROPMALFORMED:
        raise ValueError("option 'dropped' counts what mode=DROPMALFORMED leaves out, which is not given")
    return ValueOptions(format_, schema, mode, corrupt_column, plain.get("dropped"))


def _place(
    plain: Mapping[str, Any], end: str, default: Offset, pointless: Offset | None
) -> tuple[str, OffsetSpec | AtTime]:
    """Where to start or end, and the option that says so; of several the first counts, as in Spark's Kafka source."""
    if (name := f"{end}Timestamp") in plain:
        return name, parse_time(name, str(plain[name]))
    if (name := f"{end}OffsetsByTimestamp") in plain:
        return name, parse_times(name, str(plain[name]))
    name = f"{end}Offsets"
    return name, parse_offsets(name, str(plain[name]), pointless=pointless) if name in plain else default


def _number(plain: Mapping[str, Any], name: str) -> int | None:
    if name not in plain:
        return None
    number = digits(str(plain[name]).strip())
    if not number:
        raise ValueError(f"{name}={plain[name]!r} must be a whole number of at least 1, and of 64 bits")
    return number


def _flag(plain: Mapping[str, Any], name: str, *, default: bool) -> bool:
    text = str(plain.get(name, default)).strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name}={plain[name]!r} must be true or false")
    return text == "true"


def _one_of(plain: Mapping[str, Any], name: str, values: Sequence[str]) -> str:
    """The option's value; by default the first of ``values``."""
    text = str(plain.get(name, values[0])).strip().lower()
    if text not in values:
        raise ValueError(f"{name}={plain[name]!r} must be one of {', '.join(values)}")
    return text


def _duration_ms(plain: Mapping[str, Any], name: str, default: str) -> int:
    text = str(plain.get(name, default)).strip().lower()
    found = re.fullmatch(r"([0-9]{1,10})\s*([a-z]*)", text)
    if found is None or found[2] not in _UNITS_MS:
        raise ValueError(f"{name}={plain[name]!r} must be a time like 30s or 15m")
    return int(found[1]) * _UNITS_MS[found[2]]
