"""Carries the controller's messages to one broker: in order, one at a time, and without holding up the others."""

from __future__ import annotations

import queue
from collections.abc import Callable

from raylog.broker.cluster.controller_calls import Item, SeemsDead
from raylog.broker.events import EventLog
from raylog.coordination.control.peer_control import Ack, BrokerDied, PeerControl, UpdateState
from raylog.coordination.controller import events as core
from raylog.coordination.host.loops import Loops
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import BrokerId

__all__ = ["Sender"]

logger = EventLog(__name__)

LAST_PAUSE_S = 1.0
"""The longest pause after messages that met a defect."""


class Sender:
    """Delivers the controller's messages to one broker, in order, on a thread of its own."""

    def __init__(
        self, broker_id: BrokerId, peer_control: PeerControl, answer: Callable[[Item], None], loops: Loops
    ) -> None:
        self._broker_id = broker_id
        self._peer_control = peer_control
        self._answer = answer
        self._queue: queue.SimpleQueue[UpdateState | None] = queue.SimpleQueue()
        self._at_hand: UpdateState | None = None
        self._loop = loops.loop(f"control-to-{broker_id}", self._turn, mend=self._not_sent, last_pause_s=LAST_PAUSE_S)
        self._loop.start()

    def put(self, message: UpdateState) -> None:
        self._queue.put(message)

    def stop(self) -> None:
        """Send nothing more; a message that is under way is not waited for."""
        self._loop.stop()
        self._queue.put(None)

    def _turn(self) -> bool:
        self._at_hand = message = self._queue.get()
        if message is None or self._loop.stopping.is_set():
            return False
        try:
            event: core.Event = core.Acked(Ack.decode(self._peer_control.send(self._broker_id, message.encode())))
        except RaylogError as error:
            if isinstance(error, BrokerDied):
                self._answer(SeemsDead(self._broker_id, message.broker_epoch))
            logger.info("control message not answered", receiver=self._broker_id, reason=error)
            event = core.SendFailed(self._broker_id, message.sequence)
        if not self._loop.stopping.is_set():
            self._answer(event)
        return True

    def _not_sent(self, error: Exception) -> None:
        """The controller sends it again, as one that was not answered."""
        message, self._at_hand = self._at_hand, None
        if message is not None and not self._loop.stopping.is_set():
            self._answer(core.SendFailed(self._broker_id, message.sequence))
