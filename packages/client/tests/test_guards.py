"""What keeps a client's users apart, and what an interrupt leaves of it."""

from __future__ import annotations

import threading

import pytest

from kit.interrupts import struck
from kit.machine import scaled
from raylog.client.groups.change_queue import ChangeQueue
from raylog.client.latch import Latch
from raylog.client.network.guards import OneUser
from raylog.protocol.errors import RaylogError

WAIT_S = 10.0
STRIKES = 50


def ends_in_another_thread(call: object) -> bool:
    thread = threading.Thread(target=call, daemon=True)  # type: ignore[arg-type]
    thread.start()
    thread.join(scaled(WAIT_S))
    return not thread.is_alive()


def test_client_in_use_is_refused_and_lent_is_free() -> None:
    user = OneUser("consumer")
    with user.alone():
        with pytest.raises(RaylogError, match="this consumer is in use by another"):
            user.alone()
        assert user.lent(lambda: user.is_in) is False
        assert user.is_in
    assert not user.is_in


def test_interrupt_at_any_time_leaves_no_client_in_use() -> None:
    user = OneUser("consumer")

    def use() -> None:
        with user.alone():
            user.lent(list)

    for _ in range(STRIKES):
        struck(use, 0.002)
        assert not user.is_in


def test_latch_wakes_all_who_wait_and_whoever_comes_later() -> None:
    known = Latch()
    waiting = [threading.Thread(target=known.wait) for _ in range(3)]
    for thread in waiting:
        thread.start()
    assert not known.wait(0)
    known.set()
    known.set()
    for thread in waiting:
        thread.join(scaled(WAIT_S))
        assert not thread.is_alive()
    assert known.wait()


def test_interrupt_of_a_wait_leaves_a_latch_that_can_be_set() -> None:
    for _ in range(STRIKES):
        known = Latch()
        struck(lambda: known.wait(0), 0.002)  # noqa: B023
        assert ends_in_another_thread(known.set)
        assert known.is_set


def test_interrupt_of_a_member_user_leaves_a_queue_that_can_be_told() -> None:
    for _ in range(STRIKES):
        changes = ChangeQueue(list)
        struck(lambda: changes.untold(0), 0.002)  # noqa: B023
        assert ends_in_another_thread(lambda: changes.wait(0))  # noqa: B023
