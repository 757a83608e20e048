"""``raylog configs``: what the settings of topics and brokers are and where they come from; change them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from raylog import client
from raylog.client.cli.terminal.common import (
    Bootstrap,
    Config,
    DataDir,
    Output,
    OutputOption,
    admin_of,
    check_settings,
    name_values,
    show_json,
    show_table,
    tell,
    topic_names,
)
from raylog.protocol.errors import InvalidRequest

app = typer.Typer(no_args_is_help=True, help="Show and alter the settings of topics and brokers.")

TopicOption = Annotated[
    str | None, typer.Option("--topic", metavar="NAME", help="Of this topic.", autocompletion=topic_names)
]
BrokerOption = Annotated[int | None, typer.Option("--broker", metavar="ID", min=0, help="Of this broker.")]
AllBrokers = Annotated[bool, typer.Option("--all-brokers", help="Of all brokers that don't have their own.")]


def _changes(option: str, what: str) -> Any:
    return typer.Option(option, metavar="NAME=VALUE", help=f"{what}; repeatable.")


@app.command("describe")
def describe(
    topic: TopicOption = None,
    broker: BrokerOption = None,
    all_brokers: AllBrokers = False,
    all_: Annotated[bool, typer.Option("--all", help="Defaults and a broker's own file, too.")] = False,
    output: OutputOption = Output.TABLE,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Show the settings of a topic or broker that were set; with --all, every one."""
    _one_of(topic, broker, all_brokers)
    with admin_of(data_dir, bootstrap_server) as admin:
        entries = admin.describe_topic_configs(topic) if topic is not None else admin.describe_broker_configs(broker)
    rows = [_row(entry) for entry in entries if all_ or not entry.is_default]
    if output is Output.JSON:
        show_json(rows)
    else:
        shown = ({**row, "value": "(hidden)"} if row["sensitive"] else row for row in rows)
        show_table(shown, "name", "value", "source", "type", "read_only")


@app.command("alter")
def alter(
    topic: TopicOption = None,
    broker: BrokerOption = None,
    all_brokers: AllBrokers = False,
    config: Config = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", metavar="NAME", help="Take a setting away again; repeatable."),
    ] = None,
    append_config: Annotated[list[str] | None, _changes("--append-config", "Add to a list")] = None,
    subtract_config: Annotated[list[str] | None, _changes("--subtract-config", "Take from a list")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the change, but don't make it.")] = False,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Change settings of a topic or broker; those that aren't named stay. It takes effect without a restart."""
    target = _one_of(topic, broker, all_brokers)
    changes: dict[str, str | None] = {**name_values(config), **dict.fromkeys(delete_config or ())}
    lists = {
        "append": name_values(append_config, "--append-config"),
        "subtract": name_values(subtract_config, "--subtract-config"),
    }
    names = sorted({*changes, *lists["append"], *lists["subtract"]})
    if not names:
        raise InvalidRequest(f"nothing to alter on {target}; give --config NAME=VALUE or --delete-config NAME")
    with admin_of(data_dir, bootstrap_server) as admin:
        if delete_config:
            check_settings(target, delete_config, _known(admin, topic, broker))
        if topic is not None:
            admin.alter_topic_configs(topic, changes, **lists, validate_only=dry_run)
        else:
            admin.alter_broker_configs(broker, changes, **lists, validate_only=dry_run)
    tell(f"{'can alter' if dry_run else 'altered'} the settings of {target}: {', '.join(names)}")


def _one_of(topic: str | None, broker: int | None, all_brokers: bool) -> str:
    """What the settings belong to. Raises InvalidRequest unless exactly one thing was named."""
    if (topic is not None) + (broker is not None) + all_brokers != 1:
        raise InvalidRequest("settings of what? give one of --topic NAME, --broker ID and --all-brokers")
    if topic is not None:
        return f"topic {topic}"
    return "all brokers" if all_brokers else f"broker {broker}"


def _known(admin: client.Admin, topic: str | None, broker: int | None) -> list[client.ConfigEntry]:
    """All settings that there are: of all brokers, those of any one."""
    if topic is not None:
        return admin.describe_topic_configs(topic)
    return admin.describe_broker_configs(admin.describe_cluster().brokers[0].broker_id if broker is None else broker)


def _row(entry: client.ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source,
        "type": entry.type,
        "read_only": entry.is_read_only,
        "sensitive": entry.is_sensitive,
        "synonyms": dict(entry.synonyms),
        "documentation": entry.documentation,
    }
