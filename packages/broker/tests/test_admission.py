"""Who is let in: limits of connections, of those from one address, of descriptors."""

from __future__ import annotations

import resource

import pytest

from raylog.broker.config import BROKER_SETTINGS
from raylog.broker.net.admission import Admission, Refusals


def admission(**config: int) -> Admission:
    settings = BROKER_SETTINGS.settings({name.replace("_", "."): str(value) for name, value in config.items()})
    return Admission(lambda: settings)


def test_no_more_than_max_connections() -> None:
    door = admission(max_connections=2)
    assert (door.enter("a", 5), door.enter("b", 6)) == ("", "")
    assert door.enter("c", 7) == "max.connections=2 are open"
    door.leave("a")
    assert door.enter("c", 7) == ""


def test_no_more_than_max_connections_per_ip() -> None:
    door = admission(max_connections_per_ip=1)
    assert (door.enter("a", 5), door.enter("b", 6)) == ("", "")
    assert door.enter("a", 7) == "max.connections.per.ip=1 are open from there"
    door.leave("b")
    assert door.enter("a", 7), "another address's end frees nothing"
    door.leave("a")
    assert door.enter("a", 7) == ""


def test_limits_may_change_at_any_time() -> None:
    settings = [BROKER_SETTINGS.settings({})]
    door = Admission(lambda: settings[-1])
    assert door.enter("a", 5) == ""
    settings.append(BROKER_SETTINGS.settings({"max.connections": "1"}))
    assert door.enter("a", 6)
    settings.append(BROKER_SETTINGS.settings({}))
    assert door.enter("a", 6) == ""


def test_descriptors_are_kept_for_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    door = admission()
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    try:
        assert door.enter("a", 299) == ""
        assert "raise the limit" in door.enter("a", 300)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_storm_is_one_line_a_second() -> None:
    refusals = Refusals()
    told = [refusals.count("full", now / 1000) for now in range(0, 3000)]
    assert [count for count in told if count] == [1, 1000, 1000]
    assert refusals.count("other", 0.0) == 1


@pytest.mark.parametrize("leaving", ["a", "b"])
def test_leaving_frees_one_place_each(leaving: str) -> None:
    door = admission(max_connections=3)
    for ip in ("a", "b", "a"):
        door.enter(ip, 5)
    door.leave(leaving)
    assert door.enter("c", 5) == ""
    assert door.enter("c", 5)
