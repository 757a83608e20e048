"""``raylog topics``: create, list, describe, alter, move and delete."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from raylog import client
from raylog.client.cli.terminal.common import (
    Bootstrap,
    Config,
    DataDir,
    Output,
    OutputOption,
    Topic,
    admin_of,
    check_settings,
    ids_of,
    name_values,
    raise_refusal,
    show_json,
    show_table,
    tell,
    topic_names,
)
from raylog.client.cli.topics import reassign
from raylog.client.config.texts import INT16_MAX, INT32_MAX, INT64_MAX
from raylog.protocol.errors import ElectionNotNeeded, InvalidRequest, UnknownTopicOrPartition

app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter, move and delete topics.")

_PARTITION_COLUMNS = ("partition", "leader", "leader_epoch", "replicas", "isr", "earliest", "latest")


@app.command("create")
def create(
    name: str,
    partitions: Annotated[
        int, typer.Option(max=INT32_MAX, help="How many; default: the broker's num.partitions.")
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option(max=INT16_MAX, help="How many copies; default: the broker's.")
    ] = -1,
    replica_assignment: Annotated[
        str | None,
        typer.Option(metavar="ID:ID,ID:ID,…", help="The brokers of each partition, the preferred leader first."),
    ] = None,
    config: Config = None,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Create a topic."""
    assignments = _assignments(replica_assignment)
    if assignments and (partitions, replication_factor) != (-1, -1):
        raise InvalidRequest("--replica-assignment says how many; leave --partitions and --replication-factor out")
    with admin_of(data_dir, bootstrap_server) as admin:
        admin.create_topic(
            name,
            partitions,
            replication_factor=replication_factor,
            configs=name_values(config),
            assignments=assignments,
        )
        count = len(admin.describe_topic(name).partitions)
    tell(f"created {name} with {count} partition{'s' if count != 1 else ''}")


@app.command("list")
def list_(output: OutputOption = Output.TABLE, data_dir: DataDir = None, bootstrap_server: Bootstrap = None) -> None:
    """List all topics: their names alone when the output is no terminal."""
    with admin_of(data_dir, bootstrap_server) as admin:
        found = admin.list_topics()
    rows = [{"topic": topic.name, "partitions": len(topic.partitions)} for topic in found]
    if output is Output.JSON:
        show_json(rows)
    elif sys.stdout.isatty():
        show_table(rows, "topic", "partitions")
    else:
        for topic in found:
            typer.echo(topic.name)


@app.command("describe")
def describe(
    name: Annotated[
        str | None, typer.Argument(help="The topic's name; may be left out with a filter.", autocompletion=topic_names)
    ] = None,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Only partitions with a replica out of the ISR.")
    ] = False,
    under_min_isr: Annotated[
        bool, typer.Option("--under-min-isr", help="Only partitions that refuse acks=all: too few in sync.")
    ] = False,
    at_min_isr: Annotated[
        bool, typer.Option("--at-min-isr", help="Only partitions that refuse acks=all if one more fails.")
    ] = False,
    unavailable: Annotated[bool, typer.Option("--unavailable", help="Only partitions without a leader.")] = False,
    output: OutputOption = Output.TABLE,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Show a topic's partitions, their leaders and offsets, and its settings; or, of one or all, those in trouble."""
    chosen = [
        trouble
        for trouble, wanted in (
            (_is_under_replicated, under_replicated),
            (_is_under_min_isr, under_min_isr),
            (_is_at_min_isr, at_min_isr),
            (_is_unavailable, unavailable),
        )
        if wanted
    ]
    if chosen:
        with admin_of(data_dir, bootstrap_server) as admin:
            found = admin.list_topics() if name is None else [admin.describe_topic(name)]
            rows = _in_trouble(admin, found, chosen)
        if output is Output.JSON:
            show_json(rows)
        else:
            show_table(rows, "topic", "partition", "leader", "leader_epoch", "replicas", "isr", "min_isr")
        return
    if name is None:
        raise InvalidRequest("which topic? give its name, or a filter such as --under-replicated for all topics")
    with admin_of(data_dir, bootstrap_server) as admin:
        topic = admin.describe_topic(name)
        settings = {entry.name: entry.value for entry in admin.describe_topic_configs(name) if not entry.is_default}
        rows = _partition_rows(admin, topic)
    if output is Output.JSON:
        show_json({"topic": name, "topic_id": topic.topic_id, "configs": settings, "partitions": rows})
        return
    typer.echo(f"{name} ({topic.topic_id}); settings: {_list_of(settings) or 'all default'}")
    show_table(rows, *_PARTITION_COLUMNS)


@app.command("alter")
def alter(
    name: Topic,
    partitions: Annotated[
        int | None, typer.Option(min=1, max=INT32_MAX, help="Raise the number of partitions to this.")
    ] = None,
    config: Config = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="NAME", help="Let the default count again; repeatable."),
    ] = None,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Give a topic more partitions, or other settings (`raylog configs alter` does more)."""
    changes: dict[str, str | None] = {**name_values(config), **dict.fromkeys(delete_config or ())}
    if partitions is None and not changes:
        raise InvalidRequest(f"nothing to alter on {name}; give --partitions, --config or --delete-config")
    with admin_of(data_dir, bootstrap_server) as admin:
        if delete_config:
            check_settings(f"topic {name}", delete_config, admin.describe_topic_configs(name))
        if changes:
            admin.alter_topic_configs(name, changes)
            tell(f"altered the settings of {name}: {', '.join(sorted(changes))}")
        if partitions is not None:
            admin.create_partitions(name, partitions)
            tell(f"{name} has {partitions} partitions now; records with keys may go to other ones than before")


app.command("reassign")(reassign.reassign)


@app.command("elect-leaders")
def elect_leaders(
    name: Annotated[
        str | None, typer.Argument(help="The topic; without one, all topics.", autocompletion=topic_names)
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", min=0, help="Only of this one; repeatable. Default: of all.")
    ] = None,
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="Where nobody leads, let any live replica: what only others have is lost."),
    ] = False,
    output: OutputOption = Output.TABLE,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Let the preferred replicas lead again, or, with --unclean, any that live. Exit code 1 if some don't."""
    if name is None and (partition or unclean):
        raise InvalidRequest("of which topic? --partition and --unclean need its name")
    with admin_of(data_dir, bootstrap_server) as admin:
        chosen = None
        if name is not None:
            chosen = [(name, index) for index in partition or range(len(admin.describe_topic(name).partitions))]
        results = admin.elect_leaders(chosen, unclean=unclean)
    elected = {tp: error for tp, error in sorted(results.items()) if not isinstance(error, ElectionNotNeeded)}
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "elected": error is None, "error": error and str(error)}
        for tp, error in elected.items()
    ]
    if output is Output.JSON:
        show_json(rows)
    elif rows:
        show_table(rows, "topic", "partition", "elected")
    else:
        tell("every partition has a leader already" if unclean else "every partition is led by its preferred replica")
    raise_refusal(elected)


@app.command("delete")
def delete(name: Topic, data_dir: DataDir = None, bootstrap_server: Bootstrap = None) -> None:
    """Delete a topic and all its records."""
    with admin_of(data_dir, bootstrap_server) as admin:
        error = admin.delete_topics([name])[name]
    if error is not None:
        raise error
    tell(f"deleted {name}")


@app.command("trim-prefix")
def trim_prefix(
    name: Topic,
    offset: Annotated[
        int | None, typer.Option(min=-1, max=INT64_MAX, help="Delete what is before it; -1: all that can be read now.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", min=0, help="Only of this one; repeatable. Default: of all.")
    ] = None,
    output: OutputOption = Output.TABLE,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Delete a topic's oldest records, up to an offset; show where its partitions begin then."""
    if offset is None:
        raise InvalidRequest("which records? give --offset N, or --offset -1 for all")
    with admin_of(data_dir, bootstrap_server) as admin:
        chosen = partition or [found.partition for found in admin.describe_topic(name).partitions]
        starts = admin.delete_records({(name, number): offset for number in chosen})
    rows = [{"partition": tp.partition, "earliest": start} for tp, start in sorted(starts.items())]
    if output is Output.JSON:
        show_json(rows)
    else:
        show_table(rows)


Trouble = Callable[[client.PartitionDescription, int], bool]
"""Whether a partition, with its topic's min.insync.replicas, is to be shown."""


def _is_under_replicated(partition: client.PartitionDescription, _: int) -> bool:
    return len(partition.isr) < len(partition.replicas)


def _is_under_min_isr(partition: client.PartitionDescription, min_isr: int) -> bool:
    return len(partition.isr) < min_isr


def _is_at_min_isr(partition: client.PartitionDescription, min_isr: int) -> bool:
    return len(partition.isr) == min_isr


def _is_unavailable(partition: client.PartitionDescription, _: int) -> bool:
    return partition.leader < 0


def _in_trouble(
    admin: client.Admin, topics: Iterable[client.TopicDescription], chosen: Iterable[Trouble]
) -> list[dict[str, Any]]:
    """The partitions that one of ``chosen`` picks."""
    rows = []
    for topic in topics:
        try:
            min_isr = _min_isr(admin, topic.name)
        except UnknownTopicOrPartition:
            continue  # deleted since
        rows += [
            {
                "topic": topic.name,
                "partition": partition.partition,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                "min_isr": min_isr,
            }
            for partition in topic.partitions
            if any(trouble(partition, min_isr) for trouble in chosen)
        ]
    return rows


def _min_isr(admin: client.Admin, name: str) -> int:
    [value] = [entry.value for entry in admin.describe_topic_configs(name) if entry.name == "min.insync.replicas"]
    return int(value or 0)


def _assignments(text: str | None) -> Mapping[int, Sequence[int]]:
    """Kafka's form: brokers with colons between them, partitions with commas. Raises InvalidRequest."""
    if text is None:
        return {}
    try:
        return {index: ids_of(part, ":") for index, part in enumerate(text.split(","))}
    except ValueError:
        raise InvalidRequest(
            f"--replica-assignment {text!r} is no list of brokers such as 1:2,2:3 for two partitions"
        ) from None


def _partition_rows(admin: client.Admin, topic: client.TopicDescription) -> list[dict[str, Any]]:
    led = [(topic.name, partition.partition) for partition in topic.partitions if partition.leader >= 0]
    earliest = {tp.partition: found.offset for tp, found in admin.list_offsets(dict.fromkeys(led, -2)).items()}
    latest = {tp.partition: found.offset for tp, found in admin.list_offsets(dict.fromkeys(led, -1)).items()}
    return [
        {
            "partition": partition.partition,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "replicas": list(partition.replicas),
            "isr": list(partition.isr),
            "earliest": earliest.get(partition.partition),
            "latest": latest.get(partition.partition),
        }
        for partition in topic.partitions
    ]


def _list_of(settings: dict[str, str | None]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))
