"""What a slow user of a member hears, and what of what he says counts."""

from __future__ import annotations

import threading

from kit.machine import scaled
from raylog.client.groups.change_queue import ChangeQueue
from raylog.client.groups.changes import Assigned, Lost, Revoked
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition

TP = TopicPartition(TopicName("t"), PartitionIndex(0))
OTHER = TP._replace(partition=PartitionIndex(1))


def queue() -> ChangeQueue:
    return ChangeQueue(lambda: None)


def test_changes_are_told_once_and_in_order() -> None:
    changes = queue()
    told = [Assigned(TP, None), Assigned(OTHER, None), Revoked(TP)]
    for change in told:
        changes.tell(change, 1)
    assert changes.take() == told
    assert changes.take() == []


def test_what_is_lost_before_he_heard_of_it_is_not_told() -> None:
    changes = queue()
    changes.tell(Assigned(TP, None), 1)
    changes.tell(Revoked(TP), 1)
    changes.tell(Assigned(OTHER, None), 1)
    changes.tell(Lost(TP), 1)
    assert changes.take() == [Assigned(OTHER, None)]


def test_what_he_has_and_lost_twice_is_told_once() -> None:
    changes = queue()
    changes.tell(Assigned(TP, None), 1)
    changes.take()
    for change in (Lost(TP), Assigned(TP, None), Lost(TP)):
        changes.tell(change, 2)
    assert changes.take() == [Lost(TP)]
    changes.tell(Lost(TP), 1)
    assert changes.take() == []


def test_he_is_done_with_what_was_revoked_once() -> None:
    changes = queue()
    changes.tell(Assigned(TP, None), 7)
    assert changes.quiet(TP) is None
    changes.tell(Revoked(TP), 7)
    assert changes.quiet(TP) is None, "he has not heard of it"
    changes.take()
    assert changes.tenures([TP, OTHER]) == {TP: 7}
    assert changes.quiet(TP) == 7
    assert changes.quiet(TP) is None
    assert changes.tenures([TP]) == {}


def test_what_he_says_of_a_partition_that_he_lost_does_not_count_when_it_is_his_again() -> None:
    changes = queue()
    changes.tell(Assigned(TP, None), 1)
    changes.tell(Revoked(TP), 1)
    changes.take()
    changes.tell(Lost(TP), 1)
    changes.tell(Assigned(TP, None), 2)
    changes.tell(Revoked(TP), 2)
    assert changes.tenures([TP]) == {TP: 1}, "he has not heard of it"
    assert changes.quiet(TP) is None
    assert changes.take() == [Lost(TP), Assigned(TP, None), Revoked(TP)]
    assert changes.tenures([TP]) == {TP: 2}
    assert changes.quiet(TP) == 2


def test_who_waits_is_woken_and_so_is_his_selector() -> None:
    woken = threading.Event()
    changes = ChangeQueue(woken.set)
    assert not changes.wait(0)
    teller = threading.Thread(target=changes.tell, args=(Assigned(TP, None), 1))
    teller.start()
    assert changes.wait(scaled(10))
    teller.join()
    assert woken.is_set()
    assert changes.wait(0), "until it is taken"
    changes.take()
    assert not changes.wait(0)
