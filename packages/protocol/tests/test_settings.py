"""Settings: texts parsed and checked in one place, defaults, overrides, parents and changes."""

from __future__ import annotations

from typing import Any

import pytest

from raylog.protocol.errors import InvalidConfig
from raylog.protocol.settings import (
    Scope,
    Setting,
    Settings,
    SettingsTable,
    ValueType,
    at_least,
    between,
    one_of,
)


def setting(kind: ValueType, default: Any, **more: Any) -> Setting[Any]:
    return Setting(more.pop("name", "a.name"), kind, default, Scope.STATIC, "What it does.", **more)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (ValueType.BOOLEAN, "true", True),
        (ValueType.BOOLEAN, " FALSE ", False),
        (ValueType.STRING, " x y ", "x y"),
        (ValueType.INT, "-2147483648", -(2**31)),
        (ValueType.INT, "2147483647", 2**31 - 1),
        (ValueType.LONG, "9223372036854775807", 2**63 - 1),
        (ValueType.DOUBLE, "0.5", 0.5),
        (ValueType.LIST, "a, b,,c ", ("a", "b", "c")),
        (ValueType.LIST, "", ()),
        (ValueType.PASSWORD, "s3cret", "s3cret"),
    ],
)
def test_texts_are_parsed(kind: ValueType, text: str, value: object) -> None:
    assert setting(kind, None).parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ValueType.BOOLEAN, "yes"),
        (ValueType.BOOLEAN, ""),
        (ValueType.INT, "2147483648"),
        (ValueType.INT, "-2147483649"),
        (ValueType.INT, "1.5"),
        (ValueType.INT, ""),
        (ValueType.LONG, "9223372036854775808"),
        (ValueType.DOUBLE, "a lot"),
    ],
)
def test_unfit_texts_are_refused_by_name(kind: ValueType, text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"^a\.name="):
        setting(kind, None).parse(text)


@pytest.mark.parametrize(
    ("check", "good", "bad", "complaint"),
    [
        (at_least(1), "1", "0", "must be at least 1"),
        (between(1, 5), "5", "6", "must be from 1 to 5"),
        (one_of("3", "4"), "4", "5", "must be 3 or 4"),
    ],
)
def test_checks_say_what_is_wrong(check: Any, good: str, bad: str, complaint: str) -> None:
    kind = ValueType.STRING if good == "4" else ValueType.INT
    row = setting(kind, None, check=check)
    row.parse(good)
    with pytest.raises(InvalidConfig, match=f"'{bad}' {complaint}"):
        row.parse(bad)


def test_lists_are_checked_item_by_item() -> None:
    row = setting(ValueType.LIST, (), check=one_of("delete", "compact"))
    assert row.parse("delete,compact") == ("delete", "compact")
    with pytest.raises(InvalidConfig, match="must be delete or compact"):
        row.parse("delete,shred")


@pytest.mark.parametrize(("value", "text"), [(None, ""), (True, "true"), (("a", "b"), "a,b"), (5, "5"), ("x", "x")])
def test_values_are_shown_as_kafka_s_tools_show_them(value: object, text: str) -> None:
    assert setting(ValueType.STRING, None).format(value) == text


SEGMENT_BYTES = setting(ValueType.INT, 1000, name="log.segment.bytes", check=at_least(14))
OTHER = setting(ValueType.STRING, "o", name="other")
BROKER = SettingsTable([SEGMENT_BYTES, OTHER])
TOPIC_SEGMENT_BYTES = setting(ValueType.INT, 1, name="segment.bytes", broker_default="log.segment.bytes")
TOPIC = SettingsTable([TOPIC_SEGMENT_BYTES])


def test_a_table_knows_its_rows_once() -> None:
    assert [row.name for row in BROKER] == ["log.segment.bytes", "other"]
    assert "other" in BROKER
    assert "segment.bytes" not in BROKER
    with pytest.raises(ValueError, match="declared twice"):
        SettingsTable([OTHER, OTHER])
    with pytest.raises(InvalidConfig, match=r"unknown setting 'log\.segment\.byte'"):
        BROKER.parse({"log.segment.byte": "1"})


def test_overrides_win_over_defaults() -> None:
    settings = BROKER.settings({"log.segment.bytes": "20"})
    assert settings[SEGMENT_BYTES] == 20
    assert settings[OTHER] == "o"
    assert not settings.is_default(SEGMENT_BYTES)
    assert settings.is_default(OTHER)
    assert settings.overrides == {"log.segment.bytes": 20}


def test_a_topic_s_default_is_its_broker_s_value() -> None:
    broker = BROKER.settings({"log.segment.bytes": "30"})
    topic = Settings(TOPIC, parent=broker)
    assert topic.parent is broker
    assert topic[TOPIC_SEGMENT_BYTES] == 30
    assert Settings(TOPIC, parent=BROKER.settings())[TOPIC_SEGMENT_BYTES] == 1000
    assert Settings(TOPIC, {"segment.bytes": 7}, parent=broker)[TOPIC_SEGMENT_BYTES] == 7
    assert Settings(TOPIC)[TOPIC_SEGMENT_BYTES] == 1


def test_layers_lie_over_each_other_and_the_strongest_wins() -> None:
    static = BROKER.settings({"log.segment.bytes": "20", "other": "static"})
    default = Settings(BROKER, {"other": "default"}, base=static)
    own = Settings(BROKER, {"log.segment.bytes": 40}, base=default)
    assert (own[SEGMENT_BYTES], own[OTHER]) == (40, "default")
    assert own.layers == (
        {"log.segment.bytes": 40},
        {"other": "default"},
        {"log.segment.bytes": 20, "other": "static"},
    )
    assert own.overrides == {"log.segment.bytes": 40, "other": "default"}
    assert (static[SEGMENT_BYTES], static[OTHER]) == (20, "static")
    assert not Settings(BROKER, {}, base=default).is_default(OTHER)


def test_settings_cannot_be_changed_from_outside() -> None:
    overrides = {"log.segment.bytes": 20}
    settings = Settings(BROKER, overrides)
    overrides["log.segment.bytes"] = 21
    assert settings[SEGMENT_BYTES] == 20
    with pytest.raises(TypeError):
        settings.overrides["other"] = "x"  # type: ignore[index]


def test_what_cannot_be_taken_is_left_out_and_told() -> None:
    values, refused = BROKER.parse_known({"log.segment.bytes": "1", "other": "x", "of.a.newer.release": "y"})
    assert values == {"other": "x"}
    assert [str(error).partition(" ")[0] for error in refused] == ["log.segment.bytes='1'", "unknown"]
