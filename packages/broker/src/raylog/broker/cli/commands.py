"""`raylog up`, `down`, `status`, `doctor`, `brokers drain`: plugged into the `raylog` command line, which reports their
errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from raylog.broker.launch.cluster_file import ClusterFile, ClusterNotFound, find_cluster, raylog_home, registered
from raylog.coordination.zookeeper.credentials import read_credentials
from raylog.protocol.errors import BrokerNotAvailable, InvalidConfig
from raylog.protocol.tables import as_json, table
from raylog.protocol.texts import host_port

__all__ = ["register"]

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
    for command in (up, down, status, doctor):
        app.command()(command)
    brokers = typer.Typer()
    brokers.callback()(lambda: None)  # else typer takes the only command for the group
    brokers.command()(drain)
    app.add_typer(brokers, name="brokers")


def up(
    brokers: Annotated[int | None, typer.Option(min=1, help="How many brokers; 3 for a new cluster.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where everything is kept; default: ~/.raylog/data.")
    ] = None,
    zookeeper: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,…/CHROOT", help="Use this ZooKeeper instead of an embedded one."),
    ] = None,
    zookeeper_auth_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Credentials for --zookeeper, user:password; closes the znodes to others."),
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
    dashboard: Annotated[
        bool | None,
        typer.Option(
            "--dashboard/--no-dashboard", help="Start Ray with its dashboard or without; default: as it was, or with."
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Bring a cluster up, on a Ray cluster of its own or on a running one; return once clients can connect."""
    supervisor = _load("launch.supervisor")
    if zookeeper_auth_file and not zookeeper:
        raise InvalidConfig("--zookeeper-auth-file is for --zookeeper: the embedded one has credentials of its own")
    auth = read_credentials(zookeeper_auth_file) if zookeeper_auth_file else None
    place = data_dir or raylog_home() / "data"
    request = supervisor.Request(place, brokers, zookeeper, address, _parse_config(config), auth, dashboard)
    cluster, started = supervisor.up(request)
    if not started:
        typer.echo(f"raylog: the cluster in {cluster.data_dir} is up already; nothing was changed", err=True)
    if output is Output.JSON:
        typer.echo(as_json(_summary(cluster)))
    else:
        _print_up(cluster)


def down(data_dir: DataDir = None, bootstrap_server: Bootstrap = None) -> None:
    """Take a cluster down; its data stays, and `raylog up` brings it back."""
    try:
        cluster = find_cluster(data_dir, bootstrap_server)
    except ClusterNotFound:
        if (
            data_dir is None
            or not data_dir.is_dir()
            or not _load("launch.supervisor").end_unfinished(data_dir.absolute())
        ):
            raise
        typer.echo(f"raylog: ended what an unfinished `raylog up` in {data_dir} had started", err=True)
        return
    _load("launch.supervisor").down(cluster)
    typer.echo(f"raylog: the cluster in {cluster.data_dir} is down; its data stays there", err=True)


def status(data_dir: DataDir = None, bootstrap_server: Bootstrap = None, output: OutputOption = Output.TABLE) -> None:
    """Show a cluster: its addresses and its brokers."""
    facts = _load("launch.supervisor").status(find_cluster(data_dir, bootstrap_server))
    if output is Output.JSON:
        typer.echo(as_json(facts))
    else:
        _print_status(facts)


def drain(
    broker_id: int,
    cancel: Annotated[bool, typer.Option("--cancel", help="Let the broker lead again.")] = False,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="How long to wait for the others.")] = 30.0,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let others lead what a broker leads, before it or its node is stopped. Exit code 1 if it still leads some."""
    cluster = find_cluster(data_dir, bootstrap_server)
    remaining = _load("launch.supervisor").drain(cluster, broker_id, timeout, cancel=cancel)
    if output is Output.JSON:
        typer.echo(as_json([{"topic": topic, "partition": index} for topic, index in remaining]))
    if remaining:
        names = ", ".join(f"{topic}-{index}" for topic, index in remaining[:5])
        raise BrokerNotAvailable(
            f"broker {broker_id} leads {len(remaining)} partitions that nobody else can lead now, for no other replica "
            f"is in sync ({names}{', …' if len(remaining) > 5 else ''}): stopped now, it takes them offline"
        )
    done = "may lead again" if cancel else "leads nothing and can be stopped"
    typer.echo(f"raylog: broker {broker_id} {done}", err=True)


def doctor(data_dir: DataDir = None, bootstrap_server: Bootstrap = None, output: OutputOption = Output.TABLE) -> None:
    """Look for what is wrong with a cluster, or in the way of one, and say what to do; exit code 1 if anything is."""
    examination, checks = _load("cli.doctor"), _load("cli.doctor_checks")
    findings = examination.examine(_cluster_to_examine(data_dir, bootstrap_server))
    rows = examination.findings_as_rows(findings)
    if output is Output.JSON:
        typer.echo(as_json(rows))
    else:
        for line, row in zip(table(rows, ("state", "check", "subject", "found")), [None, *rows], strict=True):
            typer.echo(line)
            if row and row["advice"]:
                typer.echo(f"      → {row['advice']}")
    if checks.worst(findings) is checks.State.FAIL:
        raise typer.Exit(1)


def _cluster_to_examine(data_dir: Path | None, bootstrap_server: str | None) -> ClusterFile | None:
    """The cluster that is named or runs, else the only one that ought to run; None when there is none at all."""
    try:
        return find_cluster(data_dir, bootstrap_server)
    except ClusterNotFound:
        known = registered()
        if data_dir is not None or bootstrap_server is not None or len(known) > 1:
            raise
        return known[0] if known else None


def _load(module: str) -> Any:
    """A module that a command needs when it runs: Ray comes with it, which help and completion need not."""
    return import_module(f"raylog.broker.{module}")


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
        "zookeeper_auth_path": cluster.zookeeper.auth_path,
        "dashboard_url": cluster.ray.dashboard_url,
        "data_dir": cluster.data_dir,
    }


def _print_up(cluster: ClusterFile) -> None:
    rows = {
        "bootstrap servers": cluster.bootstrap_servers,
        "ZooKeeper": cluster.zookeeper.connect,
        "its credentials in": cluster.zookeeper.auth_path or "-",
        "Ray": f"{cluster.ray.address} ({cluster.ray.mode})",
        "dashboard": cluster.ray.dashboard_url or "-",
        "token for Ray in": cluster.ray.auth_token_path or "-",
        "data": cluster.data_dir,
    }
    for name, value in rows.items():
        typer.echo(f"{name:<18} {value}")


def _print_status(facts: dict[str, Any]) -> None:
    for name in (
        "cluster_id", "bootstrap_servers", "zookeeper", "zookeeper_auth_path", "dashboard_url", "ray_auth_token_path",
        "data_dir",
    ):  # fmt: skip
        typer.echo(f"{name:<19} {facts[name] or '-'}")
    columns = ("id", "address", "place", "pid", "partitions", "controller", "state")
    rows = [
        broker
        | {
            "address": host_port(broker["host"], broker["port"]),
            "state": broker["state"] + (f": {broker['trouble']}" if broker["trouble"] else ""),
        }
        for broker in facts["brokers"]
    ]
    for line in table(rows, columns):
        typer.echo(line)
