"""``raylog groups reset-offsets``: let a consumer group read on from somewhere else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from raylog import client
from raylog.client.cli import groups_plan as plan
from raylog.client.cli.groups_plan import Goal, Kind, Log, Reset
from raylog.client.cli.terminal.common import (
    Bootstrap,
    DataDir,
    Group,
    Output,
    OutputOption,
    admin_of,
    count_of,
    milliseconds,
    raise_refusal,
    show_json,
    show_table,
    tell,
)
from raylog.client.config.texts import INT64_MAX
from raylog.protocol.errors import GroupIdNotFound, InvalidRequest, NonEmptyGroup, RaylogError
from raylog.protocol.ids import EARLIEST, LATEST, TopicPartition


def reset_offsets(
    group: Group,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar=plan.TOPIC_FORM, help="Of this topic, or these partitions of it; repeatable."),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Of everything that the group has committed.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record that is kept.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end: only what comes from now on.")] = False,
    to_offset: Annotated[int | None, typer.Option(min=0, max=INT64_MAX, metavar="N", help="To this offset.")] = None,
    to_timestamp: Annotated[
        str | None,
        typer.Option(
            "--to-timestamp", "--to-datetime", metavar="MS|ISO", help="To the first record at or after this time."
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            min=-INT64_MAX, max=INT64_MAX, metavar="N", help="By so many records: back with -N, ahead with N."
        ),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it; without, only what would be done is shown.")
    ] = False,
    output: OutputOption = Output.TABLE,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Let a group without members read on from somewhere else. Without --execute nothing is changed.

    What the log does not have is bounded by what it has, and told.
    """
    goal = plan.goal_of(
        earliest=to_earliest,
        latest=to_latest,
        offset=to_offset,
        timestamp_ms=None if to_timestamp is None else milliseconds(to_timestamp, "--to-timestamp"),
        shift=shift_by,
    )
    if bool(topic) == all_topics:
        raise InvalidRequest(f"of which topics? give --topic {plan.TOPIC_FORM}, or --all-topics for all it has read")
    named = plan.topics_of(topic) if topic else None
    with admin_of(data_dir, bootstrap_server) as admin:
        occupied = _occupied(admin, group)
        if occupied and execute:
            raise occupied
        resets = _resets(admin, group, goal, named)
        _show(resets, output)
        if not execute:
            what = f"add --execute to reset {count_of(resets, 'partition')}"
            tell(f"nothing was changed; {occupied or what}")
            return
        _commit(admin, group, resets)
    tell(f"group {group} goes on from there in {count_of(resets, 'partition')}")


def _occupied(admin: client.Admin, group: str) -> NonEmptyGroup | None:
    """Why the group can't be reset now; a group that is not there can."""
    found = admin.describe_groups([group])[group]
    if isinstance(found, GroupIdNotFound):
        return None
    if isinstance(found, RaylogError):
        raise found
    if not found.members:
        return None
    who = ", ".join(sorted({f"{member.client_id} at {member.host}" for member in found.members}))
    return NonEmptyGroup(
        f"group {group} has {count_of(found.members, 'member')} ({who}), who would commit over a reset; stop them first"
    )


def _resets(admin: client.Admin, group: str, goal: Goal, topics: plan.Topics | None) -> list[Reset]:
    committed = admin.list_group_offsets(group)
    if topics is None:
        chosen = _that_exist(admin, committed)
        if not chosen:
            raise InvalidRequest(f"group {group} has committed nothing; name topics by --topic to give it a beginning")
    else:
        chosen = [
            tp for name, numbers in topics.items() for tp in plan.partitions_of(admin.describe_topic(name), numbers)
        ]
    at_time: dict[TopicPartition, int] = {}
    if goal.kind is Kind.TIMESTAMP:
        at_time = {tp: found.offset for tp, found in admin.list_offsets(dict.fromkeys(chosen, goal.number)).items()}
    return plan.resets_of(goal, logs_of(admin, chosen), committed, at_time)


def _that_exist(admin: client.Admin, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """What was committed of topics that are gone has no place to be reset to."""
    counts = {topic.name: len(topic.partitions) for topic in admin.list_topics()}
    chosen = []
    for tp in sorted(partitions):
        if tp.partition < counts.get(tp.topic, 0):
            chosen.append(tp)
        else:
            tell(f"{tp} is not there any more, so it is left out")
    return chosen


def logs_of(admin: client.Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Log]:
    """From where to where these partitions can be read now."""
    chosen = list(partitions)
    first = admin.list_offsets(dict.fromkeys(chosen, EARLIEST))
    end = admin.list_offsets(dict.fromkeys(chosen, LATEST))
    return {tp: Log(first[tp].offset, end[tp].offset) for tp in chosen}


def _show(resets: Iterable[Reset], output: Output) -> None:
    rows = [plan.row_of(reset) for reset in resets]
    if output is Output.JSON:
        show_json(rows)
    else:
        show_table(rows)
    for reset in resets:
        if reset.wanted != reset.proposed:
            tell(f"{reset.tp} has offsets {reset.log.earliest} to {reset.log.latest}, not {reset.wanted}")


def _commit(admin: client.Admin, group: str, resets: Iterable[Reset]) -> None:
    raise_refusal(admin.alter_group_offsets(group, {reset.tp: reset.proposed for reset in resets}))
