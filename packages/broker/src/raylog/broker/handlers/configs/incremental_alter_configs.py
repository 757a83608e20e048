"""IncrementalAlterConfigs (API 44): change single overrides of topics and brokers. KIP-339.

v0      set (0) and delete (1) an override; append (2) to and subtract (3) from a list
v1      flexible

Appending and subtracting begin with the override, or with the value in force when there is none. An item that
is there already is not appended again; one that is not there is not missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from raylog.broker.handlers.configs import config_changes
from raylog.broker.handlers.configs.config_changes import Target, not_a_list, text_of
from raylog.broker.handlers.context import Ports, RequestContext
from raylog.coordination.metadata.configs import Change
from raylog.protocol.errors import InvalidRequest
from raylog.protocol.settings import ValueType

refuse = config_changes.refuse


class Op(IntEnum):
    """What is done to one override."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def decide(ctx: RequestContext, request: Any, ports: Ports) -> Any:
    return config_changes.alter_each(ctx, request, ports, _change)


def _change(resource: Any, target: Target) -> Change:
    """Only what the request touches is checked, and the size of all: an override of another release must not be in the
    way.
    """
    edits = [(entry, _op(entry)) for entry in resource.configs]  # an unknown operation is told first, as by Kafka
    for entry, op in edits:
        if not entry.name:
            target.row(entry.name)  # raises
        if op is not Op.DELETE:
            text_of(entry)
        if op in (Op.APPEND, Op.SUBTRACT) and target.row(entry.name).type is not ValueType.LIST:
            raise not_a_list(entry.name)
        if op in (Op.SET, Op.APPEND):
            target.check({entry.name: entry.value})  # before anybody looks whether there is such a topic, as in Kafka

    def change(overrides: Mapping[str, str]) -> Mapping[str, str]:
        changed = dict(overrides)
        for entry, op in edits:
            if op is Op.DELETE:
                changed.pop(entry.name, None)
            else:
                changed[entry.name] = _value(entry, op, overrides, target)
                if op is not Op.SET:
                    target.check({entry.name: changed[entry.name]})
        if any(op is not Op.DELETE for _, op in edits):
            target.check_size(changed)
        return changed

    return change


def _op(entry: Any) -> Op:
    try:
        return Op(entry.config_operation)
    except ValueError:
        raise InvalidRequest(f"{entry.name}: operation {entry.config_operation} is none of 0 to 3") from None


def _value(entry: Any, op: Op, overrides: Mapping[str, str], target: Target) -> str:
    if op is Op.SET:
        return text_of(entry)
    row = target.row(entry.name)
    before = overrides.get(entry.name)
    items = dict.fromkeys(target.in_force()[row] if before is None else _items(before))
    asked = dict.fromkeys(_items(text_of(entry)))
    if op is Op.APPEND:
        return ",".join(items | asked)
    return ",".join(item for item in items if item not in asked)


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
