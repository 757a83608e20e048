from __future__ import annotations

from typing import Any

import pytest

from raylog.client.config.client import (
    ADMIN_SETTINGS,
    BOOTSTRAP_SERVERS,
    LINGER_MS,
    PRODUCER_SETTINGS,
    client_settings,
    producer_guarantees,
)
from raylog.client.config.texts import parse_address
from raylog.client.fetch.consumer_config import CLIENT_RACK, CONSUMER_SETTINGS, GROUP_ID, offset_reset
from raylog.protocol.errors import InvalidConfig
from raylog.protocol.ids import EARLIEST, LATEST
from raylog.protocol.settings import SettingsTable


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [
        ("by_duration:P1D", 86_400_000),
        ("by_duration:PT1H30M", 5_400_000),
        ("by_duration:P2DT3H4M5.25S", 183_845_250),
        ("by_duration:pt0s", 0),
    ],
)
def test_offset_reset_by_duration_is_so_long_ago(text: str, ago_ms: int) -> None:
    now_ms = 1_700_000_000_000
    reset = offset_reset(client_settings(CONSUMER_SETTINGS, "a:1", {"auto_offset_reset": text}), lambda: now_ms)
    assert callable(reset)
    assert reset() == now_ms - ago_ms


def test_offset_reset_by_word_is_an_end_of_the_log() -> None:
    for text, reset in {"earliest": EARLIEST, "latest": LATEST, "none": None}.items():
        settings = client_settings(CONSUMER_SETTINGS, "a:1", {"auto_offset_reset": text})
        assert offset_reset(settings, lambda: 0) == reset


@pytest.mark.parametrize(
    "text", ["by_duration:", "by_duration:P", "by_duration:PT", "by_duration:-P1D", "P1D", "by_duration:1d"]
)
def test_an_unfit_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"auto\.offset\.reset.*ISO 8601 duration"):
        client_settings(CONSUMER_SETTINGS, "a:1", {"auto_offset_reset": text})


def test_keyword_arguments_are_kafkas_names_with_underscores() -> None:
    settings = client_settings(PRODUCER_SETTINGS, ["a:1", "b:2"], {"linger_ms": 20})
    assert settings[LINGER_MS] == 20
    assert settings[BOOTSTRAP_SERVERS] == ("a:1", "b:2")


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"lingr_ms": 1}, r"lingr\.ms"),
        ({"acks": "2"}, "acks"),
        ({"batch_size": "big"}, r"batch\.size"),
        ({"acks": 1, "enable_idempotence": True}, "needs acks=all"),
        ({"max_in_flight_requests_per_connection": 6}, "at most 5"),
        ({"linger_ms": 500, "delivery_timeout_ms": 100}, r"delivery\.timeout\.ms"),
        ({"buffer_memory": 10_000}, r"batch\.size must be at most buffer\.memory"),
        ({"max_request_size": 82}, r"max\.request\.size='82' leaves no room for a record: a batch takes 61 bytes, and"),
        ({"max_request_size": 0}, r"max\.request\.size='0' leaves no room for a record"),
        ({"max_request_size": -1}, r"max\.request\.size='-1' leaves no room for a record"),
        ({"buffer_memory": 82, "batch_size": 1}, r"buffer\.memory='82' leaves no room for a record"),
        ({"batch_size": 0}, r"batch\.size='0' must be at least 1"),
        ({"linger_ms": 5, "linger.ms": 6}, r"linger\.ms is given twice"),
        ({"bootstrap_servers": "b:2"}, r"bootstrap\.servers is given twice"),
        ({"client_id": b"bytes"}, r"client\.id: a bytes"),
        ({"client_id": {"a": 1}}, r"client\.id: a dict"),
        ({"client_id": "\udc80"}, r"client\.id"),
        ({"linger_ms": 1.5}, r"linger\.ms"),
        ({"lingr_ms": None}, r"lingr\.ms"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(config: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        producer_guarantees(client_settings(PRODUCER_SETTINGS, "a:1", config))


@pytest.mark.parametrize(
    ("table", "name", "reason"),
    [
        (CONSUMER_SETTINGS, "group_protocol", r"group\.protocol is not here: .*over ZooKeeper"),
        (CONSUMER_SETTINGS, "ssl_truststore_location", r"ssl\.truststore\.location is not here: .*TLS"),
        (CONSUMER_SETTINGS, "fetch.wait.max.ms", r"is librdkafka's name of fetch\.max\.wait\.ms"),
        (PRODUCER_SETTINGS, "transactional_id", "there are no transactions"),
        (PRODUCER_SETTINGS, "message.timeout.ms", r"is librdkafka's name of delivery\.timeout\.ms"),
        (ADMIN_SETTINGS, "retries", r"default\.api\.timeout\.ms"),
    ],
)
def test_a_setting_of_kafkas_that_is_not_here_is_refused_with_its_reason(
    table: SettingsTable, name: str, reason: str
) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        client_settings(table, "a:1", {name: "x"})


@pytest.mark.parametrize("name", ["fetch.min.bytes", "fetch.max.bytes", "max.partition.fetch.bytes"])
def test_a_negative_size_to_fetch_is_refused(name: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{name}='-1' must be at least 0"):
        client_settings(CONSUMER_SETTINGS, "a:1", {name: -1})


def test_idempotence_gives_way_to_acks_that_exclude_it() -> None:
    assert producer_guarantees(client_settings(PRODUCER_SETTINGS, "a:1", {})) == (-1, True)
    assert producer_guarantees(client_settings(PRODUCER_SETTINGS, "a:1", {"acks": 1})) == (1, False)
    assert producer_guarantees(client_settings(PRODUCER_SETTINGS, "a:1", {"acks": 0})) == (0, False)


def test_none_is_the_default() -> None:
    settings = client_settings(CONSUMER_SETTINGS, "a:1", {"client_rack": None, "group.id": None})
    assert (settings[CLIENT_RACK], settings[GROUP_ID]) == ("", "")
    assert settings.is_default(GROUP_ID)


@pytest.mark.parametrize("servers", ["", [], " , ", None])
def test_no_address_is_an_error(servers: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"bootstrap\.servers"):
        client_settings(CONSUMER_SETTINGS, servers, {})


def test_addresses() -> None:
    assert parse_address("host:9092") == ("host", 9092)
    assert parse_address("PLAINTEXT://host:9092") == ("host", 9092)
    assert parse_address("[::1]:9092") == ("::1", 9092)
    for wrong in ("host", "host:", ":9092", "host:0", "host:70000", "host:port"):
        with pytest.raises(InvalidConfig, match="host:port"):
            parse_address(wrong)
