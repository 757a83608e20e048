"""What both consumers do because they may be in a group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from re import Pattern

from raylog.client.arguments import arguments as given
from raylog.client.consumer_core import ConsumerCore
from raylog.client.fetch.consumer_config import GROUP_ID
from raylog.client.fetch.fetch_state import PartitionBuffer
from raylog.client.groups.group_consumer import AnyListener, GroupReader
from raylog.client.groups.group_consumer_core import Offsets
from raylog.client.groups.group_consumer_join import Topics, join_group
from raylog.client.results import ConsumerRecord
from raylog.coordination.metadata.group_model import CommittedOffset
from raylog.protocol.errors import InvalidRequest
from raylog.protocol.ids import Generation, MemberId, TopicPartition

LEAVE_S = 10.0
"""How long closing waits for ZooKeeper; the end of the session tells the group else."""


class NoListener:
    """Nobody is told."""

    def on_assigned(self, partitions: Sequence[TopicPartition], /) -> None: ...

    def on_revoked(self, partitions: Sequence[TopicPartition], /) -> None: ...

    def on_lost(self, partitions: Sequence[TopicPartition], /) -> None: ...


class ConsumerInGroup(ConsumerCore):
    """With ``group.id`` a member of the group from subscribing until unsubscribing; else without one."""

    _group: GroupReader | None = None

    @property
    def member_id(self) -> MemberId:
        """This consumer's name in its group."""
        return self._in_group().member.member_id

    @property
    def generation(self) -> Generation:
        """Of the group's assignment that it follows; -1 before the first."""
        return self._in_group().member.generation

    def may_deliver(self, topic: str, partition: int) -> bool:
        """Whether records of it that were polled may still be processed: it is owned, by the session that claimed it,
        under a lease. False once another may own it, whether or not the listener was told yet. From any thread."""
        (tp,) = given.to_partitions([(topic, partition)])
        return self._in_group().member.may_deliver(tp)

    def store_offsets(self, offsets: Mapping[tuple[str, int], int | CommittedOffset]) -> None:
        """With enable.auto.offset.store=false: these, each one past the last record that was processed, are what a
        commit without offsets, or one by itself, commits. Raises as ``commit`` for what cannot be committed, and
        InvalidRequest for a partition that is not this consumer's."""
        wanted = given.committed_offsets(offsets)
        self._in_group().store(wanted)

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """As the core's; InvalidRequest in a group, which says who reads what."""
        if self._has_group_id:
            raise InvalidRequest(
                "assign: this consumer is in a group, which gives it its partitions; leave group_id out"
            )
        super().assign(partitions)

    def _read_nothing(self) -> None:
        super().assign(())

    def _most(self, max_records: int | None) -> int:
        """How many records a poll returns."""
        return self._max_poll_records if max_records is None else given.number("max_records", max_records, 1)

    def _check_listener(self, listener: AnyListener) -> None:
        given.check_listener(listener)
        if not self._has_group_id and not isinstance(listener, NoListener):
            raise InvalidRequest("listener: only a group's partitions come and go; give group_id, or leave it out")

    @property
    def _has_group_id(self) -> bool:
        return not self._settings.is_default(GROUP_ID)

    def _in_group(self) -> GroupReader:
        self._check()
        if self._group is None:
            raise InvalidRequest("this consumer is in no group: give group_id, subscribe, and do not close it before")
        return self._group

    def _joined(self, topics: Topics, listener: AnyListener) -> GroupReader:
        """Registers; see ``join_group``, which blocks."""
        network = self._network
        return join_group(
            topics,
            self._settings,
            self._subscription,
            listener,
            network.metadata,
            self._came_through,
            network.pool.wakeup,
            self._new_admin,
        )

    def _came_through(self, offsets: Offsets) -> None:
        """They were committed."""
        self._fetcher.counts.commits += 1
        if self._interceptors is not None:
            self._interceptors.on_commit(offsets)

    def _read_in(self, group: GroupReader | None) -> None:
        self._group = group
        self._may_deliver = None if group is None else group.member.may_deliver

    def _one_by_one(self, buffer: PartitionBuffer, records: list[ConsumerRecord]) -> Iterator[ConsumerRecord]:
        """``records``, for who iterates; in a group, up to where it has to be attended to again."""
        chosen = records if self._group is None else self._group.while_owned(buffer.place, records)
        found = buffer.place.one_by_one(buffer.generation, chosen)
        return found if self._interceptors is None else self._interceptors.one_by_one(buffer.place.tp, found)


def named(topics: str | Pattern[str] | Iterable[str | Pattern[str]]) -> Iterator[str]:
    """Topics to be read without a group. Raises InvalidRequest for a pattern."""
    for topic in (topics,) if isinstance(topics, str | Pattern) else given.several("topics", topics):
        if isinstance(topic, Pattern):
            raise InvalidRequest(f"topics matching {topic.pattern!r}: only a group looks for new topics; give group_id")
        yield topic


def committed_offsets(
    offsets: Mapping[tuple[str, int], int | CommittedOffset] | None,
) -> dict[TopicPartition, CommittedOffset] | None:
    """What a user named; None is None."""
    return None if offsets is None else given.committed_offsets(offsets)
