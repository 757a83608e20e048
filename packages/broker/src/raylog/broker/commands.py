"""`raylog up`, `raylog down` and `raylog status`, plugged into the `raylog` command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.table import Table

from raylog.broker import supervisor
from raylog.broker.cluster_file import ClusterFile, find_cluster, raylog_home
from raylog.protocol.errors import InvalidConfig, RaylogError

__all__ = ["register"]

P = ParamSpec("P")

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="The cluster's directory; default: the only one that runs."),
]

Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap-server", metavar="HOST:PORT", help="The address of one of its brokers.")
]


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", help="A table for people, or JSON for programs.")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(_reporting(up))
    app.command()(_reporting(down))
    app.command()(_reporting(status))


def up(
    brokers: Annotated[int | None, typer.Option(min=1, help="How many brokers; 3 for a new cluster.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where everything is kept; default: ~/.raylog/data.")
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,…/CHROOT", help="Use this ZooKeeper instead of an embedded one."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT|auto", help="Join this running Ray cluster instead of starting one."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="A broker setting, repeatable. With a fixed port in listeners, broker N listens at port + N.",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Bring a cluster up, on a Ray cluster of its own or on a running one; return once clients can connect."""
    request = supervisor.Request(data_dir or raylog_home() / "data", brokers, zookeeper, address, _parse_config(config))
    cluster, started = supervisor.up(request)
    if not started:
        typer.echo(f"raylog: the cluster in {cluster.data_dir} is up already; nothing was changed", err=True)
    if output is Output.JSON:
        _print_json(_summary(cluster))
    else:
        _print_up(cluster)


def down(data_dir: DataDir = None, bootstrap_server: Bootstrap = None) -> None:
    """Take a cluster down; its data stays, and `raylog up` brings it back."""
    cluster = find_cluster(data_dir, bootstrap_server)
    supervisor.down(cluster)
    typer.echo(f"raylog: the cluster in {cluster.data_dir} is down; its data stays there", err=True)


def status(data_dir: DataDir = None, bootstrap_server: Bootstrap = None, output: OutputOption = Output.TABLE) -> None:
    """Show a cluster: its addresses and its brokers."""
    facts = supervisor.status(find_cluster(data_dir, bootstrap_server))
    if output is Output.JSON:
        _print_json(facts)
    else:
        _print_status(facts)


def _reporting(command: Callable[P, None]) -> Callable[P, None]:
    """The command with its errors as one line on stderr and exit code 1."""

    @wraps(command)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except RaylogError as error:
            typer.echo(f"raylog: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(1) from error

    return reporting


def _parse_config(items: Sequence[str] | None) -> dict[str, str] | None:
    if items is None:
        return None
    config = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise InvalidConfig(f"--config {item!r} must be NAME=VALUE")
        config[name.strip()] = value
    return config


def _summary(cluster: ClusterFile) -> dict[str, Any]:
    return {
        "cluster_id": cluster.cluster_id,
        "bootstrap_servers": cluster.bootstrap_servers,
        "zookeeper": cluster.zookeeper.connect,
        "dashboard_url": cluster.ray.dashboard_url,
        "data_dir": cluster.data_dir,
    }


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))


def _print_up(cluster: ClusterFile) -> None:
    rows = {
        "bootstrap servers": cluster.bootstrap_servers,
        "ZooKeeper": cluster.zookeeper.connect,
        "Ray": f"{cluster.ray.address} ({cluster.ray.mode})",
        "dashboard": cluster.ray.dashboard_url or "-",
        "token for Ray in": cluster.ray.auth_token_path or "-",
        "data": cluster.data_dir,
    }
    for name, value in rows.items():
        typer.echo(f"{name:<18} {value}")


def _print_status(facts: dict[str, Any]) -> None:
    for name in ("cluster_id", "bootstrap_servers", "zookeeper", "dashboard_url", "ray_auth_token_path", "data_dir"):
        typer.echo(f"{name:<19} {facts[name] or '-'}")
    table = Table("id", "address", "place", "pid", "partitions", "controller", "state")
    for broker in facts["brokers"]:
        table.add_row(
            str(broker["id"]),
            f"{broker['host']}:{broker['port']}",
            broker["place"],
            str(broker["pid"] or "-"),
            str(broker["partitions"]),
            "yes" if broker["controller"] else "",
            broker["state"] + (f": {broker['trouble']}" if broker["trouble"] else ""),
        )
    Console().print(table)
