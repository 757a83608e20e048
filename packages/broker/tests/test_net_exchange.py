"""The order of one connection's requests and replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import pytest

from raylog.broker.handlers.awaited import Wake
from raylog.broker.handlers.context import DelayedReply
from raylog.broker.net.exchange import MAX_DELAYED_REPLIES, PRODUCE, Exchange
from raylog.broker.storage.disk.slices import FileSlice
from raylog.protocol.errors import InvalidRequest

FETCH = 1


class Later(DelayedReply):
    """A reply that a test makes ready."""

    def __init__(self, reply: bytes, deadline_s: float = inf) -> None:
        self.reply = reply
        self.is_ready = False
        self.was_abandoned = False
        self._deadline_s = deadline_s
        self._wake: Wake | None = None

    @property
    def deadline_s(self) -> float:
        return self._deadline_s

    def is_over(self) -> bool:
        return self.is_ready

    def notify(self, wake: Wake) -> None:
        self._wake = wake

    def come(self) -> None:
        self.is_ready = True
        assert self._wake is not None
        self._wake()

    def finish(self) -> bytes:
        assert self.is_ready
        return self.reply

    def abandon(self) -> None:
        self.was_abandoned = True


@dataclass
class Client:
    """Sends frames into an exchange and sees what comes out."""

    sent: list[bytes | FileSlice] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    wakes: int = 0

    def __post_init__(self) -> None:
        self.exchange = Exchange(
            1000, send=self._put, answered=lambda api, _: self.answered.append(api), wake=self._wake
        )

    def _put(self, parts: Sequence[bytes | FileSlice]) -> None:
        self.sent.extend(parts)

    def _wake(self) -> None:
        self.wakes += 1

    def sends(self, *apis: int) -> None:
        for api in apis:
            frame = api.to_bytes(2, "big") + b"request"
            data = len(frame).to_bytes(4, "big") + frame
            self.exchange.frames.writable()[: len(data)] = data
            self.exchange.frames.advance(len(data))

    def taken(self) -> int | None:
        """The API of the request whose turn it is."""
        request = self.exchange.next_request()
        return None if request is None else request.api_key

    @property
    def replies(self) -> list[bytes]:
        return [part[4:] for part in self.sent if isinstance(part, bytes)]


@pytest.fixture
def client() -> Client:
    return Client()


def test_a_request_is_answered_with_its_length_before_it(client: Client) -> None:
    client.sends(PRODUCE)
    assert client.taken() == PRODUCE
    client.exchange.took(b"reply", PRODUCE, 0)
    assert client.sent == [b"\0\0\0\5reply"]
    assert client.answered == [PRODUCE]
    assert client.taken() is None


def test_a_request_without_a_reply_is_counted(client: Client) -> None:
    client.sends(PRODUCE)
    client.taken()
    client.exchange.took(None, PRODUCE, 0)
    assert (client.sent, client.answered) == ([], [PRODUCE])


def test_produces_behind_a_delayed_one_are_taken_and_answered_in_order(client: Client) -> None:
    client.sends(PRODUCE, PRODUCE, PRODUCE)
    first, third = Later(b"first"), Later(b"third")
    for reply in (first, b"second", third):
        assert client.taken() == PRODUCE
        client.exchange.took(reply, PRODUCE, 0)
    third.come()
    client.exchange.settle()
    assert client.replies == []
    first.come()
    client.exchange.settle()
    assert client.replies == [b"first", b"second", b"third"]
    assert client.wakes == 2
    assert not client.exchange.is_waiting


def test_any_other_request_waits_for_those_before_it(client: Client) -> None:
    client.sends(PRODUCE, FETCH, PRODUCE)
    client.taken()
    delayed = Later(b"delayed")
    client.exchange.took(delayed, PRODUCE, 0)
    assert client.taken() is None
    assert client.exchange.is_held
    delayed.come()
    client.exchange.settle()
    assert client.taken() == FETCH
    assert not client.exchange.is_held


def test_only_so_many_produces_are_taken_while_the_first_waits(client: Client) -> None:
    client.sends(PRODUCE)
    client.taken()
    client.exchange.took(Later(b"first"), PRODUCE, 0)
    for _ in range(MAX_DELAYED_REPLIES - 1):
        client.sends(PRODUCE)
        assert client.taken() == PRODUCE
        client.exchange.took(b"later", PRODUCE, 0)
    client.sends(PRODUCE)
    assert client.taken() is None
    assert client.exchange.is_held


def test_a_request_that_is_held_comes_again(client: Client) -> None:
    client.sends(FETCH, PRODUCE)
    request = client.exchange.next_request()
    assert request is not None
    client.exchange.hold(request)
    assert (client.taken(), client.taken()) == (FETCH, PRODUCE)


def test_the_first_delayed_reply_says_when_it_is_over(client: Client) -> None:
    client.sends(PRODUCE, PRODUCE)
    for deadline_s in (7.0, 3.0):
        client.taken()
        client.exchange.took(Later(b"", deadline_s), PRODUCE, 0)
    assert client.exchange.deadline_s == 7.0


def test_what_nobody_waits_for_is_abandoned(client: Client) -> None:
    client.sends(PRODUCE, PRODUCE)
    replies = [Later(b""), Later(b"")]
    for reply in replies:
        client.taken()
        client.exchange.took(reply, PRODUCE, 0)
    client.exchange.abandon()
    assert all(reply.was_abandoned for reply in replies)
    assert not client.exchange.is_waiting


def test_a_frame_without_sense_is_refused(client: Client) -> None:
    client.exchange.frames.writable()[:4] = (2000).to_bytes(4, "big")
    client.exchange.frames.advance(4)
    with pytest.raises(InvalidRequest, match="claims 2000 bytes"):
        client.taken()
