"""What a group with a handler refuses before it starts anything, and how it calls what the user gave."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from raylog.client.handlers.batches import Rows
from raylog.client.handlers.plan import GroupPlan
from raylog.client.handlers.user_handler import UserHandler
from raylog.client.results import ConsumerRecord
from raylog.protocol.errors import InvalidConfig, InvalidRequest
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

TP = TopicPartition(TopicName("t"), PartitionIndex(0))
BATCH = Rows(TP, [ConsumerRecord(*TP, 4, 0, 0, b"k", b"v", ())])


def ignore(records: list[ConsumerRecord]) -> None:
    """A handler."""


class Noting:
    """A handler that notes what it is told."""

    def __init__(self, first: str = "made") -> None:
        self.told: list[Any] = [first]

    def __call__(self, records: list[ConsumerRecord]) -> None:
        self.told.append([record.offset for record in records])

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> Mapping[tuple[str, int], int]:
        self.told.append(("assigned", *partitions))
        return {("t", 0): 4}

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.told.append(("revoked", *partitions))


class NotCallable:
    pass


def plan(topics: Any = ("t",), handler: Any = ignore, batch_format: str = "rows", **config: Any) -> GroupPlan:
    deserializers = {name: config.pop(name, None) for name in ("key_deserializer", "value_deserializer")}
    return GroupPlan.of(
        "g", "localhost:9092", topics, handler, batch_format=batch_format, config=config, **deserializers
    )


def test_static_actors_have_instances_of_their_own() -> None:
    made = [plan(group_instance_id="a").of_member(number).consumer_config for number in (0, 1)]
    assert made == [{"group.instance.id": "a-0"}, {"group.instance.id": "a-1"}]
    assert plan().of_member(1) == plan()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"topics": ()}, "topics by name, at least one"),
        ({"handler": 7}, "7 is neither a function nor a class"),
        ({"handler": NotCallable}, "class NotCallable has no __call__"),
        ({"handler": ignore, "processing_guarantee": "exactly_once"}, "whose on_assigned"),
        ({"batch_format": "pandas"}, "must be rows or pyarrow"),
        ({"batch_format": "pyarrow", "value_deserializer": "json"}, "no deserializer applies"),
        ({"value_deserializer": "jason"}, "unknown deserializer"),
        ({"no_such_setting": 1}, "no.such.setting"),
        ({"max_poll_records": 0}, "max.poll.records"),
        ({"errors_tolerance": "all", "errors_deadletterqueue_topic_name": "t"}, "the group reads this topic itself"),
    ],
)
def test_what_could_not_work_in_an_actor_is_refused_here(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        plan(**given)


def test_a_pattern_must_not_catch_the_dead_letters() -> None:
    dead = {"errors_tolerance": "all", "errors_deadletterqueue_topic_name": "orders.dead"}
    with pytest.raises(InvalidConfig, match="reads this topic itself"):
        plan(re.compile(r"orders.*"), **dead)
    assert plan(re.compile("orders"), **dead).subscribes("orders")


async def handle_later(records: list[ConsumerRecord]) -> None:
    """Calling it does nothing."""


def handle_bit_by_bit(records: list[ConsumerRecord]) -> Iterator[int]:
    yield len(records)


class Later(Noting):
    async def __call__(self, records: list[ConsumerRecord]) -> None: ...  # type: ignore[override]


class RevokedLater(Noting):
    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None: ...  # type: ignore[override]


@pytest.mark.parametrize(
    "handler",
    [handle_later, handle_bit_by_bit, partial(handle_later), Later, partial(Later, "x"), Later(), RevokedLater],
)
def test_handler_that_does_nothing_when_called_is_refused(handler: Any) -> None:
    with pytest.raises(InvalidConfig, match="is a coroutine or a generator"):
        plan(handler=handler)


@pytest.mark.parametrize("answer", [[4], "t", {0: 4}, {("t", 0): "4"}, {("t", 0): -1}, {("t", 0): None}])
def test_unfit_answer_of_on_assigned_is_named(answer: Any) -> None:
    class Answering(Noting):
        def on_assigned(self, partitions: Sequence[TopicPartition]) -> Any:
            return answer

    with pytest.raises(InvalidRequest, match=r"on_assigned|partitions: "):
        UserHandler(Answering).on_assigned([TP])


def test_exactly_once_goes_where_the_store_says_or_nowhere() -> None:
    made = partial(plan, handler=Noting, processing_guarantee="exactly_once")
    assert made().consumer_config == {"auto_offset_reset": "none"}
    assert made(**{"auto.offset.reset": "latest"}).consumer_config == {"auto.offset.reset": "latest"}
    assert plan().consumer_config == {}


def test_a_plan_travels() -> None:
    made = plan("t", partial(Noting, "sent"), processing_guarantee="exactly_once", max_poll_records=7)
    there = pickle.loads(pickle.dumps(made))
    assert there.topics == {"t"}
    assert there.options == made.options
    assert there.consumer_config == {"max_poll_records": 7, "auto_offset_reset": "none"}


def test_a_function_is_called_with_the_records() -> None:
    got: list[list[ConsumerRecord]] = []
    handler = UserHandler(got.append)
    assert handler.on_assigned([TP]) == {}
    handler(BATCH)
    handler.on_revoked([TP])
    handler.on_lost([TP])
    handler.close()
    assert got == [list(BATCH.records)]


def test_a_class_is_made_once_and_hears_of_its_partitions() -> None:
    made: list[Noting] = []

    class Remembered(Noting):
        def __init__(self, first: str) -> None:
            super().__init__(first)
            made.append(self)

    handler = UserHandler(partial(Remembered, "here"))
    assert handler.on_assigned([TP]) == {TP: 4}
    handler(BATCH)
    handler.on_revoked([TP])
    handler.on_lost([TP])  # it has no on_lost: on_revoked tells
    handler.close()
    [noting] = made
    assert noting.told == ["here", ("assigned", TP), [4], ("revoked", TP), ("revoked", TP)]
