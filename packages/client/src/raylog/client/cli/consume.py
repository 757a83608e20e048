"""``raylog consume``: records of a topic as lines, alone or as a member of a consumer group."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from raylog import client
from raylog.client.cli.terminal.common import (
    TIMEOUT_MS,
    Bootstrap,
    Config,
    DataDir,
    Topic,
    client_settings,
    milliseconds,
    parsed_number,
    servers_of,
    tell,
)
from raylog.client.cli.terminal.endings import ended_by_signals
from raylog.client.cli.terminal.records import formatter
from raylog.client.read_errors import PositionLost
from raylog.protocol.errors import (
    IllegalGeneration,
    InvalidPartitions,
    InvalidRequest,
    RequestTimedOut,
    UnknownMemberId,
)

_POLL_MS = 1_000
Partitions = list[tuple[str, int]]


class Deserializer(StrEnum):
    """How keys or values were written."""

    BYTES = "bytes"
    MSGPACK = "msgpack"


_BYTES = Deserializer.BYTES


def consume(
    topic: Topic,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", min=0, help="Only this one; repeatable. Default: all.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="ID",
            help="As a member of this group: share the topic with the others, commit what is printed, go on there.",
        ),
    ] = None,
    from_beginning: Annotated[
        bool,
        typer.Option("--from-beginning", help="As --offset beginning; with --group, where nothing is committed."),
    ] = False,
    offset: Annotated[
        str | None,
        typer.Option(
            "--offset",
            metavar="N|-N|beginning|end",
            help="Begin at offset N (needs --partition), N records before the end, or at an end. Default: end.",
        ),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option("--timestamp", metavar="MS|ISO", help="Begin with the first record at or after this time."),
    ] = None,
    max_messages: Annotated[int | None, typer.Option(min=1, help="End after this many records.")] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="End where the partitions end now, instead of waiting for more.")
    ] = False,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="value|json|TEMPLATE",
            help="The value, a JSON object a line, or kcat's template: %t topic, %p partition, %o offset, %k key, "
            "%s value, %T timestamp, %h headers, %K and %S sizes, \\n, \\t.",
        ),
    ] = "value",
    key_deserializer: Annotated[Deserializer, typer.Option(help="What keys are; as --value-deserializer.")] = _BYTES,
    value_deserializer: Annotated[
        Deserializer, typer.Option(help="What values are: msgpack, as our Python producer writes, is shown as JSON.")
    ] = _BYTES,
    config: Config = None,
    data_dir: DataDir = None,
    bootstrap_server: Bootstrap = None,
) -> None:
    """Print records as they come, until interrupted, the given number is reached, or with --until-end the end."""
    place = _place(from_beginning, offset, timestamp, partition)
    line = formatter(format_)
    settings: dict[str, Any] = {
        "default.api.timeout.ms": TIMEOUT_MS,
        "key_deserializer": key_deserializer.value,
        "value_deserializer": value_deserializer.value,
        **client_settings(config),
    }
    if group is not None:
        _check_alone(partition, offset, timestamp, until_end)
        settings.setdefault("auto.offset.reset", "earliest" if from_beginning else "latest")
        servers = servers_of(data_dir, bootstrap_server)
        with (
            ended_by_signals(),
            client.Consumer(servers, [topic], group_id=group, enable_auto_commit=False, **settings) as consumer,
        ):
            print_records(consumer, line, max_messages, None, lambda: _commit(consumer))
        return
    if offset is not None and parsed_number(place) is not None:
        settings.setdefault("auto.offset.reset", "none")
    with ended_by_signals(), client.Consumer(servers_of(data_dir, bootstrap_server), **settings) as consumer:
        chosen = _chosen(consumer, topic, partition)
        consumer.assign(chosen)
        if place or "auto.offset.reset" not in settings:
            _seek(consumer, chosen, place)
        ends = Ends(consumer, chosen) if until_end else None
        print_records(consumer, line, max_messages, ends)


def _check_alone(partition: list[int] | None, offset: str | None, timestamp: str | None, until_end: bool) -> None:
    """A group says itself what its members read, and from where on. Raises InvalidRequest."""
    given = {"--partition": partition, "--offset": offset, "--timestamp": timestamp, "--until-end": until_end}
    for option, value in given.items():
        if value:
            raise InvalidRequest(
                f"a group gives its members partitions and goes on where it was: leave {option} out, "
                "or --group; `raylog groups reset-offsets` lets a group read on from somewhere else"
            )


def _commit(consumer: client.Consumer) -> None:
    """Commit what was printed. Where that fails, the next commit may succeed, or another member reads it again."""
    try:
        consumer.commit()
    except (IllegalGeneration, RequestTimedOut, UnknownMemberId) as error:
        tell(f"printed, but not committed: {error}")


def _place(from_beginning: bool, offset: str | None, timestamp: str | None, partition: list[int] | None) -> str:
    """Where to begin: a word, an offset, or ``@`` and a time in ms; empty when nobody said. Raises InvalidRequest."""
    if from_beginning + (offset is not None) + (timestamp is not None) > 1:
        raise InvalidRequest("where to begin? give one of --from-beginning, --offset and --timestamp")
    if from_beginning:
        return "beginning"
    if timestamp is not None:
        return f"@{milliseconds(timestamp, '--timestamp')}"
    if offset is None:
        return ""
    place = {"earliest": "beginning", "latest": "end"}.get(offset, offset)
    if place not in ("beginning", "end") and parsed_number(place) is None:
        raise InvalidRequest(f"--offset {offset!r} is neither a number, beginning nor end")
    if place[0].isdigit() and not partition:
        raise InvalidRequest(f"--offset {offset} of which partition? give --partition, too")
    return place


def _chosen(consumer: client.Consumer, topic: str, wanted: list[int] | None) -> Partitions:
    known = consumer.partitions_for(topic)
    unknown = [number for number in wanted or () if number not in known]
    if unknown:
        raise InvalidPartitions(f"{topic} has partitions 0 to {len(known) - 1}, not {unknown[0]}")
    return [(topic, number) for number in wanted or known]


def _seek(consumer: client.Consumer, partitions: Partitions, place: str) -> None:
    if place == "beginning":
        consumer.seek_to_beginning()
    elif place in ("", "end"):
        consumer.seek_to_end()
    elif place.startswith("@"):
        ends = consumer.end_offsets(partitions)
        for tp, found in consumer.offsets_for_times(dict.fromkeys(partitions, int(place[1:]))).items():
            consumer.seek(*tp, ends[tp] if found is None else found.offset)
    elif place.startswith("-"):
        first = consumer.beginning_offsets(partitions)
        for tp, end in consumer.end_offsets(partitions).items():
            consumer.seek(*tp, max(first[tp], end + int(place)))
    else:
        first, wanted = consumer.beginning_offsets(partitions), int(place)
        for tp, end in consumer.end_offsets(partitions).items():
            if not first[tp] <= wanted <= end:
                raise PositionLost(tp, wanted, first[tp], end)
            consumer.seek(*tp, wanted)


class Ends:
    """Where the partitions end now: there is nothing to print at or behind it."""

    def __init__(self, consumer: client.Consumer, partitions: Partitions) -> None:
        self._consumer = consumer
        self.of = consumer.end_offsets(partitions)

    def reached(self) -> bool:
        """True when all positions are at or behind the ends."""
        return all(self._consumer.position(*tp) >= end for tp, end in self.of.items())


def print_records(
    consumer: client.Consumer,
    line: Callable[[Any], bytes],
    max_messages: int | None,
    ends: Ends | None,
    printed: Callable[[], None] = lambda: None,
) -> None:
    """Write records to stdout as they come, up to ``max_messages`` or to the ``ends``; without both, for ever.

    ``printed`` is called when all that was polled is written.
    """
    left = max_messages
    while (left is None or left > 0) and not (ends is not None and ends.reached()):
        polled = consumer.poll(_POLL_MS, max_records=left)
        for tp, records in polled.items():
            if ends is not None:
                records = [record for record in records if record.offset < ends.of[tp]]
            sys.stdout.buffer.writelines(map(line, records))
            left = None if left is None else left - len(records)
        sys.stdout.buffer.flush()
        if polled:
            printed()
