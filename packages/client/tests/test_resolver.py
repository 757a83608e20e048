"""Looking host names up."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from raylog.client.network.connection import Address
from raylog.client.network.resolver import Candidate, Resolver
from raylog.protocol.errors import NetworkException

ADDRESS = Address("broker.example", 9092)
FOUND = [Candidate(socket.AF_INET, ("192.0.2.1", 9092))]


def refusing(why: str) -> Resolver:
    """One that can start no threads."""

    def start(name: str, task: Callable[[], object]) -> None:
        raise RuntimeError(why)

    return Resolver(socket.AF_UNSPEC, lambda: None, lambda host, port, family, flags: FOUND, start)


def test_names_are_looked_up_in_place_when_the_process_ends() -> None:
    resolver = refusing("can't create new thread at interpreter shutdown")
    assert resolver.candidates(ADDRESS, 0) is None
    assert resolver.candidates(ADDRESS, 0) == FOUND


def test_a_look_up_without_threads_fails_and_says_why() -> None:
    resolver = refusing("can't start new thread")
    assert resolver.candidates(ADDRESS, 0) is None
    with pytest.raises(NetworkException, match="could not be looked up: can't start new thread"):
        resolver.candidates(ADDRESS, 0)
