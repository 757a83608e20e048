"""Carries the controller's messages to one broker: in order, one at a time, and without holding up the others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from raylog.broker.controller_calls import Item, SeemsDead
from raylog.broker.events import EventLog
from raylog.coordination import controller_events as core
from raylog.coordination.peer_control import Ack, BrokerDied, PeerControl, UpdateState
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import BrokerId

__all__ = ["Sender"]

logger = EventLog(__name__)


class Sender:
    """Delivers the controller's messages to one broker, in order, on a thread of its own."""

    def __init__(self, broker_id: BrokerId, peer_control: PeerControl, answer: Callable[[Item], None]) -> None:
        self._broker_id = broker_id
        self._peer_control = peer_control
        self._answer = answer
        self._queue: queue.SimpleQueue[UpdateState | None] = queue.SimpleQueue()
        self._stopped = False
        threading.Thread(target=self._run, name=f"control-to-{broker_id}", daemon=True).start()

    def put(self, message: UpdateState) -> None:
        self._queue.put(message)

    def stop(self) -> None:
        """Send nothing more; a message that is under way is not waited for."""
        self._stopped = True
        self._queue.put(None)

    def _run(self) -> None:
        while (message := self._queue.get()) is not None and not self._stopped:
            try:
                event: core.Event = core.Acked(Ack.decode(self._peer_control.send(self._broker_id, message.encode())))
            except Exception as error:
                if isinstance(error, BrokerDied):
                    self._answer(SeemsDead(self._broker_id, message.broker_epoch))
                elif not isinstance(error, RaylogError):
                    logger.exception("control message met a defect", receiver=self._broker_id)
                logger.info("control message not answered", receiver=self._broker_id, reason=error)
                event = core.SendFailed(self._broker_id, message.sequence)
            if not self._stopped:
                self._answer(event)
