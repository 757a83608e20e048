"""◆ The steps by which a sink writes one batch, each of which may be the last one of its process.

Exactly one thing tells how far the sink is, the *mark*: batch N is next, or batch N is planned. Where it is gone nobody
guesses: files may be deleted, and the log forgets.

1. *Stage*: the rows go into files. What the query would compute the next time may differ; the files stay.
2. *Plan*: one file tells who sends which of them under which names, and how many rows there are. It is there as a
   whole or not at all, and there is one: of two processes the second takes the first one's.
3. *Settle*: older marks go. From here on the plan alone tells, and who deletes it has no mark.
4. *Send*, as the plan says. What an earlier try left in the log is not sent again.
5. *Next*: the mark of the batch after, atomic too. Then the rows go.

A try of which a task still sends is overtaken: it sends first what the next try, whose records are cut otherwise, would
have sent too. The brokers refuse that (the sequence numbers are out of order), and step 4 begins again behind it.

Whoever comes after a death goes on from the mark: next, from 1; planned, from 3; a later batch is next, nothing to do.

| deleted | becomes |
|---|---|
| the plan, before 3 | nothing was sent: a new plan |
| the plan, from 3 on | no mark: DataLoss |
| files of rows, before 5 | FileNotFoundError |
| the mark after 5 | the plan is there: what it has written is read in the log; without that, or the rows, an error |
| all of them | no mark: DataLoss. Without the directory, too: a sink that begins |
| records of the batch, from the log | DataLoss before 5, nothing after it |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from raylog.client.produce.producer_state import Identity
from raylog.client.ranges.offset_ranges import DataLoss
from raylog.protocol.ids import TopicPartition
from raylog.protocol.logs import Logger
from raylog.spark.writing.sink_plan import BatchPlan, Target

log = Logger(__name__)

Written = Mapping[Identity, Mapping[TopicPartition, int]]
"""How many records each producer has in each partition, of this batch."""


class SentMeanwhile(Exception):
    """The log has more of the batch than was known when its files were sent: an earlier try still sends."""


class Staged(NamedTuple):
    """Rows that lie in files."""

    directory: str
    """Which no other try has."""
    files: Sequence[str]
    row_count: int
    """How many rows were written into them: a file that somebody deletes before it is listed is missed by it alone."""
    topics: Collection[str]
    """Where they go."""


class Mark(NamedTuple):
    """How far the sink is: all before this batch is written."""

    batch_id: int
    plan: BatchPlan | None
    """None until there is one."""


class BatchRows(Protocol):
    """The rows of one batch."""

    def stage(self) -> Staged:
        """Write the rows into files of a directory that nobody else has, and let them stay."""

    def send(self, plan: BatchPlan, written: Written) -> int:
        """Send the plan's files but for what is written; how many records that was, once the brokers have them. Raises
        FileNotFoundError when files are gone, and SentMeanwhile."""


class BatchStore(Protocol):
    """What a sink wrote down, on a file system that outlives its processes."""

    def mark(self) -> Mark | None:
        """The newest one. Raises ValueError when it is another sink's."""

    def begin(self, batch_id: int) -> Mark:
        """Write down that a sink begins with this batch. Raises DataLoss when there is a sink, but no mark of it."""

    def create_plan(self, plan: BatchPlan) -> None:
        """Write the plan down, unless there is one of its batch, which stays."""

    def settle(self, batch_id: int) -> None:
        """Delete all marks but the plan of this batch, and later ones."""

    def mark_next(self, batch_id: int) -> None:
        """Write down that this batch is next; twice does no harm."""

    def sweep(self, batch_id: int) -> None:
        """Delete the rows of that batch, and all of older ones. Its plan stays, so that nobody can make another one."""

    def write_again(self, batch_id: int) -> str:
        """What a user does to have that batch written whole, whatever is there, in one sentence."""


class Topics(Protocol):
    """The brokers."""

    def targets(self, topics: Collection[str]) -> dict[str, Target]:
        """The topics as they are now. Raises UnknownTopicOrPartition."""

    def new_producers(self, count: int) -> list[Identity]:
        """Producers that no plan has ever named."""

    def written(self, plan: BatchPlan) -> Written:
        """What is in the log of this batch. Raises DataLoss when the log can't tell any more."""


def write_batch(
    batch_id: int, rows: BatchRows, store: BatchStore, topics: Topics, *, topic: str | None, batch_size: int
) -> int | None:
    """Write the batch unless that is done; how many records were sent now, or None when it was.

    Batches come in the order of their ids, each after the one before was written, as Spark's do; ids may be left out.
    Raises RuntimeError where that is not so, ValueError when another sink writes here, FileNotFoundError for rows that
    are gone, DataLoss when nobody can tell any more what an earlier try has written, and SentMeanwhile when the brokers
    refuse records as out of order and have no further ones of the batch.
    """
    mark = store.mark() or store.begin(batch_id)
    if _is_written(mark, batch_id):
        store.sweep(batch_id)  # whoever marked it may have died over this
        return None
    plan, is_new = mark.plan, False
    if plan is None:
        planned = make_plan(batch_id, rows.stage(), topics, topic, batch_size)
        store.create_plan(planned)
        found = store.mark()
        if found is not None and _is_written(found, batch_id):
            return None  # by another process, while this one staged
        plan = found.plan if found is not None else None
        if plan is None:
            raise RuntimeError(f"the plan of batch {batch_id} is gone: somebody deletes files of the sink")
        is_new = plan.rows == planned.rows
    store.settle(batch_id)
    written: Written = {} if is_new else _written(plan, store, topics)
    before = _count_of(written)
    there = _send(plan, rows, written, store, topics)
    if there != plan.row_count:
        raise FileNotFoundError(
            f"batch {batch_id}: it has {plan.row_count} rows, and its files {there}: one is gone, and only the sink "
            f"may delete files there; {store.write_again(batch_id)}"
        )
    after = store.mark()
    if after is None or after.plan == plan:
        store.mark_next(batch_id + 1)
    elif after.batch_id <= batch_id:
        raise RuntimeError(f"batch {batch_id} was begun anew while this process sent it, which has not stopped before")
    store.sweep(batch_id)
    return there - before


def _send(plan: BatchPlan, rows: BatchRows, written: Written, store: BatchStore, topics: Topics) -> int:
    """Send what is not written; how many records of the batch the brokers have then.

    It begins again only when an earlier try has sent records meanwhile, and so ends: those are the batch's.
    """
    while True:
        try:
            return rows.send(plan, written) + _count_of(written)
        except SentMeanwhile as error:
            found = _written(plan, store, topics)
            if _count_of(found) <= _count_of(written):
                raise
            log.warning("%s; goes on behind its %d records", error, _count_of(found))
            written = found


def _count_of(written: Written) -> int:
    return sum(count for of_producer in written.values() for count in of_producer.values())


def make_plan(batch_id: int, staged: Staged, topics: Topics, topic: str | None, batch_size: int) -> BatchPlan:
    """A plan for what is staged, under names of its own."""
    producers = topics.new_producers(len(staged.files))
    files = dict(zip(sorted(staged.files), producers, strict=True))
    return BatchPlan(
        batch_id, topic, staged.directory, files, staged.row_count, topics.targets(staged.topics), batch_size
    )


def _is_written(mark: Mark, batch_id: int) -> bool:
    """Whether the mark says so of this batch. Raises RuntimeError when it is not this batch's turn."""
    if mark == (batch_id + 1, None):
        return True
    if mark.batch_id > batch_id:
        raise RuntimeError(
            f"batch {batch_id} comes, and the sink is at batch {mark.batch_id}: either another query runs with this "
            "checkpoint (stop one), or the checkpoint is an older copy (give the sink a location of its own)"
        )
    if mark.plan is not None and mark.batch_id < batch_id:
        raise RuntimeError(
            f"batch {batch_id} comes, and batch {mark.batch_id} is planned and not known to be written: let what the "
            "sink raises end the query, and start it again"
        )
    return False


def _written(plan: BatchPlan, store: BatchStore, topics: Topics) -> Written:
    try:
        return topics.written(plan)
    except DataLoss as error:
        raise DataLoss(f"{error}: {store.write_again(plan.batch_id)}") from error
