"""A broker that is about to stop, and the controllers that it asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kit.node import BROKER, Node
from raylog.broker.cluster.draining import Draining
from raylog.coordination.control.proposals import Drain, DrainAnswer, Verdict, decode_proposal
from raylog.protocol.errors import BrokerNotAvailable, RequestTimedOut
from raylog.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, PartitionIndex, TopicName, TopicPartition

TP = TopicPartition(TopicName("t"), PartitionIndex(0))
DONE = DrainAnswer(Verdict.OK, ControllerEpoch(1))


class Controller:
    """PeerControl that gives the answers in order, the last one again and again."""

    def __init__(self, *answers: DrainAnswer | None) -> None:
        self.answers = list(answers)
        self.asked: list[Drain] = []

    def send(self, broker_id: BrokerId, payload: bytes) -> bytes:
        raise AssertionError("nothing goes down")

    def propose(self, controller_id: BrokerId, payload: bytes) -> bytes:
        proposal = decode_proposal(payload)
        assert isinstance(proposal, Drain)
        self.asked.append(proposal)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise BrokerNotAvailable("nobody there")
        return answer.encode()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path) as node:
        yield node


def draining(node: Node, controller: Controller, epoch: Callable[[], int] = lambda: 1) -> Draining:
    return Draining(node.table, controller, lambda: BrokerEpoch(epoch()))


def test_what_nobody_else_can_lead_is_answered(node: Node) -> None:
    controller = Controller(replace(DONE, remaining=(TP,)))
    assert draining(node, controller).drain(1.0) == (TP,)
    assert controller.asked == [Drain(BROKER, BrokerEpoch(1), ControllerEpoch(1))]


def test_it_asks_until_a_controller_answers(node: Node) -> None:
    busy, elsewhere = replace(DONE, verdict=Verdict.UNAVAILABLE), replace(DONE, verdict=Verdict.NOT_CONTROLLER)
    controller = Controller(None, busy, elsewhere, DONE)
    assert draining(node, controller).drain(10.0) == ()
    assert len(controller.asked) == 4


@pytest.mark.parametrize(
    ("answer", "error"),
    [(None, BrokerNotAvailable), (replace(DONE, verdict=Verdict.UNAVAILABLE), RequestTimedOut)],
)
def test_it_gives_up_in_time(node: Node, answer: DrainAnswer | None, error: type[Exception]) -> None:
    with pytest.raises(error):
        draining(node, Controller(answer)).drain(0.0)


def test_a_new_controller_and_a_new_incarnation_are_told(node: Node) -> None:
    controller, epoch = Controller(DONE), [1]
    it = draining(node, controller, lambda: epoch[0])
    it.keep()
    assert controller.asked == [], "it is not drained"
    it.drain(1.0)
    it.keep()
    assert len(controller.asked) == 1, "the controller knows"
    epoch[0] = 2
    it.keep()
    it.keep()
    assert [asked.broker_epoch for asked in controller.asked] == [1, 2]


def test_a_controller_that_cannot_be_told_is_asked_the_next_time(node: Node) -> None:
    controller, epoch = Controller(DONE, None, DONE), [1]
    it = draining(node, controller, lambda: epoch[0])
    it.drain(1.0)
    epoch[0] = 2
    it.keep()
    it.keep()
    it.keep()
    assert len(controller.asked) == 3


def test_who_stays_after_all_says_so_once(node: Node) -> None:
    controller = Controller(DONE)
    it = draining(node, controller)
    it.drain(1.0)
    it.cancel(1.0)
    it.keep()
    assert [asked.cancel for asked in controller.asked] == [False, True]
