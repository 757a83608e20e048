"""Consumer actors that share topics: as many as asked for, over the Ray cluster, each with the user's handler.

The actors live as long as the process that made the group, or until it is stopped: Ray ends the actors of a driver
that is gone, and then the partitions are free for whoever joins the group next. Several processes may each have actors
in one group; they share the partitions like any members.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from re import Pattern
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self

import ray
from ray.exceptions import ActorDiedError, ActorUnschedulableError, RayError, RuntimeEnvSetupError

from raylog.client.admin import Admin
from raylog.client.arguments.arguments import mapping, number, wait, wait_or_none
from raylog.client.arguments.serde import Deserializer
from raylog.client.cluster import Cluster, connect
from raylog.client.handlers.consumer_actor import MemberReport, consumer_actor_class
from raylog.client.handlers.drain import GroupDrain
from raylog.client.handlers.plan import ROWS, GroupPlan
from raylog.client.handlers.runner import MemberStatus, State
from raylog.protocol.errors import InvalidConfig, InvalidRequest, RaylogError, RequestTimedOut
from raylog.protocol.ids import Offset, TopicPartition
from raylog.protocol.logs import Logger
from raylog.protocol.texts import says, told

log = Logger(__name__)

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
CALL_TIMEOUT_S = 5.0
POLL_S = 0.05
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
_UNREACHABLE = "its process is gone or does not answer; Ray starts it again"
_GONE = "its process is gone, and Ray does not start it again (actor_options: max_restarts, node)"
_FOR_GOOD = (ActorDiedError, ActorUnschedulableError, RuntimeEnvSetupError)
"""What Ray says of an actor that it does not start again; of one that it does, ActorUnavailableError."""


class GroupStatus(NamedTuple):
    """What the members of one :class:`ActorGroup` tell, in the order in which they were made."""

    members: tuple[MemberReport, ...]

    @property
    def owners(self) -> dict[TopicPartition, int]:
        """Which member, by its place in ``members``, owns each partition. Those of others are not there."""
        return {tp: index for index, member in enumerate(self.members) for tp in member.owned}

    @property
    def positions(self) -> dict[TopicPartition, Offset]:
        """Per partition, one past the last record that was handled."""
        found: dict[TopicPartition, Offset] = {}
        for member in self.members:
            found.update(member.status.positions)
        return found


class ActorGroup:
    """Consumer actors of one group, made by :func:`group`; for one thread at a time. Leaving its ``with`` stops it."""

    def __init__(self, plan: GroupPlan, actor_options: Mapping[str, Any]) -> None:
        """``actor_options``: see :func:`group`. Raises InvalidConfig, and InvalidRequest for no mapping."""
        self._plan = plan
        options = {"scheduling_strategy": "SPREAD", **mapping("actor_options", actor_options)}
        try:
            self._make = consumer_actor_class.options(**options)
        except (TypeError, ValueError) as error:
            raise InvalidConfig(f"actor_options: {says(error)}") from error
        for name in ("handler", "key_deserializer", "value_deserializer"):
            try:
                ray.cloudpickle.dumps(getattr(plan, name))
            except Exception as error:
                raise InvalidConfig(
                    f"{name} cannot travel to an actor ({told(error)}): make what it holds inside of it, as in the "
                    "__init__ of a class"
                ) from error
        self._actors: list[Any] = []

    def __repr__(self) -> str:
        return f"ActorGroup({self.name!r}, size={len(self._actors)})"

    @property
    def name(self) -> str:
        """Kafka's group.id."""
        return self._plan.group

    @property
    def size(self) -> int:
        """How many actors there are to be."""
        return len(self._actors)

    def scale(self, size: int, timeout_s: float = START_TIMEOUT_S) -> None:
        """Have ``size`` actors; returns once the new ones have joined, or those that go, the youngest, have left.

        Raises RaylogError when one can't join: then the new ones are removed.
        """
        size, timeout_s = number("size", size), wait("timeout_s", timeout_s)
        going, self._actors = self._actors[size:], self._actors[:size]
        self._stop(going, STOP_TIMEOUT_S)
        fresh = [self._make.remote(self._plan.of_member(place)) for place in range(len(self._actors), size)]
        try:
            self._wait_joined(fresh, timeout_s)
        except BaseException:
            _kill(fresh)
            raise
        self._actors += fresh

    def status(self) -> GroupStatus:
        """What the members are doing. One whose process is gone is starting, until Ray has started it again; where Ray
        does not, it has failed."""
        return GroupStatus(tuple(_reports(self._actors)))

    def drain(self, timeout_s: float | None = None) -> None:
        """Wait until what the topics hold now is handled, and stop. Records that come meanwhile may be handled, too.

        Raises RequestTimedOut when that takes longer than ``timeout_s``, UnknownTopicOrPartition for a topic that is
        deleted meanwhile, and RaylogError when a member has failed; in all cases the others still run.
        """
        wait_or_none("timeout_s", timeout_s)
        if not self._actors:
            raise RaylogError(f"group {self.name} has no actors that could drain it; scale it up first")
        drain = GroupDrain(self.name, self._plan.subscribes, self._open_admin, timeout_s)
        while True:
            for actor in self._actors:  # each time, for one that Ray has started again has not heard it
                actor.drain.remote()
            status = self.status()
            _raise_failure(self.name, status.members)
            if drain.is_done(status.owners, status.positions):
                break
            time.sleep(POLL_S)
        self.stop()

    def _open_admin(self, timeout_s: float) -> Admin:
        return Admin(self._plan.bootstrap_servers, default_api_timeout_ms=max(1, round(timeout_s * 1_000)))

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Have every handler finish its batch, commit, leave the group, and remove the actors. Twice does no harm.

        A handler that has not returned within ``timeout_s`` is killed with its process: its batch is handled again.
        """
        wait("timeout_s", timeout_s)
        going, self._actors = self._actors, []
        self._stop(going, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_joined(self, actors: Sequence[Any], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            reports = _reports(actors)
            _raise_failure(self.name, reports)
            late = [report for report in reports if report.status.state is not State.RUNNING]
            if not late:
                return
            if time.monotonic() > deadline:
                reason = late[0].status.trouble or "it is still starting; has the Ray cluster room for it?"
                raise RequestTimedOut(
                    f"group {self.name}: {len(late)} of {len(reports)} actors did not join within {timeout_s:g} s: "
                    + reason
                )
            time.sleep(POLL_S)

    def _stop(self, actors: Sequence[Any], timeout_s: float) -> None:
        asked = {actor.stop.remote(timeout_s): actor for actor in actors}
        if not asked:
            return
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=timeout_s + CALL_TIMEOUT_S)
        ended = sum(_is_true(answer) for answer in answered)
        if ended < len(asked):
            log.warning(
                "group %s: %d of %d actors did not leave within %g s and are killed: what they handled last may be "
                "handled again",
                self.name, len(asked) - ended, len(asked), timeout_s,
            )  # fmt: skip
        _kill(actors)


def group(
    name: str,
    *,
    topics: str | Iterable[str] | Pattern[str],
    handler: Any,
    size: int = 1,
    cluster: Cluster | None = None,
    batch_format: str = ROWS,
    key_deserializer: str | Deserializer | None = None,
    value_deserializer: str | Deserializer | None = None,
    actor_options: Mapping[str, Any] = _NO_OPTIONS,
    **config: Any,
) -> ActorGroup:
    """Start ``size`` consumer actors of group ``name`` and return once all have joined.

    ``handler`` is a function of a batch, or a class that is made in each actor (``functools.partial`` gives it
    arguments) and may keep state: see :class:`~raylog.client.handlers.user_handler.UserHandler`. A batch is of one
    partition: a list of ConsumerRecord (``batch_format="rows"``) or an Arrow table (``"pyarrow"``). ``cluster`` is
    by default what ``connect()`` finds. ``actor_options`` are Ray's (num_cpus, resources, …); by default actors are
    spread over the nodes and reserve nothing. ``config``: the group's settings (``processing_guarantee``,
    ``errors_tolerance``, …) and the consumer's, see docs/configuration.md.

    Raises InvalidConfig, InvalidRequest, InvalidGroupId and InvalidTopic for what an argument cannot be;
    BrokerNotAvailable without a cluster; RaylogError with the reason when an actor can't join, as
    when Kafka clients are in the group; RequestTimedOut when one doesn't in time, as when Ray has no room for it.
    """
    number("size", size)
    if cluster is not None and not isinstance(cluster, Cluster):
        raise InvalidRequest(f"cluster={cluster!r}: give what connect() gives, or leave it out")
    cluster = connect() if cluster is None else cluster
    plan = GroupPlan.of(
        name,
        cluster.bootstrap_servers,
        topics,
        handler,
        batch_format=batch_format,
        key_deserializer=key_deserializer,
        value_deserializer=value_deserializer,
        config=config,
    )
    made = ActorGroup(plan, actor_options)
    cluster.join_ray()
    plan.prepare()
    made.scale(size)
    return made


def _reports(actors: Sequence[Any]) -> list[MemberReport]:
    asked = [actor.describe.remote() for actor in actors]
    if asked:
        ray.wait(asked, num_returns=len(asked), timeout=CALL_TIMEOUT_S)
    return [_report(answer) for answer in asked]


def _report(answer: Any) -> MemberReport:
    try:
        report: MemberReport = ray.get(answer, timeout=0)
    except _FOR_GOOD as error:
        return _unreachable(State.FAILED, f"{_GONE}: {' '.join(says(error).split())}")
    except RayError as error:
        return _unreachable(State.STARTING, f"{_UNREACHABLE}: {says(error).strip().partition(chr(10))[0]}")
    return report


def _unreachable(state: State, trouble: str) -> MemberReport:
    return MemberReport(MemberStatus(state, trouble), node_id="", pid=0, handling_s=0.0)


def _raise_failure(name: str, reports: Iterable[MemberReport]) -> None:
    for index, report in enumerate(reports):
        state, trouble = report.status.state, report.status.trouble
        which = f"group {name}: member {index}" + (f" (process {report.pid})" if report.pid else "")
        if state is State.FAILED:
            raise RaylogError(
                f"{which} has failed: {trouble}; mend that and make the group anew, it goes on where it was"
            )
        if state is State.STOPPED:
            raise RaylogError(f"{which} has stopped, and handles nothing")


def _is_true(answer: Any) -> bool:
    try:
        return bool(ray.get(answer, timeout=0))
    except RayError:
        return False


def _kill(actors: Iterable[Any]) -> None:
    for actor in actors:
        ray.kill(actor, no_restart=True)
