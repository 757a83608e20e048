"""What every member of a group with a handler is made from; it travels to the member's process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from re import Pattern
from typing import Any

from raylog.client.admin import Admin
from raylog.client.arguments.arguments import group_id
from raylog.client.arguments.serde import Deserializer, deserializer
from raylog.client.config.client import client_settings
from raylog.client.consumer import Consumer
from raylog.client.fetch.consumer_config import AUTO_OFFSET_RESET, CONSUMER_SETTINGS, GROUP_INSTANCE_ID
from raylog.client.groups.group_consumer import RebalanceListener
from raylog.client.groups.group_consumer_join import Topics, subscribed
from raylog.client.handlers.batches import HandlerBatch, columns_of, rows_of
from raylog.client.handlers.config import Guarantee, HandlerOptions, split_config
from raylog.client.handlers.dead_letters import DeadLetterTopic
from raylog.client.handlers.runner import HandlerRunner
from raylog.client.handlers.user_handler import check_handler
from raylog.coordination.metadata.topic_patterns import matching_topics, pattern_text
from raylog.protocol.errors import InvalidConfig, TopicAlreadyExists, UnknownTopicOrPartition
from raylog.protocol.ids import GroupId

ROWS = "rows"
ARROW = "pyarrow"


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Make it with :meth:`of`, which checks it."""

    group: GroupId
    bootstrap_servers: str
    topics: Topics
    handler: Any
    options: HandlerOptions
    batch_format: str
    key_deserializer: str | Deserializer | None
    value_deserializer: str | Deserializer | None
    consumer_config: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        group: str,
        bootstrap_servers: str,
        topics: str | Iterable[str] | Pattern[str],
        handler: Any,
        *,
        batch_format: str,
        key_deserializer: str | Deserializer | None,
        value_deserializer: str | Deserializer | None,
        config: Mapping[str, Any],
    ) -> GroupPlan:
        """Raises InvalidConfig, InvalidGroupId, InvalidRequest or InvalidTopic for what could not work in a member's
        process."""
        options, consumer_config = split_config(config)
        named = {setting.replace("_", ".") for setting in consumer_config}
        if options.guarantee is Guarantee.EXACTLY_ONCE and AUTO_OFFSET_RESET.name not in named:
            consumer_config["auto_offset_reset"] = "none"  # what the store has, or the beginning, and nothing else
        check_handler(handler, options)
        client_settings(CONSUMER_SETTINGS, bootstrap_servers, {"group.id": group_id(group), **consumer_config})
        if batch_format not in (ROWS, ARROW):
            raise InvalidConfig(f"batch_format={batch_format!r} must be {ROWS} or {ARROW}")
        if batch_format == ARROW and (key_deserializer or value_deserializer):
            raise InvalidConfig("batch_format=pyarrow hands out binary columns: no deserializer applies")
        deserializer(key_deserializer, "key_deserializer")
        deserializer(value_deserializer, "value_deserializer")
        plan = cls(
            GroupId(group),
            bootstrap_servers,
            subscribed(topics),
            handler,
            options,
            batch_format,
            key_deserializer,
            value_deserializer,
            consumer_config,
        )
        if options.dead_letter_topic and plan.subscribes(options.dead_letter_topic):
            raise InvalidConfig(
                f"errors.deadletterqueue.topic.name={options.dead_letter_topic!r}: the group reads this topic itself"
            )
        return plan

    def subscribes(self, topic: str) -> bool:
        """True for a topic that the group reads, or would if there were one of that name."""
        if isinstance(self.topics, Pattern):
            return bool(matching_topics(pattern_text(self.topics), [topic]))
        return topic in self.topics

    def of_member(self, number: int) -> GroupPlan:
        """The plan of one of the group's actors: a static one (KIP-345) has its number in group.instance.id."""
        config = {name.replace("_", "."): value for name, value in self.consumer_config.items()}
        instance = config.get(GROUP_INSTANCE_ID.name)
        if not instance:
            return self
        return replace(self, consumer_config={**config, GROUP_INSTANCE_ID.name: f"{instance}-{number}"})

    def prepare(self) -> None:
        """Make the dead-letter topic where it is needed and not there."""
        topic = self.options.dead_letter_topic
        if not topic:
            return
        with Admin(self.bootstrap_servers) as admin:
            try:
                admin.describe_topic(topic)
            except UnknownTopicOrPartition:
                try:
                    admin.create_topic(topic)
                except TopicAlreadyExists:
                    pass

    def runner(self) -> HandlerRunner:
        """A member, for a thread of this process to run."""
        topic = self.options.dead_letter_topic
        return HandlerRunner(
            options=self.options,
            handler=self.handler,
            open_consumer=self._open_consumer,
            poll=self._poll,
            dead_letters=DeadLetterTopic(self.bootstrap_servers, topic, self.group) if topic else None,
        )

    def _open_consumer(self, listener: RebalanceListener) -> Consumer:
        return Consumer(
            self.bootstrap_servers,
            self.topics,
            group_id=self.group,
            listener=listener,
            enable_auto_commit=False,
            **self.consumer_config,
        )

    def _poll(self, consumer: Consumer, timeout_ms: int) -> list[HandlerBatch]:
        if self.batch_format == ARROW:
            return columns_of(consumer.poll_columns(timeout_ms))
        return rows_of(
            consumer.poll(timeout_ms), deserializer(self.key_deserializer), deserializer(self.value_deserializer)
        )
