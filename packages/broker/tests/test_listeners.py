from __future__ import annotations

import pytest

from raylog.broker.config import BROKER_SETTINGS
from raylog.broker.launch.up_request import broker_settings
from raylog.broker.net.listeners import check_listeners, endpoints, format_listener, parse_listeners
from raylog.broker.net.server import Listener
from raylog.coordination.metadata.model import Endpoint
from raylog.protocol.errors import InvalidConfig

BOUND = [Listener("PLAINTEXT", "0.0.0.0", 9092), Listener("INSIDE", "10.0.0.1", 9093)]


@pytest.mark.parametrize(
    ("text", "listener"),
    [
        ("PLAINTEXT://127.0.0.1:9092", Listener("PLAINTEXT", "127.0.0.1", 9092)),
        ("inside://broker.example:0", Listener("INSIDE", "broker.example", 0)),
        ("PLAINTEXT://:9092", Listener("PLAINTEXT", "", 9092)),
        ("PLAINTEXT://[::1]:9092", Listener("PLAINTEXT", "::1", 9092)),
    ],
)
def test_a_listener_is_read(text: str, listener: Listener) -> None:
    assert parse_listeners([text]) == [listener]
    assert parse_listeners([format_listener(listener)]) == [listener]


@pytest.mark.parametrize("text", ["127.0.0.1:9092", "PLAINTEXT://127.0.0.1", "PLAINTEXT://h:70000", "A B://h:1"])
def test_what_is_no_listener_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="must be NAME://host:port"):
        parse_listeners([text])


def test_a_name_stands_for_one_listener() -> None:
    with pytest.raises(InvalidConfig, match="each name once"):
        parse_listeners(["A://h:1", "A://h:2"])


def test_a_wildcard_is_advertised_as_the_nodes_address() -> None:
    assert endpoints(BROKER_SETTINGS.settings(), BOUND, "10.0.0.1") == (
        Endpoint("PLAINTEXT", "10.0.0.1", 9092),
        Endpoint("INSIDE", "10.0.0.1", 9093),
    )


@pytest.mark.parametrize(
    ("advertised", "told"),
    [
        ("PLAINTEXT://public.example:29092", Endpoint("PLAINTEXT", "public.example", 29092)),
        ("PLAINTEXT://public.example:0", Endpoint("PLAINTEXT", "public.example", 9092)),
        ("PLAINTEXT://:29092", Endpoint("PLAINTEXT", "10.0.0.1", 29092)),
    ],
)
def test_an_advertised_listener_is_told_and_the_others_are_where_they_listen(advertised: str, told: Endpoint) -> None:
    settings = BROKER_SETTINGS.settings({"advertised.listeners": advertised})
    assert endpoints(settings, BOUND, "10.0.0.1") == (told, Endpoint("INSIDE", "10.0.0.1", 9093))


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"advertised.listeners": "OUTSIDE://public.example:1"}, "OUTSIDE, which is not among the listeners"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "nobody can connect to 0.0.0.0"),
        ({"advertised.listeners": "PLAINTEXT://[::]:9092"}, "nobody can connect to ::"),
        ({"listeners": "SASL_SSL://127.0.0.1:9092"}, "SASL_SSL is not available"),
    ],
)
def test_listeners_that_cannot_work_are_refused_before_anything_starts(config: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        check_listeners(BROKER_SETTINGS.settings(config))


def test_each_broker_of_a_cluster_has_ports_of_its_own() -> None:
    common = {"listeners": "A://:9092,B://127.0.0.1:0", "advertised.listeners": "A://public.example:19092"}
    settings = broker_settings(common, 2, "rack", "10.0.0.1")
    assert settings["listeners"] == "A://:9094,B://127.0.0.1:0"
    assert settings["advertised.listeners"] == "A://public.example:19094"


@pytest.mark.parametrize(("host", "listener"), [("10.0.0.1", "10.0.0.1"), ("::1", "[::1]")])
def test_by_default_a_broker_listens_at_its_nodes_address(host: str, listener: str) -> None:
    settings = broker_settings({}, 1, "rack", host)
    assert settings == {"broker.rack": "rack", "listeners": f"PLAINTEXT://{listener}:0"}
