"""``raylog brokers``: who they are, what they lead and what they keep."""

from __future__ import annotations

from collections import Counter
from typing import Any

import typer
from typer.core import TyperGroup

from raylog import client
from raylog.client.cli.plugins import plugins
from raylog.client.cli.terminal.common import (
    Bootstrap,
    DataDir,
    Output,
    OutputOption,
    admin_of,
    log_dirs_of,
    show_json,
    show_table,
)
from raylog.protocol.errors import BrokerNotAvailable
from raylog.protocol.ids import BrokerId


class ListByDefault(TyperGroup):
    """``raylog brokers`` is ``raylog brokers list``; other packages may add commands."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        elsewhere = self._elsewhere(ctx)
        return [*super().list_commands(ctx), *(elsewhere.list_commands(ctx) if elsewhere else ())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        here = super().get_command(ctx, cmd_name)
        elsewhere = None if here else self._elsewhere(ctx)
        return elsewhere.get_command(ctx, cmd_name) if elsewhere else here

    def _elsewhere(self, ctx: Any) -> TyperGroup | None:
        """What other packages add to this group."""
        found = plugins(None).get_command(ctx, "brokers")
        return found if isinstance(found, TyperGroup) else None


app = typer.Typer(cls=ListByDefault, help="List brokers, or describe one and its log directories.")

_LIST = ("broker_id", "host", "port", "rack", "controller", "leaders", "replicas", "log_dirs", "size_bytes")
_LOG_DIRS = ("log_dir", "state", "replicas", "size_bytes", "usable_bytes", "total_bytes")


@app.command("list")
def list_(output: OutputOption = Output.TABLE, data_dir: DataDir = None, bootstrap_server: Bootstrap = None) -> None:
    """List the live brokers: addresses, racks, what they lead and what they keep."""
    with admin_of(data_dir, bootstrap_server) as admin:
        cluster = admin.describe_cluster()
        topics = admin.list_topics()
        dirs = {broker.broker_id: log_dirs_of(admin, broker.broker_id) for broker in cluster.brokers}
    rows = [
        {
            **_identity(broker, cluster),
            **_partitions(broker.broker_id, topics),
            "log_dirs": [log_dir.path for log_dir in dirs[broker.broker_id]],
            "size_bytes": sum(map(_size, dirs[broker.broker_id])),
        }
        for broker in cluster.brokers
    ]
    if output is Output.JSON:
        show_json(rows)
    else:
        show_table(rows, *_LIST)


@app.command("describe")
def describe(
    broker_id: int, output: OutputOption = Output.TABLE, data_dir: DataDir = None, bootstrap_server: Bootstrap = None
) -> None:
    """Show a broker, its log directories and the replicas in them."""
    with admin_of(data_dir, bootstrap_server) as admin:
        cluster = admin.describe_cluster()
        broker = next((found for found in cluster.brokers if found.broker_id == broker_id), None)
        if broker is None:
            alive = ", ".join(str(found.broker_id) for found in cluster.brokers)
            raise BrokerNotAvailable(f"broker {broker_id} is not up; these are: {alive}")
        topics = admin.list_topics()
        log_dirs = admin.describe_log_dirs(broker_id)
    facts = {**_identity(broker, cluster), **_partitions(broker.broker_id, topics)}
    rows = [_log_dir_row(log_dir) for log_dir in log_dirs]
    replicas = [
        {"topic": tp.topic, "partition": tp.partition, **size._asdict(), "log_dir": log_dir.path}
        for log_dir in log_dirs
        for tp, size in sorted(log_dir.replicas.items())
    ]
    if output is Output.JSON:
        show_json({**facts, "log_dirs": rows, "partitions": replicas})
        return
    show_table([facts])
    typer.echo()
    show_table(rows, *_LOG_DIRS)
    if replicas:
        typer.echo()
        show_table(replicas, "topic", "partition", "size_bytes", "offset_lag", "log_dir")


def _identity(broker: client.BrokerDescription, cluster: client.ClusterDescription) -> dict[str, Any]:
    return {**broker._asdict(), "controller": broker.broker_id == cluster.controller}


def _partitions(broker_id: BrokerId, topics: list[client.TopicDescription]) -> dict[str, int]:
    partitions = [partition for topic in topics for partition in topic.partitions]
    leaders = Counter(partition.leader for partition in partitions)
    return {"leaders": leaders[broker_id], "replicas": sum(broker_id in each.replicas for each in partitions)}


def _size(log_dir: client.LogDirDescription) -> int:
    return sum(replica.size_bytes for replica in log_dir.replicas.values())


def _log_dir_row(log_dir: client.LogDirDescription) -> dict[str, Any]:
    return {
        "log_dir": log_dir.path,
        "state": "online" if log_dir.error is None else f"offline: {log_dir.error}",
        "replicas": len(log_dir.replicas),
        "size_bytes": _size(log_dir),
        "usable_bytes": log_dir.usable_bytes if log_dir.usable_bytes >= 0 else None,
        "total_bytes": log_dir.total_bytes if log_dir.total_bytes >= 0 else None,
    }
