"""◆ The settings of a group's handlers, in the names that Kafka Streams and Kafka Connect have for them.

Keyword arguments of ``raylog.client.group``, with underscores for dots; the consumer's own settings go beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from raylog.client.config.client import config_texts
from raylog.client.fetch.consumer_config import AUTO_COMMIT_INTERVAL_MS
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.protocol.errors import InvalidConfig, InvalidTopic
from raylog.protocol.settings import Scope, Setting, SettingsTable, ValueType, at_least, one_of


class Guarantee(StrEnum):
    """How often a record is handled when processes die."""

    AT_MOST_ONCE = "at_most_once"
    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


class OnError(StrEnum):
    """What becomes of a record that its handler keeps refusing."""

    STOP = "stop"
    SKIP = "skip"
    DEAD_LETTER = "dead letter"


PROCESSING_GUARANTEE = Setting(
    "processing.guarantee",
    ValueType.STRING,
    Guarantee.AT_LEAST_ONCE.value,
    Scope.CLIENT,
    "at_most_once: offsets are committed before the handler is called, which is never called again for them. "
    "at_least_once: they are committed after it, and handled again when that did not come to pass. exactly_once: the "
    "handler keeps the offset in its own store, in one transaction with its result, and its on_assigned says where "
    "to go on.",
    check=one_of(*Guarantee),
)
ERRORS_RETRY_TIMEOUT = Setting(
    "errors.retry.timeout",
    ValueType.LONG,
    30_000,
    Scope.CLIENT,
    "How long a batch whose handler raised is tried again, after a pause that doubles each time; its partition waits, "
    "others go on. -1: for ever, 0: not at all, as with at_most_once always.",
    unit="ms",
    check=at_least(-1),
)
ERRORS_RETRY_DELAY_MAX_MS = Setting(
    "errors.retry.delay.max.ms",
    ValueType.LONG,
    60_000,
    Scope.CLIENT,
    "The longest pause between two tries.",
    unit="ms",
    check=at_least(1),
)
ERRORS_TOLERANCE = Setting(
    "errors.tolerance",
    ValueType.STRING,
    "none",
    Scope.CLIENT,
    "What follows when the retries are over. none: the member stops, and so do the others, one after the other, if "
    "they fail as well. all: the records that the handler refuses one by one are left out, the others handled.",
    check=one_of("none", "all"),
)
ERRORS_DEADLETTERQUEUE_TOPIC_NAME = Setting(
    "errors.deadletterqueue.topic.name",
    ValueType.STRING,
    "",
    Scope.CLIENT,
    "With errors.tolerance=all: records that are left out go to this topic, with headers that tell the error and where "
    "they come from; it is created when it is not there. Empty: they are only logged and counted.",
)

HANDLER_SETTINGS = SettingsTable(
    (
        PROCESSING_GUARANTEE,
        ERRORS_RETRY_TIMEOUT,
        ERRORS_RETRY_DELAY_MAX_MS,
        ERRORS_TOLERANCE,
        ERRORS_DEADLETTERQUEUE_TOPIC_NAME,
    )
)
_READ_HERE = SettingsTable((*HANDLER_SETTINGS, AUTO_COMMIT_INTERVAL_MS))


@dataclass(frozen=True, slots=True)
class HandlerOptions:
    """The settings as the core takes them; times in ms."""

    guarantee: Guarantee
    commit_interval_ms: int
    """The consumer's auto.commit.interval.ms; 0: behind each batch."""
    retry_timeout_ms: int
    """-1: for ever."""
    retry_delay_max_ms: int
    on_error: OnError
    dead_letter_topic: str


def split_config(config: Mapping[str, Any]) -> tuple[HandlerOptions, dict[str, Any]]:
    """The handlers' options, and what of ``config`` is left for the consumer.

    Raises InvalidConfig for an unfit value, for a contradiction, and for ``enable.auto.commit``.
    """
    ours = {name: value for name, value in config.items() if name.replace("_", ".") in _READ_HERE}
    others = {name: value for name, value in config.items() if name not in ours}
    if "enable.auto.commit" in (name.replace("_", ".") for name in others):
        raise InvalidConfig("enable.auto.commit: a group commits what its handler has done; set processing.guarantee")
    settings = _READ_HERE.settings(config_texts(_READ_HERE, ours))
    topic, tolerant = settings[ERRORS_DEADLETTERQUEUE_TOPIC_NAME], settings[ERRORS_TOLERANCE] == "all"
    if topic:
        try:
            check_topic_name(topic)
        except InvalidTopic as error:
            raise InvalidConfig(f"errors.deadletterqueue.topic.name: {error}") from error
    if topic and not tolerant:
        raise InvalidConfig(f"errors.deadletterqueue.topic.name={topic!r} needs errors.tolerance=all")
    on_error = OnError.STOP if not tolerant else OnError.DEAD_LETTER if topic else OnError.SKIP
    options = HandlerOptions(
        guarantee=Guarantee(settings[PROCESSING_GUARANTEE]),
        commit_interval_ms=settings[AUTO_COMMIT_INTERVAL_MS],
        retry_timeout_ms=settings[ERRORS_RETRY_TIMEOUT],
        retry_delay_max_ms=settings[ERRORS_RETRY_DELAY_MAX_MS],
        on_error=on_error,
        dead_letter_topic=topic,
    )
    return options, others
