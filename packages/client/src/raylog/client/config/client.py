"""◆ The client's settings, in Kafka's names and with Kafka 4's defaults.

Keyword arguments are the same names with underscores: ``Producer(…, linger_ms=20)`` sets ``linger.ms``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from raylog.client.batches.accumulator import RECORD_OVERHEAD
from raylog.client.batches.partitioner import KEY_HASHES
from raylog.client.config.compression import COMPRESSION_SETTINGS, compression
from raylog.client.config.connection import CONNECTION_SETTINGS, METADATA_MAX_IDLE_MS
from raylog.client.config.kafka import reason_of
from raylog.client.config.texts import not_sendable, parse_address, setting_text
from raylog.protocol.errors import InvalidConfig
from raylog.protocol.records import HEADER_SIZE
from raylog.protocol.settings import (
    Scope,
    Setting,
    Settings,
    SettingsTable,
    ValueType,
    at_least,
    one_of,
)

T = TypeVar("T")


def client_setting(name: str, type_: ValueType, default: T, doc: str, **more: Any) -> Setting[T]:
    return Setting(name, type_, default, Scope.CLIENT, doc, **more)


def _addresses(value: tuple[str, ...]) -> str | None:
    """Raises InvalidConfig for what is no address."""
    for text in value:
        parse_address(text)
    return None if value else "must name at least one host:port"


def _room_for_a_record(size: int) -> str | None:
    if size > HEADER_SIZE + RECORD_OVERHEAD:
        return None
    return (
        f"leaves no room for a record: a batch takes {HEADER_SIZE} bytes, and each record up to {RECORD_OVERHEAD} "
        "besides its key, value and headers"
    )


# Every client.
BOOTSTRAP_SERVERS: Setting[tuple[str, ...]] = client_setting(
    "bootstrap.servers",
    ValueType.LIST,
    (),
    "Addresses (host:port) to learn the cluster from; any live broker will do.",
    check=_addresses,
)
CLIENT_ID = client_setting(
    "client.id",
    ValueType.STRING,
    "raylog",
    "The name that brokers log and count this client by.",
    check=not_sendable,
)
REQUEST_TIMEOUT_MS = client_setting(
    "request.timeout.ms",
    ValueType.INT,
    30_000,
    "How long one request may stay unanswered before its connection is given up.",
    unit="ms",
    check=at_least(1),
)
RETRY_BACKOFF_MS = client_setting(
    "retry.backoff.ms",
    ValueType.LONG,
    100,
    "The pause before a failed request or the metadata is tried again; doubles each time.",
    unit="ms",
    check=at_least(0),
)
RETRY_BACKOFF_MAX_MS = client_setting(
    "retry.backoff.max.ms",
    ValueType.LONG,
    1_000,
    "The longest pause between two tries.",
    unit="ms",
    check=at_least(0),
)
METADATA_MAX_AGE_MS = client_setting(
    "metadata.max.age.ms",
    ValueType.LONG,
    300_000,
    "The metadata is asked for again after this time even when nothing failed.",
    unit="ms",
    check=at_least(1),
)
DEFAULT_API_TIMEOUT_MS = client_setting(
    "default.api.timeout.ms",
    ValueType.INT,
    60_000,
    "How long a call that asks the cluster may take, retries included.",
    unit="ms",
    check=at_least(1),
)
STATISTICS_INTERVAL_MS = client_setting(
    "statistics.interval.ms",
    ValueType.LONG,
    0,
    "How often stats_cb is called with the client's metrics, as in librdkafka; 0: never.",
    unit="ms",
    check=at_least(0),
)
COMMON: tuple[Setting[Any], ...] = (
    BOOTSTRAP_SERVERS,
    CLIENT_ID,
    REQUEST_TIMEOUT_MS,
    RETRY_BACKOFF_MS,
    RETRY_BACKOFF_MAX_MS,
    METADATA_MAX_AGE_MS,
    *CONNECTION_SETTINGS,
)

# Producer.
ACKS = client_setting(
    "acks",
    ValueType.STRING,
    "all",
    "Who must have a batch before it counts as delivered: nobody (0), the leader (1), all in-sync replicas (all).",
    check=one_of("0", "1", "all", "-1"),
)
ENABLE_IDEMPOTENCE = client_setting(
    "enable.idempotence",
    ValueType.BOOLEAN,
    True,
    "Retries neither duplicate nor reorder records. Needs acks=all; off when acks is set to 0 or 1.",
)
LINGER_MS = client_setting(
    "linger.ms",
    ValueType.LONG,
    5,
    "How long a batch that isn't full waits for more records.",
    unit="ms",
    check=at_least(0),
)
BATCH_SIZE = client_setting(
    "batch.size",
    ValueType.INT,
    16_384,
    "The size that a batch grows to, before compression; a larger record goes alone.",
    unit="bytes",
    check=at_least(1),
)
MAX_IN_FLIGHT = client_setting(
    "max.in.flight.requests.per.connection",
    ValueType.INT,
    5,
    "Requests to one broker that may wait for their answer; at most 5 with idempotence.",
    check=at_least(1),
)
DELIVERY_TIMEOUT_MS = client_setting(
    "delivery.timeout.ms",
    ValueType.INT,
    120_000,
    "A record that isn't delivered this long after send() fails, retries included.",
    unit="ms",
    check=at_least(1),
)
RETRIES = client_setting(
    "retries",
    ValueType.INT,
    2**31 - 1,
    "How often one batch is sent again after a passing error; delivery.timeout.ms is the bound to think in.",
    check=at_least(0),
)
BUFFER_MEMORY = client_setting(
    "buffer.memory",
    ValueType.LONG,
    33_554_432,
    "Bytes of records that may wait for their delivery; send() blocks while they are used up.",
    unit="bytes",
    check=_room_for_a_record,
)
MAX_BLOCK_MS = client_setting(
    "max.block.ms",
    ValueType.LONG,
    60_000,
    "How long send() may block for metadata and for memory.",
    unit="ms",
    check=at_least(0),
)
MAX_REQUEST_SIZE = client_setting(
    "max.request.size",
    ValueType.INT,
    1_048_576,
    "The largest record that send() takes, and the largest request, both before compression.",
    unit="bytes",
    check=_room_for_a_record,
)
PARTITIONER = client_setting(
    "partitioner",
    ValueType.STRING,
    "murmur2_random",
    "murmur2_random: by the key's hash, as Java's clients; without a key a batch at a time, at random. By other "
    "hashes, as librdkafka's clients: consistent_random (CRC32; an empty key is none), fnv1a_random; and murmur2, "
    "consistent, fnv1a, which put all records without a key into one partition. Whatever the key: roundrobin, one "
    "record after the other, and random; both leave out partitions without a leader.",
    check=one_of(*KEY_HASHES, "roundrobin", "random"),
)
PRODUCER_SETTINGS = SettingsTable(
    (
        *COMMON,
        ACKS,
        ENABLE_IDEMPOTENCE,
        LINGER_MS,
        BATCH_SIZE,
        *COMPRESSION_SETTINGS,
        MAX_IN_FLIGHT,
        DELIVERY_TIMEOUT_MS,
        RETRIES,
        BUFFER_MEMORY,
        MAX_BLOCK_MS,
        MAX_REQUEST_SIZE,
        PARTITIONER,
        METADATA_MAX_IDLE_MS,
        STATISTICS_INTERVAL_MS,
    )
)

ADMIN_SETTINGS = SettingsTable((*COMMON, DEFAULT_API_TIMEOUT_MS))


def client_settings(
    table: SettingsTable, bootstrap_servers: str | Sequence[str], config: Mapping[str, Any]
) -> Settings:
    """Settings from keyword arguments (``linger_ms``) or Kafka's names (``linger.ms``), texts or values.

    None is the default. Raises InvalidConfig for an unknown name, one that is given twice, or an unfit value.
    """
    settings = table.settings(config_texts(table, config, ("bootstrap.servers", bootstrap_servers)))
    if not settings[BOOTSTRAP_SERVERS]:
        raise InvalidConfig("bootstrap.servers is empty; give at least one host:port")
    return settings


def config_texts(table: SettingsTable, config: Mapping[str, Any], *first: tuple[str, Any]) -> dict[str, str]:
    """The texts of settings that a user gave, by Kafka's names, without those that are None. Raises InvalidConfig for
    an unknown name, one that is given twice, and what is no value of a setting."""
    texts: dict[str, str] = {}
    for name, value in (*first, *config.items()):
        dotted = name.replace("_", ".")
        if dotted not in table and (reason := reason_of(dotted)):
            raise InvalidConfig(f"{dotted} {reason}")
        known = table[dotted].name
        if known in texts:
            raise InvalidConfig(f"{known} is given twice")
        if isinstance(value, bool) and table[known].type is not ValueType.BOOLEAN:
            raise InvalidConfig(f"{known}={value} is neither a text nor a number")
        if value is not None:
            texts[known] = setting_text(known, value)
    return texts


def server_text(given: str | Sequence[str]) -> str:
    """Addresses of brokers in one text. Raises InvalidConfig."""
    servers: tuple[str, ...] = client_settings(ADMIN_SETTINGS, given, {})[BOOTSTRAP_SERVERS]
    return ",".join(servers)


def producer_guarantees(settings: Settings) -> tuple[int, bool]:
    """``acks`` as on the wire (0, 1, -1) and whether the producer is idempotent.

    Idempotence is on unless acks is 0 or 1 and nobody asked for it; a contradiction is InvalidConfig.
    """
    acks = {"0": 0, "1": 1, "all": -1, "-1": -1}[settings[ACKS]]
    idempotent = settings[ENABLE_IDEMPOTENCE]
    if idempotent and acks != -1:
        if not settings.is_default(ENABLE_IDEMPOTENCE):
            raise InvalidConfig(f"enable.idempotence=true needs acks=all, not acks={settings[ACKS]}")
        idempotent = False
    if idempotent and settings[MAX_IN_FLIGHT] > 5:
        raise InvalidConfig(
            "max.in.flight.requests.per.connection must be at most 5 with enable.idempotence: "
            "brokers remember five batches"
        )
    if settings[DELIVERY_TIMEOUT_MS] < settings[LINGER_MS]:
        raise InvalidConfig("delivery.timeout.ms must be at least linger.ms, or every batch expires before it is sent")
    compression(settings)  # raises for levels that do not fit
    if settings[BATCH_SIZE] > settings[BUFFER_MEMORY]:
        raise InvalidConfig("batch.size must be at most buffer.memory, or no batch could ever begin")
    return acks, idempotent
