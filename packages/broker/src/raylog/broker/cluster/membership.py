"""A broker's membership: its registration, the session behind it, and the lease that ends before it.

One thread renews the lease and registers again after a lost session. The lease is checked by handlers
(D9c): a broker that was cut off stops serving before its session can lapse, by its own clock.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Protocol

from raylog.broker.events import EventLog
from raylog.coordination.host.clocks import monotonic_ms
from raylog.coordination.host.loops import Loops
from raylog.coordination.membership.lease import Lease
from raylog.coordination.membership.registration import BrokerRegistration
from raylog.coordination.metadata.model import BrokerInfo
from raylog.coordination.metadata.paths import encode_topic_id
from raylog.coordination.store.port import (
    MetadataStore,
    SessionEvent,
    SessionState,
    StoreError,
    StoreEvent,
    StoreUnavailable,
)
from raylog.protocol.errors import BrokerNotAvailable, NotLeaderOrFollower, RaylogError
from raylog.protocol.ids import BrokerEpoch, MonotonicMs
from raylog.protocol.texts import told

__all__ = ["Membership"]

logger = EventLog(__name__)

RENEWALS_PER_SESSION = 10
RETRY_S = 0.2


class Registered(Protocol):
    """What follows from a registration (PartitionTable)."""

    def register_with(self, register: Callable[[], BrokerEpoch]) -> None:
        """Run ``register``, and count only the controller's word to the incarnation that it answers."""

    @property
    def is_synced(self) -> bool:
        """Whether the controller has told this incarnation what it leads."""


class Membership:
    """Keeps one broker registered. Also the handlers' Lease port."""

    def __init__(
        self,
        store: MetadataStore,
        registration: BrokerRegistration,
        partitions: Registered,
        loops: Loops,
        *,
        lease: Lease,
        now_ms: Callable[[], MonotonicMs] = monotonic_ms,
    ) -> None:
        """``lease``: not held yet; ``now_ms``: the clock that it runs by, and the store's."""
        self._store = store
        self._registration = registration
        self._partitions = partitions
        self._broker: BrokerInfo | None = None
        self.trouble = ""
        """What keeps it from renewing its lease at the moment; empty when nothing does."""
        self.missing_directories: list[str] = []
        """Ids of log directories that the run before this process's had and that are gone."""
        self._lease = lease
        self._now_ms = now_ms
        self._is_leaving = False
        self._watch_again = False
        """News were taken in, and no round has set a watch for more since."""
        self._events: queue.SimpleQueue[StoreEvent | None] = loops.inbox()
        self._loops = loops
        self._loop = loops.loop("membership", self._turn, mend=self._failed, last_pause_s=RETRY_S)

    @property
    def broker(self) -> BrokerInfo:
        """This broker as registered last."""
        if self._broker is None:
            raise BrokerNotAvailable("the broker is not registered yet")
        return self._broker

    @property
    def epoch(self) -> BrokerEpoch:
        """The incarnation of the last registration; -1 before any."""
        return self._broker.epoch if self._broker is not None else BrokerEpoch(-1)

    def check(self) -> None:
        """Raises NotLeaderOrFollower when a newer owner may be at work: the lease has lapsed, or it was taken anew
        and the controller has not said yet what this incarnation leads; or when a thread has ended without which
        this broker cannot do what it promises.
        """
        if self._loops.failure:
            raise NotLeaderOrFollower(f"this broker has failed: {self._loops.failure}")
        if not self._lease.held(self._now_ms()):
            raise NotLeaderOrFollower(
                "this broker has lost touch with the metadata store: it serves again once that is back"
            )
        if not self._partitions.is_synced:
            raise NotLeaderOrFollower(
                f"this broker registered anew, with epoch {self.epoch}: it serves again once the controller has told "
                "it what it leads"
            )

    @property
    def lease_held(self) -> bool:
        """True while :meth:`check` passes."""
        return self._lease.held(self._now_ms()) and self._partitions.is_synced and not self._loops.failure

    def start(self, broker: BrokerInfo) -> None:
        """Register ``broker`` (its epoch is not used), take the lease, and keep both.

        Raises DuplicateBroker, StoreUnavailable.
        """
        self._store.watch_session(self._events)
        self._register(broker)
        self._renew()
        self._loop.start()

    def leave(self) -> None:
        """The broker stops: do not register again, whatever becomes of the registration.

        Its listeners close next, which others take for its death.
        """
        self._is_leaving = True

    def stop(self) -> None:
        """Give up the lease and the registration; the logs are closed by now."""
        self._lease.revoke()
        if not self._loop.was_started:
            return
        self._loop.stop()
        self._events.put(None)
        self._loop.join()
        try:
            self._registration.deregister()
        except (StoreError, OSError) as error:
            logger.warning("broker could not sign off", broker_epoch=self.epoch, reason=error)

    # --- the thread

    def _turn(self) -> bool:
        """Take one event in, or none for a while; False when it is the last."""
        try:
            event = self._events.get(timeout=self._renewal_interval_s())
        except queue.Empty:
            self._keep()
            return True
        if event is None:
            return False
        if isinstance(event, SessionEvent):
            self._session_changed(event)
        else:
            self._keep(watch=True)
        return True

    def _failed(self, error: Exception) -> None:
        """Nothing is half done but the event that was at hand: the next round looks at everything anew."""
        self.trouble = told(error)
        self._watch_again = True

    def _session_changed(self, event: SessionEvent) -> None:
        if event.state is SessionState.LOST:
            self._lease.revoke()
            logger.warning("session lost, registering again", broker_epoch=self.epoch)
        elif event.state is SessionState.CONNECTED:
            self._keep(watch=True)  # the watch was lost

    def _keep(self, *, watch: bool = False) -> None:
        """Register again where the registration is an ended session's or was ended by the controller, which took us
        for dead; and renew the lease. ``watch``: hear of that at once from now on.
        """
        watch = self._watch_again = watch or self._watch_again
        try:
            if not self._is_registered(watch=watch):
                self._lease.revoke()
                if self._is_leaving:
                    return
                self._register(self.broker)
            self._renew()
        except StoreUnavailable as error:
            self.trouble = str(error)  # the lease runs out by itself; the next round tries again
        except RaylogError as error:
            if str(error) != self.trouble:  # else it was told before: rounds are short
                logger.error("broker cannot register, trying again", broker_epoch=self.epoch, reason=error)
            self.trouble = str(error)
        else:
            self.trouble = ""
            self._watch_again = False

    def _is_registered(self, *, watch: bool) -> bool:
        if not self._registration.is_current:
            return False
        stands = self._registration.stands(self._events if watch else None)
        if not stands and not self._is_leaving:
            logger.warning("the controller took this broker for dead, registering again", broker_epoch=self.epoch)
        return stands

    def _register(self, broker: BrokerInfo) -> None:
        def register() -> BrokerEpoch:
            self._broker = registered = self._registration.register(broker)
            return registered.epoch

        self._partitions.register_with(register)
        for directory in sorted(map(encode_topic_id, self._registration.missing_directories)):
            self.missing_directories.append(directory)
            logger.error(
                "log directory of the last run is missing", directory_id=directory,
                reason="it was emptied or replaced, or its disk has failed: what only it held is lost",
            )  # fmt: skip
        logger.info("broker registered", broker_epoch=self.epoch)
        self._registration.stands(self._events)  # for its watch; the next round finds out what it answers now

    def _renew(self) -> None:
        sent = self._store.heartbeat()
        if self._registration.is_current:  # else it was another session's heartbeat, and proves nothing
            self._lease.renew(sent, self._store.session_timeout_ms)

    def _renewal_interval_s(self) -> float:
        if not self._registration.is_current:
            return RETRY_S
        return self._store.session_timeout_ms / 1000 / RENEWALS_PER_SESSION
