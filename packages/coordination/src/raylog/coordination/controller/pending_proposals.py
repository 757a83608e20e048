"""What brokers proposed and has no answer yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raylog.coordination.control.proposals import (
    Drain,
    DrainAnswer,
    IsrAnswer,
    Outcome,
    Proposal,
    ProposalAnswer,
    ProposeIsr,
    Verdict,
)
from raylog.coordination.controller.events import Answer, Proposed
from raylog.coordination.controller.peers import Peers
from raylog.protocol.ids import ControllerEpoch, MonotonicMs

PATIENCE_MS = 2_000
"""How long a drained broker's answer waits until the others lead: then one of them hangs, and it may as well go."""


@dataclass(slots=True)
class _Decided:
    """An answer that waits until every live broker has ``revision`` and ``is_done``, but no longer than until
    ``deadline_ms``.
    """

    token: object
    answer: ProposalAnswer
    revision: int
    is_done: Callable[[], bool]
    deadline_ms: MonotonicMs

    def is_due(self, peers: Peers, now_ms: MonotonicMs) -> bool:
        return (peers.all_have(self.revision) and self.is_done()) or self.deadline_ms <= now_ms


class Proposals:
    """Those that wait: for their job, or for the brokers to take in what it led to."""

    def __init__(self) -> None:
        self._open: dict[object, Proposal] = {}
        self._decided: list[_Decided] = []
        self._now_ms = MonotonicMs(0)

    def __len__(self) -> int:
        return len(self._open) + len(self._decided)

    def add(self, event: Proposed) -> None:
        self._open[event.token] = event.proposal

    def decided(
        self, token: object, answer: ProposalAnswer, revision: int = -1, is_done: Callable[[], bool] = lambda: True
    ) -> None:
        """To be answered so, once every live broker has ``revision`` (-1: at once) and ``is_done`` says so."""
        if self._open.pop(token, None) is not None:
            deadline_ms = MonotonicMs(self._now_ms + PATIENCE_MS)
            self._decided.append(_Decided(token, answer, revision, is_done, deadline_ms))

    def failed(self, token: object, verdict: Verdict, epoch: ControllerEpoch) -> None:
        """Nothing is known to have been done about it."""
        proposal = self._open.get(token)
        if proposal is not None:
            self.decided(token, refusal(proposal, verdict, epoch))

    def tick(self, now_ms: MonotonicMs) -> None:
        self._now_ms = now_ms

    def answer_decided(self, peers: Peers) -> list[Answer]:
        done = [d for d in self._decided if d.is_due(peers, self._now_ms)]
        self._decided = [d for d in self._decided if d not in done]
        return [Answer(d.token, d.answer) for d in done]

    def answer_all(self, epoch: ControllerEpoch) -> list[Answer]:
        """The mandate is over: what is decided is told, the rest is for the next controller."""
        decided, self._decided = self._decided, []
        waiting, self._open = self._open, {}
        return [
            *(Answer(d.token, d.answer) for d in decided),
            *(Answer(token, refusal(each, Verdict.NOT_CONTROLLER, epoch)) for token, each in waiting.items()),
        ]


def refusal(proposal: Proposal, verdict: Verdict, epoch: ControllerEpoch) -> ProposalAnswer:
    """The same verdict on all of it. ``epoch``: of who answers."""
    if isinstance(proposal, Drain):
        return DrainAnswer(verdict, epoch)
    things = proposal.changes if isinstance(proposal, ProposeIsr) else proposal.replicas
    return IsrAnswer(epoch, tuple(Outcome(each.tp, verdict) for each in things))
