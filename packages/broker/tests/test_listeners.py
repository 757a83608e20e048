from __future__ import annotations

import pytest

from raylog.broker.config import BROKER_SETTINGS
from raylog.broker.listeners import endpoints, format_listener, parse_listeners
from raylog.broker.net.server import Listener
from raylog.coordination.model import Endpoint
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


def test_advertised_listeners_are_told_with_the_port_that_was_bound() -> None:
    settings = BROKER_SETTINGS.settings({"advertised.listeners": "PLAINTEXT://public.example:0"})
    assert endpoints(settings, BOUND, "10.0.0.1") == (Endpoint("PLAINTEXT", "public.example", 9092),)


def test_an_advertised_listener_must_exist() -> None:
    settings = BROKER_SETTINGS.settings({"advertised.listeners": "OUTSIDE://public.example:1"})
    with pytest.raises(InvalidConfig, match="OUTSIDE"):
        endpoints(settings, BOUND, "10.0.0.1")
