"""Controlled shutdown: before a broker stops, others lead what it leads, and no ISR counts on it.

The broker asks the controller, which lets others lead at once and answers when they do, or says what nobody else can
lead. A new controller has not heard of it, so it is asked again as long as the broker is drained.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from raylog.broker.events import EventLog
from raylog.broker.partition.table import PartitionTable
from raylog.coordination.control.peer_control import PeerControl
from raylog.coordination.control.proposals import Drain, DrainAnswer, Verdict
from raylog.coordination.metadata.model import NO_CONTROLLER_EPOCH
from raylog.protocol.errors import BrokerNotAvailable, RaylogError, RequestTimedOut
from raylog.protocol.ids import BrokerEpoch, ControllerEpoch, TopicPartition

__all__ = ["Draining"]

logger = EventLog(__name__)

RETRY_S = 0.1


class Draining:
    """Of one broker. Any thread may call."""

    def __init__(self, table: PartitionTable, peer_control: PeerControl, epoch: Callable[[], BrokerEpoch]) -> None:
        """``epoch``: this broker's incarnation."""
        self._table = table
        self._peer_control = peer_control
        self._epoch = epoch
        self._lock = threading.Lock()
        self._is_drained = False
        self._told: tuple[ControllerEpoch, BrokerEpoch] = (NO_CONTROLLER_EPOCH, BrokerEpoch(-1))
        self._paused = threading.Event()  # never set: a wait on it is a pause

    def drain(self, timeout_s: float) -> tuple[TopicPartition, ...]:
        """Let others lead; what nobody else can lead, perhaps only for now, is answered.

        Raises BrokerNotAvailable or RequestTimedOut when no controller answered within ``timeout_s``.
        """
        with self._lock:
            self._is_drained = True
            remaining = self._ask(timeout_s, cancel=False).remaining
        logger.info("broker is drained", remaining=len(remaining))
        return remaining

    def cancel(self, timeout_s: float) -> None:
        """The broker stays after all. Raises as :meth:`drain`."""
        with self._lock:
            self._is_drained = False
            self._ask(timeout_s, cancel=True)
        logger.info("broker is drained no longer")

    def keep(self) -> None:
        """Once in a while: tell a controller that is new since. Does not wait for one, and does not raise."""
        state = self._table.state()
        with self._lock:
            if not self._is_drained or self._told == (state.controller_epoch, self._epoch()):
                return
            try:
                self._ask(0, cancel=False)
            except RaylogError as error:
                logger.info("the controller does not know yet that this broker is drained", reason=error)

    def _ask(self, timeout_s: float, *, cancel: bool) -> DrainAnswer:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self._ask_once(cancel=cancel)
            except RaylogError:
                if time.monotonic() + RETRY_S > deadline:
                    raise
            self._paused.wait(RETRY_S)

    def _ask_once(self, *, cancel: bool) -> DrainAnswer:
        state, epoch = self._table.state(), self._epoch()
        message = Drain(self._table.broker_id, epoch, state.controller_epoch, cancel)
        answer = DrainAnswer.decode(self._peer_control.propose(state.controller_id, message.encode()))
        match answer.verdict:
            case Verdict.OK:
                self._told = (state.controller_epoch, epoch)
                return answer
            case Verdict.UNAVAILABLE:
                raise RequestTimedOut("the metadata store did not confirm that others lead")
            case _:
                raise BrokerNotAvailable(f"the controller does not drain it now: {answer.reason or 'ask again'}")
