"""One member of a group with a handler: reads as a consumer does, and calls the handler as the core decides.

All of it runs in one thread, :meth:`HandlerRunner.run`'s: polling, the handler, commits, and the calls that tell of
partitions that come and go. Other threads wish it to stop and read :attr:`HandlerRunner.status`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from threading import Event
from typing import Any

from raylog.client.consumer import Consumer
from raylog.client.groups.group_consumer import RebalanceListener
from raylog.client.handlers.batches import HandlerBatch
from raylog.client.handlers.config import Guarantee, HandlerOptions
from raylog.client.handlers.core import Bury, Commit, Counts, Decision, Handle, HandlerCore, Poll, Stop, Verdict
from raylog.client.handlers.dead_letters import DeadLetters
from raylog.client.handlers.user_handler import UserHandler, check_done
from raylog.coordination.host.clocks import monotonic_ms
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.coordination.store.port import StoreUnavailable
from raylog.protocol.errors import BrokerNotAvailable, CorruptMessage, RaylogError, is_retriable
from raylog.protocol.ids import NO_GENERATION, NO_MEMBER, Generation, MemberId, Offset, TopicPartition
from raylog.protocol.logs import Logger
from raylog.protocol.texts import told

log = Logger(__name__)

REOPEN_FIRST_S = 0.25
REOPEN_MOST_S = 10.0


class State(StrEnum):
    """Of a member."""

    STARTING = "starting"
    """Not in the group yet, or not any more and about to come again; ``trouble`` tells why."""
    RUNNING = "running"
    FAILED = "failed"
    """It has left the group for good; ``trouble`` tells why."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """What one member is doing."""

    state: State = State.STARTING
    trouble: str = ""
    member_id: MemberId = NO_MEMBER
    generation: Generation = NO_GENERATION
    owned: frozenset[TopicPartition] = frozenset()
    positions: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    """Of the owned partitions, one past the last record that was handled; without those where nothing was yet."""
    counts: Counts = field(default_factory=Counts)
    last_error: str = ""
    """What the handler raised last."""
    handling: TopicPartition | None = None
    handling_since: float = 0.0
    """Monotonic, seconds: when the handler was called that has not returned yet."""

    def of_ended(self) -> MemberStatus:
        """What holds once the member's thread has ended, even where it could not say so any more."""
        if self.state in (State.FAILED, State.STOPPED):
            return self
        trouble = self.trouble or "its thread has ended; see the log of its process"
        return replace(self, state=State.FAILED, trouble=trouble, owned=frozenset(), positions={}, handling=None)


class HandlerRunner:
    """Runs one member until it is told to stop, or must.

    ``open_consumer`` joins the group; ``poll`` reads from what it answers, waiting so many ms at most. After a passing
    error the member leaves and comes again, a little later. ``handler`` is what the user gave.
    """

    def __init__(
        self,
        *,
        options: HandlerOptions,
        handler: Any,
        open_consumer: Callable[[RebalanceListener], Consumer],
        poll: Callable[[Consumer, int], list[HandlerBatch]],
        dead_letters: DeadLetters | None,
    ) -> None:
        self.status = MemberStatus()
        """As it was when the last decision was taken. Replaced, never changed: any thread may read it."""
        self.options = options
        self.open_consumer = open_consumer
        self.poll = poll
        self.dead_letters = dead_letters
        self.draining = False
        self.stopping = Event()
        self.doing = ""
        """What raised the error that ends it, where that does not say so itself."""
        self._handler = handler

    def stop(self) -> None:
        """Have the batch in hand finished, its offset committed, the group left; :meth:`run` returns then. From any
        thread, at once."""
        self.stopping.set()

    def drain(self) -> None:
        """Have ``status.positions`` tell where reading stands even where nothing is to be handled. From any thread."""
        self.draining = True

    def run(self) -> None:
        """Take part until stopped, or until something that does not pass: ``status`` tells what. Never raises."""
        error = self._ended_by()
        state = State.STOPPED if error is None else State.FAILED
        self.status = replace(
            self.status,
            state=state,
            trouble=f"{self.doing}{_told(error)}",
            owned=frozenset(),
            positions={},
            handling=None,
            handling_since=0.0,
        )

    def _ended_by(self) -> BaseException | None:
        """The first error of all; None when it was stopped and all is closed."""
        closing: list[Callable[[], None]] = [] if self.dead_letters is None else [self.dead_letters.close]
        try:
            handler = UserHandler(self._handler)
            closing.insert(0, handler.close)
            error: BaseException | None = self._run(handler)
        except BaseException as failure:  # also a handler's sys.exit(): it must not go unseen in its thread
            log.exception("a member of the group ends")
            error = failure
        for close in closing:
            try:
                close()
            except BaseException as failure:
                log.exception("a member of the group could not be closed in good order")
                error = error or failure
        return error

    def _run(self, handler: UserHandler) -> Exception | None:
        """Why it ended: None as was wished, else the error of the handler or of the dead-letter topic."""
        pause_s = REOPEN_FIRST_S
        while not self.stopping.is_set():
            try:
                return _Membership(self, handler).run()
            except RaylogError as error:
                if not _passes(error):
                    raise
                pause_s = REOPEN_FIRST_S if self.status.state is State.RUNNING else min(2 * pause_s, REOPEN_MOST_S)
                log.warning("a member leaves the group and comes again in %.2g s: %s", pause_s, error)
                self.status = MemberStatus(
                    trouble=_told(error), counts=self.status.counts, last_error=self.status.last_error
                )
                self.stopping.wait(pause_s)
        return None


class _Membership(RebalanceListener):
    """From joining to leaving."""

    def __init__(self, runner: HandlerRunner, handler: UserHandler) -> None:
        self._runner = runner
        runner.doing = ""
        self._handler = handler
        self._exactly_once = runner.options.guarantee is Guarantee.EXACTLY_ONCE
        self._core = HandlerCore(runner.options, monotonic_ms(), runner.status.counts)
        self._paused: frozenset[TopicPartition] = frozenset()
        self._read_up_to: dict[TopicPartition, Offset] = {}
        self._last_error = runner.status.last_error
        self._consumer = runner.open_consumer(self)

    def run(self) -> Exception | None:
        """Why it ended: see HandlerRunner. Raises what the consumer raises."""
        try:
            error = self._take_part()
        except BaseException:
            self._close_quietly()
            raise
        if error is None:
            self._consumer.close()
        else:
            self._close_quietly()
        return error

    def _take_part(self) -> Exception | None:
        while True:
            if self._runner.stopping.is_set():
                self._core.stop()
            decision = self._core.next(monotonic_ms(), self._may_deliver)
            self._tell(decision)
            match decision:
                case Poll(timeout_ms, paused):
                    self._poll(timeout_ms, paused)
                case Handle(batch):
                    self._handle(batch)
                case Commit(offsets):
                    self._commit(offsets)
                case Bury(batch, error):
                    self._bury(batch, error)
                case Stop(error):
                    return error

    def _close_quietly(self) -> None:
        """An error is being told already, which this one must not hide."""
        try:
            self._consumer.close()
        except BaseException:  # also a listener's sys.exit()
            log.exception("a member of the group could not leave it in good order")

    def _may_deliver(self, tp: TopicPartition) -> bool:
        return self._consumer.may_deliver(*tp)

    def _poll(self, timeout_ms: int, paused: frozenset[TopicPartition]) -> None:
        if to_pause := paused - self._paused:
            self._consumer.pause(*to_pause)
        if to_resume := self._paused - paused:
            self._consumer.resume(*to_resume)
        self._paused = paused
        batches = self._runner.poll(self._consumer, timeout_ms)
        self._core.polled(batches, monotonic_ms())
        self._read_up_to = {}
        if self._runner.draining and not batches:
            idle = self._consumer.assignment() - self._paused
            self._read_up_to = {tp: Offset(self._consumer.position(*tp)) for tp in idle}

    def _handle(self, batch: HandlerBatch) -> None:
        try:
            answer = self._handler(batch)
        except Exception as error:
            self._last_error = f"{batch.tp}, offset {batch.first_offset}: {told(error)}"
            verdict = self._core.failed(error, monotonic_ms())
            if verdict is Verdict.STOP:
                self._runner.doing = _raised_for(batch)
            log.warning(
                "%s: the handler raised for %d records from offset %d on; %s",
                batch.tp, len(batch), batch.first_offset, verdict.value, exc_info=error,
            )  # fmt: skip
        except BaseException:
            self._runner.doing = _raised_for(batch)
            raise
        else:
            self._runner.doing = f"{_places(batch)}: "
            check_done(answer)
            self._runner.doing = ""
            self._core.handled()

    def _commit(self, offsets: Mapping[TopicPartition, Offset]) -> None:
        try:
            self._send_commit(offsets)
        except RaylogError as error:
            log.warning("offsets not committed: %s", error)
            self._core.commit_failed(monotonic_ms())
        else:
            self._core.committed(monotonic_ms())

    def _send_commit(self, offsets: Mapping[TopicPartition, Offset]) -> None:
        self._consumer.commit({tp: CommittedOffset(offset) for tp, offset in offsets.items()})

    def _bury(self, batch: HandlerBatch, error: Exception) -> None:
        assert self._runner.dead_letters is not None
        try:
            self._runner.dead_letters.send(batch, error)
        except Exception as failure:
            log.exception(
                "%s: a refused record did not get to the dead-letter topic; the member stops in front of offset %d",
                batch.tp, batch.first_offset,
            )  # fmt: skip
            self._runner.doing = f"{_places(batch)}: refused, and not put into the dead-letter topic either: "
            self._core.bury_failed(failure)
        else:
            self._core.buried()

    # --- the consumer's listener ---

    def on_assigned(self, partitions: Sequence[TopicPartition], /) -> None:
        """Read them from where the user's object says."""
        tps = sorted(partitions)
        doing = f"{_names(tps)}: on_assigned: "
        try:
            offsets = self._handler.on_assigned(tps)
        except Exception as error:
            log.exception("on_assigned raised; nothing is read of %s", _names(tps))
            self._runner.doing = doing
            self._core.fail(error)
            return
        except BaseException:
            self._runner.doing = doing
            raise
        for tp in tps:
            if tp in offsets:
                self._consumer.seek(*tp, offsets[tp])
            elif self._exactly_once:
                self._consumer.seek_to_beginning(tp)  # its store has nothing of it

    def on_revoked(self, partitions: Sequence[TopicPartition], /) -> None:
        """Commit what was handled of them; they are given up behind this."""
        tps = sorted(partitions)
        offsets = self._core.revoked(tps)
        self._paused -= set(tps)
        try:
            self._handler.on_revoked(tps)
            if offsets:
                self._send_commit(offsets)
        except Exception:
            log.exception("%s given up without a commit: others handle again what was handled last", _names(tps))

    def on_lost(self, partitions: Sequence[TopicPartition], /) -> None:
        """They are gone."""
        tps = sorted(partitions)
        self._core.lost(tps)
        self._paused -= set(tps)
        try:
            self._handler.on_lost(tps)
        except Exception:
            log.exception("on_lost raised for %s", _names(tps))

    def _tell(self, decision: Decision) -> None:
        owned = self._consumer.assignment()
        positions = self._core.positions() | self._read_up_to
        self._runner.status = MemberStatus(
            state=State.RUNNING,
            member_id=self._consumer.member_id,
            generation=self._consumer.generation,
            owned=owned,
            positions={tp: offset for tp, offset in positions.items() if tp in owned},
            counts=self._core.counts,
            last_error=self._last_error,
            handling=decision.batch.tp if isinstance(decision, Handle) else None,
            handling_since=time.monotonic() if isinstance(decision, Handle) else 0.0,
        )


def _passes(error: RaylogError) -> bool:
    """True when it is the cluster that is not there at the moment, and the member may come again. What is damaged in a
    log stays so: a replica that has it whole would have been asked."""
    if isinstance(error, CorruptMessage):
        return False
    return is_retriable(error) or isinstance(error, BrokerNotAvailable | StoreUnavailable)


def _told(error: BaseException | None) -> str:
    return "" if error is None else told(error)


def _places(batch: HandlerBatch) -> str:
    first, last = batch.first_offset, batch.next_offset - 1
    return f"{batch.tp}, offset {first}" if first == last else f"{batch.tp}, offsets {first} to {last}"


def _raised_for(batch: HandlerBatch) -> str:
    return f"{_places(batch)}: the handler raised "


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, partitions))
