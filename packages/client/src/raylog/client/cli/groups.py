"""``raylog groups``: consumer groups: who reads what and how far behind, from where on; end members, delete groups."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from raylog import client
from raylog.client.cli import groups_plan as plan
from raylog.client.cli.groups_reset import logs_of, reset_offsets
from raylog.client.cli.terminal.common import (
    Bootstrap,
    DataDir,
    Group,
    Output,
    OutputOption,
    admin_of,
    count_of,
    group_names,
    raise_refusal,
    show_json,
    show_table,
    tell,
)
from raylog.protocol.errors import InvalidRequest, RaylogError
from raylog.protocol.ids import TopicPartition

app = typer.Typer(no_args_is_help=True, help="Show consumer groups, let them read on from somewhere else, delete them.")

_PARTITION_COLUMNS = ("topic", "partition", "committed", "latest", "lag", "member_id", "client_id", "host")


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only groups in this state, such as Empty; repeatable.")
    ] = None,
    output: OutputOption = Output.TABLE,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """List all consumer groups: their names alone when the output is no terminal."""
    with admin_of(data_dir, bootstrap_server) as admin:
        found = admin.list_groups(state or ())
    rows = [{"group": group.group_id, "state": group.state, "protocol_type": group.protocol_type} for group in found]
    if output is Output.JSON:
        show_json(rows)
    elif sys.stdout.isatty():
        show_table(rows, "group", "state", "protocol_type")
    else:
        for group in found:
            typer.echo(group.group_id)


@app.command("describe")
def describe(
    group: Group,
    members: Annotated[bool, typer.Option("--members", help="Its members, instead of its partitions.")] = False,
    output: OutputOption = Output.TABLE,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Show what a group has committed, how far that is behind the ends, and which member reads what."""
    with admin_of(data_dir, bootstrap_server) as admin:
        found = admin.describe_groups([group])[group]
        if isinstance(found, RaylogError):
            raise found
        committed = admin.list_group_offsets(group)
        assigned = {tp for member in found.members for tp in member.assignment}
        logs = logs_of(admin, _that_have_leaders(admin, {*committed, *assigned}))
    rows = plan.rows_of(found, committed, logs)
    if output is Output.JSON:
        show_json({**_facts(found), "members": [_member_row(each) for each in found.members], "partitions": rows})
        return
    typer.echo(_headline(found))
    if members:
        show_table(map(_member_row, found.members), "member_id", "instance_id", "client_id", "host", "partitions")
    else:
        show_table(rows, *_PARTITION_COLUMNS)
    for warning in plan.lost_positions(committed, logs):
        tell(warning)


app.command("reset-offsets")(reset_offsets)


@app.command("delete")
def delete(
    group: Annotated[list[str], typer.Argument(help="The group; several may be named.", autocompletion=group_names)],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar=plan.TOPIC_FORM,
            help="Only what is committed of this topic, or of these partitions of it; repeatable.",
        ),
    ] = None,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Delete groups without members, and all that they have committed; or, with --topic, only offsets."""
    if topic and len(group) > 1:
        raise InvalidRequest("offsets of which group? with --topic name one")
    named = plan.topics_of(topic) if topic else None
    with admin_of(data_dir, bootstrap_server) as admin:
        if named is not None:
            _delete_offsets(admin, group[0], named)
            return
        results = admin.delete_groups(group)
    for name, error in results.items():
        if error is None:
            tell(f"deleted group {name}")
    raise_refusal(results, "groups")


@app.command("remove-members")
def remove_members(
    group: Group,
    member: Annotated[
        list[str] | None, typer.Option("--member", metavar="ID", help="A member, by its id; repeatable.")
    ] = None,
    instance: Annotated[
        list[str] | None,
        typer.Option("--instance", metavar="NAME", help="A static member, by its group.instance.id; repeatable."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All members that it has now.")] = False,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Remove members that are gone from a group, so that others need not wait for the end of their sessions.

    Stop a member first: one that runs joins again.
    """
    members, instances = member or [], instance or []
    if bool(members or instances) == all_:
        raise InvalidRequest("remove whom? give --member ID or --instance NAME, or --all")
    with admin_of(data_dir, bootstrap_server) as admin:
        if all_:
            found = admin.describe_groups([group])[group]
            if isinstance(found, RaylogError):
                raise found
            members = [each.member_id for each in found.members if each.group_instance_id is None]
            instances = [each.group_instance_id for each in found.members if each.group_instance_id is not None]
        results = admin.remove_members(group, members, instances=instances) if members or instances else {}
    for name, error in results.items():
        if error is None:
            tell(f"removed {name} from group {group}")
    if not results:
        tell(f"group {group} has no members")
    raise_refusal(results, "members")


def _delete_offsets(admin: client.Admin, group: str, topics: plan.Topics) -> None:
    """What is committed of topics that are gone can be forgotten, too."""
    committed = admin.list_group_offsets(group)
    chosen: list[TopicPartition] = []
    for name, numbers in topics.items():
        found = [tp for tp in committed if tp.topic == name and (numbers is None or tp.partition in numbers)]
        if not found:
            raise InvalidRequest(f"group {group} has committed nothing there: --topic {name}")
        chosen += found
    raise_refusal(admin.delete_group_offsets(group, chosen))
    tell(f"group {group} has forgotten its offsets of {count_of(chosen, 'partition')}")


def _that_have_leaders(admin: client.Admin, partitions: set[TopicPartition]) -> list[TopicPartition]:
    led = {
        TopicPartition(topic.name, partition.partition)
        for topic in admin.list_topics()
        for partition in topic.partitions
        if partition.leader >= 0
    }
    return sorted(partitions & led)


def _headline(group: client.GroupDescription) -> str:
    by = f", assigned by {group.protocol}" if group.members and group.protocol else ""
    who = f"{count_of(group.members, 'member')}{by}"
    return f"{group.group_id} is {group.state}: {who}; broker {group.coordinator} coordinates it"


def _facts(group: client.GroupDescription) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "coordinator": group.coordinator,
    }


def _member_row(member: client.MemberDescription) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "topics": list(member.topics),
        "partitions": [str(tp) for tp in member.assignment],
    }
