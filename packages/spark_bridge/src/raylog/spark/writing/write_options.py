"""◆ The options of ``write`` and ``sink``, in the names of Spark's Kafka sink, checked in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from raylog.client.config.client import BATCH_SIZE, PRODUCER_SETTINGS, client_settings, producer_guarantees
from raylog.spark.reading.options import chosen_servers

_NOT_OURS = {
    "key.serializer": "keys are binary or strings; cast them in the query",
    "value.serializer": "values are binary or strings; cast them in the query",
}
_SETTLED = {
    "acks": "each record is there once only if all in-sync replicas have it",
    "enable.idempotence": "it is what makes each record be there once",
    "partitioner": "a batch that is written again must go to the same partitions",
}
"""What a sink that writes each batch once decides itself."""


class WriteOptions(NamedTuple):
    """What ``write`` and ``sink`` were asked for."""

    bootstrap_servers: str | None
    """None: as ``connect`` finds the cluster."""
    producer: dict[str, Any]
    """Settings for producers, with underscores."""
    batch_size: int
    """In bytes."""


def write_options(options: Mapping[str, Any], bootstrap_servers: str | None, *, exactly_once: bool) -> WriteOptions:
    """``options``, which are ``kafka.*`` producer settings, checked.

    Raises ValueError for one that is unknown or can't be set, and InvalidConfig for an unfit setting.
    """
    unknown = sorted(name for name in options if not name.startswith("kafka."))
    if unknown:
        [name, *_] = unknown
        dotted = name.replace("_", ".")
        example = dotted if dotted in PRODUCER_SETTINGS else "compression.type"
        raise ValueError(f"unknown option {name!r}: producer settings begin with kafka., as kafka.{example}")
    given = {name.removeprefix("kafka."): value for name, value in options.items()}
    servers = given.pop("bootstrap.servers", None)
    for name, why in {**_NOT_OURS, **(_SETTLED if exactly_once else {})}.items():
        if name in given:
            raise ValueError(f"option 'kafka.{name}' cannot be set: {why}")
    producer = {name.replace(".", "_"): value for name, value in given.items()}
    settings = client_settings(PRODUCER_SETTINGS, "checked-elsewhere:1", producer)
    producer_guarantees(settings)
    return WriteOptions(chosen_servers(bootstrap_servers, servers), producer, settings[BATCH_SIZE])
