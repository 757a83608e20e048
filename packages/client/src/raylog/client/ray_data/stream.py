"""A topic as Arrow tables without an end, whose progress is a consumer group's: see docs/groups.md."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from re import Pattern
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from raylog.client.admin import Admin
from raylog.client.arguments import arguments as given
from raylog.client.batches.decode import schema_of
from raylog.client.cluster import connect
from raylog.client.consumer import Consumer
from raylog.client.fetch.consumer_config import consumer_settings
from raylog.client.groups.group_consumer import RebalanceListener
from raylog.client.ranges.offset_ranges import DataLoss
from raylog.client.read_errors import LogTruncated, PositionLost
from raylog.protocol.errors import (
    IllegalGeneration,
    InvalidConfig,
    RequestTimedOut,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import TopicId, TopicName, TopicPartition
from raylog.protocol.logs import Logger

_POLL_MS = 500
_LOOK_S = 1.0

_ACCEPT = "or accept the loss with fail_on_data_loss=False"

_SETTLED = ("enable.auto.commit", "enable.auto.offset.store")

log = Logger(__name__)


class TableStream:
    """Iterates over Arrow tables with the columns of ``raylog.client.batches.decode.SCHEMA``, in order by partition.

    Asking for the next table commits the one before, in the group, before anything else is handed out. So whoever dies
    has his last table handed out again, to himself or to another member, and no other: at least once. Leaving ``with``
    commits the last table, unless an exception ends it. For one thread at a time.
    """

    def __init__(
        self, consumer: Consumer, listener: _Listener, columns: Sequence[str] | None, timeout_ms: float | None
    ) -> None:
        """``listener`` is the consumer's; see :func:`stream` for the others."""
        self._consumer = consumer
        self._listener = listener
        self._columns = columns
        self._timeout_ms = timeout_ms
        self._closed = False
        self._handed_out = False
        """Whether a table is in the user's hands that is not committed."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.Table:
        """The next table; ends when none has come for ``timeout_ms``, and after :meth:`close`.

        Raises DataLoss where records were deleted before they were read, unless losses are accepted, and else as a
        consumer's poll.
        """
        if self._closed:
            raise StopIteration
        self.commit()
        deadline = None if self._timeout_ms is None else time.monotonic() + self._timeout_ms / 1_000
        while True:
            left_ms = _POLL_MS if deadline is None else max(0.0, (deadline - time.monotonic()) * 1_000)
            try:
                self._listener.look()
                table = self._consumer.poll_columns(min(left_ms, _POLL_MS), self._columns)
            except (PositionLost, LogTruncated) as error:
                self._listener.go_on(error)
                continue
            except UnknownTopicOrPartition as error:
                self._listener.deleted(error)
                continue
            if len(table):
                self._handed_out = True
                return table
            if deadline is not None and time.monotonic() >= deadline:
                raise StopIteration

    def commit(self) -> None:
        """Commit now what was handed out.

        What was lost to another member meanwhile stays uncommitted: that one reads it again. So does, with a warning,
        what cannot be committed because ZooKeeper does not answer; the next commit makes up for it.
        """
        if not self._handed_out:
            return
        try:
            self._consumer.commit()
            self._handed_out = False
        except (IllegalGeneration, UnknownMemberId, RequestTimedOut) as error:
            log.warning("what was read last is not committed, and may be read again: %s", error)

    def close(self, *, commit: bool = True) -> None:
        """Leave the group, with ``commit`` behind the last table. Twice does no harm."""
        if self._closed:
            return
        self._closed = True
        try:
            if commit:
                self.commit()
        finally:
            self._consumer.close()
            self._listener.admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(commit=error is None)

    def __del__(self) -> None:
        with suppress(AttributeError):  # making it has failed
            self.close(commit=False)


class _Listener(RebalanceListener):
    """Says where partitions begin of which the group has committed nothing, and notices what is lost."""

    def __init__(self, admin: Admin, *, latest: bool, fail_on_data_loss: bool) -> None:
        self.admin = admin
        self.consumer: Consumer | None = None
        self._latest = latest
        self._fail_on_data_loss = fail_on_data_loss
        self._ids: dict[TopicName, TopicId] = {}
        """Of topics that were read: one of the same name is another one."""
        self._given_up: set[TopicName] = set()
        """Topics that were read, and of which nothing is at the moment: deleted, or others read them."""
        self._look_at = 0.0

    def on_assigned(self, partitions: Sequence[TopicPartition], /) -> None:
        assert self.consumer is not None
        new = self._created_anew({tp.topic for tp in partitions})
        for tp, committed in self.consumer.committed(partitions).items():
            if tp.topic in new or (committed is None and not self._latest):
                self.consumer.seek_to_beginning(tp)
            elif committed is None:
                self.consumer.seek_to_end(tp)
                self.consumer.commit({tp: self.consumer.position(*tp)})  # whoever takes over begins here, too
        self._given_up -= {tp.topic for tp in partitions}

    def on_revoked(self, partitions: Sequence[TopicPartition], /) -> None:
        assert self.consumer is not None
        kept = self.consumer.assignment() - set(partitions)
        self._given_up |= {tp.topic for tp in partitions} - {tp.topic for tp in kept}

    on_lost = on_revoked

    def look(self) -> None:
        """See, now and then, whether the topics are still there of which nothing is read any more."""
        if not self._given_up or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK_S
        for topic in sorted(self._given_up):
            try:
                self.admin.describe_topic(topic)
            except UnknownTopicOrPartition as error:
                self._given_up.discard(topic)
                self.deleted(error)

    def go_on(self, lost: PositionLost | LogTruncated) -> None:
        """Behind the loss, with a warning; raises DataLoss unless losses are accepted."""
        assert self.consumer is not None
        if self._fail_on_data_loss:
            raise DataLoss(
                f"{lost.tp}: what follows offset {lost.position} is gone: {lost}: begin elsewhere with "
                f"`raylog groups reset-offsets`, {_ACCEPT}"
            ) from lost
        log.warning("%s; fail_on_data_loss is false, so reading goes on", lost)
        if isinstance(lost, LogTruncated) and lost.diverging_offset >= 0:
            self.consumer.seek(*lost.tp, lost.diverging_offset)
        else:
            self.consumer.seek_to_beginning(lost.tp)

    def deleted(self, gone: UnknownTopicOrPartition) -> None:
        """A topic that was read is not there any more; raises DataLoss unless losses are accepted."""
        if self._fail_on_data_loss:
            raise DataLoss(f"{gone}: deleted while it was read: create it anew, {_ACCEPT}") from gone
        log.warning("%s: deleted while it was read; fail_on_data_loss is false, so it is waited for", gone)

    def _created_anew(self, topics: Iterable[TopicName]) -> set[TopicName]:
        """Those that are not what they were when they were read last; raises DataLoss unless losses are accepted."""
        new = set()
        for topic in sorted(topics):
            found = self.admin.describe_topic(topic).topic_id
            if self._ids.get(topic, found) != found:
                if self._fail_on_data_loss:
                    raise DataLoss(
                        f"topic {topic} was deleted while it was read, and created anew: start again, {_ACCEPT}"
                    )
                log.warning(
                    "topic %s was created anew; fail_on_data_loss is false, so it is read from its start", topic
                )
                new.add(topic)
            self._ids[topic] = found
        return new


def stream(
    topic: str | Pattern[str] | Iterable[str],
    *,
    group: str,
    bootstrap_servers: str | None = None,
    columns: Sequence[str] | None = None,
    auto_offset_reset: str = "earliest",
    fail_on_data_loss: bool = True,
    timeout_ms: float | None = None,
    **config: Any,
) -> TableStream:
    """The records of ``topic``, of several or of all whose whole names match a pattern, as they come.

    Members of the same ``group`` share the partitions, and go on where it has committed; a partition without a commit,
    as a new one, begins at its first record, or with ``auto_offset_reset="latest"`` at its end. A committed offset that
    the log no longer has is DataLoss, never a silent jump, unless ``fail_on_data_loss`` is false: then reading goes on
    at the first record there is. ``columns`` as for :func:`raylog.client.data.read`; ``timeout_ms``: end when nothing
    has come for so long, by default never. ``config`` takes consumer settings with underscores.

    Raises ValueError, and what making a Consumer raises.
    """
    if auto_offset_reset not in ("earliest", "latest"):
        raise ValueError(f"auto_offset_reset={auto_offset_reset!r} must be earliest or latest")
    if not isinstance(group, str):
        raise ValueError(f"group={group!r} must be a name: the group's offsets are the stream's progress")
    if topic is None:
        raise ValueError("topic=None: name one, several, or a pattern")
    given.flag("fail_on_data_loss", fail_on_data_loss)
    given.wait_or_none("timeout_ms", timeout_ms)
    schema_of(columns)
    consumer_settings("checked-elsewhere:1", {**config, "group.id": group})
    for name in config:
        if name.replace("_", ".") in _SETTLED:
            raise InvalidConfig(f"{name} cannot be set here: asking for the next table commits the one before")
    servers = connect().bootstrap_servers if bootstrap_servers is None else bootstrap_servers
    latest = auto_offset_reset == "latest"
    listener = _Listener(Admin(servers), latest=latest, fail_on_data_loss=fail_on_data_loss)
    settings = {**config, "auto_offset_reset": "none", "enable_auto_commit": False, "enable_auto_offset_store": True}
    try:
        listener.consumer = Consumer(servers, topic, group_id=group, listener=listener, **settings)
    except BaseException:
        listener.admin.close()
        raise
    return TableStream(listener.consumer, listener, columns, timeout_ms)
