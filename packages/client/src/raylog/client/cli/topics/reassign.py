"""``raylog topics reassign``: move partitions to other brokers, and see how far that is. KIP-455, KIP-73."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from raylog import client
from raylog.client.cli.terminal.common import (
    Bootstrap,
    DataDir,
    Output,
    OutputOption,
    admin_of,
    count_of,
    raise_refusal,
    show_json,
    show_table,
    tell,
    topic_names,
)
from raylog.client.cli.topics import reassign_plan as plan
from raylog.client.cli.topics import reassign_watch as watch
from raylog.client.cli.topics.reassign_plan import Move, Replicas
from raylog.client.cli.topics.reassign_throttle import clear_throttle, is_throttled, set_throttle
from raylog.client.cli.topics.reassign_watch import UnderWay
from raylog.protocol.errors import InvalidRequest, NoReassignmentInProgress, RaylogError
from raylog.protocol.ids import TopicPartition

_CLEAR = "`raylog topics reassign --wait --clear-throttle`"


def reassign(
    name: Annotated[
        str | None, typer.Argument(help="The topic; without one, all that is under way.", autocompletion=topic_names)
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", min=0, help="Only this one; repeatable. Default: all.")
    ] = None,
    replicas: Annotated[
        str | None,
        typer.Option(metavar="ID,ID,…", help="The brokers to move to; of all partitions, each begins with another."),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, metavar="FILE", help="Moves, as kafka-reassign-partitions reads them."
        ),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Go back to the replicas before the move.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, only what would be done is shown.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the moves are complete.")] = False,
    throttle: Annotated[
        int | None, typer.Option(min=1, metavar="BYTES/S", help="Copy no faster than this, per broker.")
    ] = None,
    clear: Annotated[
        bool, typer.Option("--clear-throttle", help="Take a throttle away where nothing is being moved any more.")
    ] = False,
    output: OutputOption = Output.TABLE,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Show what is being moved to other brokers, and how far it is; or move partitions, with --replicas or --from-file.

    A move copies the partition, and takes the old replicas away once the new ones are in sync. Without --yes nothing is
    changed. With --wait and --throttle the throttle is taken away at the end.
    """
    new = None if replicas is None else plan.broker_ids(replicas)
    filed = None if from_file is None else plan.wanted_of_file(from_file.read_bytes(), str(from_file))
    _check_options(name, partition, new, filed, cancel=cancel, throttle=throttle)
    with admin_of(data_dir, bootstrap_server) as admin:
        under_way = admin.list_partition_reassignments()
        if cancel or (new is None and filed is None):
            under_way = {tp: moving for tp, moving in under_way.items() if _is_meant(tp, name, partition, filed)}
            if cancel:
                _cancel(admin, under_way, output, yes=yes)
                return
            _show_under_way(admin, under_way, output)
            topics = {name} if name is not None else {topic.name for topic in admin.list_topics()}
            if wait:
                _wait(admin, {tp: moving.target for tp, moving in under_way.items()}, topics, throttled=clear)
        else:
            goals = filed or plan.wanted_of_topic(admin.describe_topic(str(name)), partition, new or ())
            topics = {tp.topic for tp in goals}
            moves = _proposed(admin, goals, under_way, output)
            if not yes:
                tell(
                    f"nothing was changed; add --yes to move {count_of(moves, 'partition')}"
                    if moves
                    else "there is nothing to move"
                )
                return
            with _telling_how_to_come_back(throttled=throttle is not None):
                _begin(admin, moves, under_way, throttle, wait=wait)
                if wait:
                    _wait(admin, goals, topics, throttled=throttle is not None)
        if clear or (wait and throttle is not None):
            _clear(admin, topics)


def _check_options(
    name: str | None,
    partition: Collection[int] | None,
    new: Replicas | None,
    filed: Mapping[TopicPartition, Replicas] | None,
    *,
    cancel: bool,
    throttle: int | None,
) -> None:
    if name is None and (partition or new):
        raise InvalidRequest("of which topic? give its name before --partition and --replicas")
    if filed is not None and (name is not None or new is not None):
        raise InvalidRequest("a file names its topics and replicas itself; leave TOPIC and --replicas out")
    if cancel and new is not None:
        raise InvalidRequest("--cancel goes back to the replicas before; leave --replicas out")
    if cancel and name is None and filed is None:
        raise InvalidRequest("cancel which moves? give a topic, or --from-file")
    if throttle is not None and (cancel or (new is None and filed is None)):
        raise InvalidRequest("--throttle is for new moves; give --replicas or --from-file, too")


def _is_meant(
    tp: TopicPartition,
    name: str | None,
    partition: Collection[int] | None,
    filed: Mapping[TopicPartition, Replicas] | None,
) -> bool:
    if filed is not None:
        return tp in filed
    return name in (None, tp.topic) and (not partition or tp.partition in partition)


def _show_under_way(admin: client.Admin, under_way: UnderWay, output: Output) -> None:
    rows = watch.rows_of(admin, under_way)
    _show(rows, output, "waits_for", "copied_bytes", "to_copy_bytes")
    down = watch.brokers_down(admin, rows)
    if down:
        tell(f"brokers that are not up hold moves up: {', '.join(map(str, down))}; start them, or --cancel the moves")
    if not rows and output is Output.TABLE:
        tell("nothing is being moved")
    if not rows and is_throttled(admin):
        tell(f"a throttle is still set; {_CLEAR} takes it away")


def _proposed(
    admin: client.Admin, goals: Mapping[TopicPartition, Replicas], under_way: UnderWay, output: Output
) -> list[Move]:
    """What has to be moved, shown."""
    topics = {str(name): admin.describe_topic(name) for name in sorted({tp.topic for tp in goals})}
    alive = [broker.broker_id for broker in admin.describe_cluster().brokers]
    moves = plan.moves_of(goals, topics, under_way, alive)
    leaders = {move.tp: topics[move.tp.topic].partitions[move.tp.partition].leader for move in moves}
    sizes = watch.sizes_on(admin, set(leaders.values()) & set(alive))
    _show([plan.row_of(move, sizes, leaders[move.tp]) for move in moves], output, "to_copy_bytes")
    return moves


def _begin(
    admin: client.Admin, moves: Sequence[Move], under_way: UnderWay, throttle: int | None, *, wait: bool
) -> None:
    if not moves:
        tell("there is nothing to move")
        return
    if throttle is not None:
        set_throttle(admin, moves, under_way, throttle)
    try:
        raise_refusal(admin.alter_partition_reassignments({move.tp: move.proposed for move in moves}))
    except RaylogError:
        if throttle is not None:
            with suppress(RaylogError):
                clear_throttle(admin, {move.tp.topic for move in moves})
        raise
    tell(f"moving {count_of(moves, 'partition')}")
    if throttle is not None and not wait:
        tell(f"copying {throttle} bytes/s per broker at most; {_CLEAR} takes the throttle away at the end")


def _cancel(admin: client.Admin, under_way: UnderWay, output: Output, *, yes: bool) -> None:
    moves = [Move(tp, moving.target, moving.origin) for tp, moving in sorted(under_way.items())]
    _show([plan.row_of(move, {}, -1) for move in moves], output)
    if not moves:
        tell("nothing of that is being moved")
    elif not yes:
        tell(f"nothing was changed; add --yes to cancel the moves of {count_of(moves, 'partition')}")
    else:
        results = admin.alter_partition_reassignments({move.tp: None for move in moves})
        raise_refusal(
            {tp: None if isinstance(error, NoReassignmentInProgress) else error for tp, error in results.items()}
        )  # what was complete before it was cancelled stays where it is
        tell(f"cancelled the moves of {count_of(moves, 'partition')}")
        clear_throttle(admin, {move.tp.topic for move in moves})


@contextmanager
def _telling_how_to_come_back(*, throttled: bool) -> Iterator[None]:
    """Who leaves by Ctrl-C is told of what goes on without the command."""
    try:
        yield
    except KeyboardInterrupt:
        tell(f"what has begun goes on; {_CLEAR if throttled else '`raylog topics reassign --wait`'} comes back to it")
        raise


def _wait(
    admin: client.Admin, goals: Mapping[TopicPartition, Replicas], topics: Iterable[str], *, throttled: bool
) -> None:
    try:
        watch.wait(admin, goals)
    except RaylogError:
        if throttled:
            with suppress(RaylogError):
                clear_throttle(admin, topics)
        raise
    if goals:
        tell(f"{count_of(goals, 'partition')} {'is' if len(goals) == 1 else 'are'} in place")


def _clear(admin: client.Admin, topics: Iterable[str]) -> None:
    still = clear_throttle(admin, topics)
    if still:
        tell(f"the throttle stays while partitions of {', '.join(still)} are being moved; then {_CLEAR} takes it away")
    else:
        tell("nothing is throttled any more")


def _show(rows: list[dict[str, Any]], output: Output, *more: str) -> None:
    if output is Output.JSON:
        show_json(rows)
    elif rows:
        show_table(rows, "topic", "partition", "current", "proposed", *more)
