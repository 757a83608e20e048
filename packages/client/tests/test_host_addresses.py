"""Addresses of hosts are a preference: nothing waits for them for long."""

from __future__ import annotations

import socket
from threading import Event

from kit.machine import scaled
from kit.waiting import wait_until
from raylog.client.ranges.host_addresses import HostAddresses


def test_names_of_hosts_come_with_their_addresses() -> None:
    asked: list[str] = []

    def look_up(host: str) -> str:
        asked.append(host)
        return {"a": "10.0.0.1"}[host] if host == "a" else socket.gethostbyname(host)

    addresses = HostAddresses(look_up, wait_s=60.0)
    expected = {"a": ("a", "10.0.0.1"), "127.0.0.2": ("127.0.0.2",), "::1": ("::1",), "x..y": ("x..y",)}
    for _ in range(2):
        assert addresses.names(["a", "a", "127.0.0.2", "::1", "x..y"]) == expected
    assert sorted(asked) == ["a", "x..y", "x..y"]


def test_silent_name_server_holds_nobody_up() -> None:
    answer, asked = Event(), []

    def look_up(host: str) -> str:
        asked.append(host)
        answer.wait(scaled(60.0))
        return "10.0.0.1"

    addresses = HostAddresses(look_up, wait_s=0.05)
    try:
        for _ in range(3):
            assert addresses.names(["a"]) == {"a": ("a",)}
        assert asked == ["a"]
    finally:
        answer.set()
    wait_until(lambda: addresses.names(["a"]) == {"a": ("a", "10.0.0.1")}, 10.0, "the late answer counts")
