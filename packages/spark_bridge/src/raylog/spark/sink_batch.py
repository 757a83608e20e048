"""◆ The steps by which a sink writes one batch, each of which may be the last one of its process.

1. *Stage*: the rows go into files. What the query would compute the next time may differ; the files stay.
2. *Plan*: one file tells who sends which of them under which names. It is there as a whole or not at all, and there is
   one: of two processes the second takes the first one's.
3. *Send*, as the plan says. What an earlier try left in the log is not sent again.
4. *Done*: a mark, atomic too. Then the files go.

Whoever comes after a death goes on from what is there: no plan, from 1; a plan, from 3; the mark, nothing to do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from raylog.client.producer_state import Identity
from raylog.protocol.ids import TopicPartition
from raylog.spark.sink_plan import BatchPlan, Done, Target

Written = Mapping[Identity, Mapping[TopicPartition, int]]
"""How many records each producer has in each partition, of this batch."""


class Staged(NamedTuple):
    """Rows that lie in files."""

    directory: str
    files: Sequence[str]
    topics: Collection[str]
    """Where they go."""


class BatchRows(Protocol):
    """The rows of one batch."""

    def stage(self) -> Staged:
        """Write the rows into files of a directory that nobody else has, and let them stay."""

    def send(self, plan: BatchPlan, written: Written) -> int:
        """Send the plan's files but for what is written; how many records that was, once the brokers have them."""


class BatchStore(Protocol):
    """What a sink wrote down, on a file system that outlives its processes."""

    def last_done(self) -> Done | None:
        """The newest mark."""

    def plan(self, batch_id: int) -> BatchPlan | None:
        """The plan of that batch."""

    def create_plan(self, plan: BatchPlan) -> bool:
        """Write the plan down; False when there is one already, which stays."""

    def mark_done(self, done: Done) -> None:
        """Write the mark down; twice does no harm."""

    def sweep(self, done: Done) -> None:
        """Delete what nobody needs once ``done`` is marked. Its own plan stays, so that nobody can make another one."""


class Topics(Protocol):
    """The brokers."""

    def targets(self, topics: Collection[str]) -> dict[str, Target]:
        """The topics as they are now. Raises UnknownTopicOrPartition."""

    def new_producers(self, count: int) -> list[Identity]:
        """Producers that nobody else is."""

    def written(self, plan: BatchPlan) -> Written:
        """What is in the log of this batch. Raises DataLoss when the log can't tell any more."""


def write_batch(
    batch_id: int, rows: BatchRows, store: BatchStore, topics: Topics, *, topic: str | None, batch_size: int
) -> int | None:
    """Write the batch unless that is done; how many records were sent now, or None when it was.

    Batches come in the order of their ids, each after the one before was written, as Spark's do. Raises ValueError
    when another sink writes here.
    """
    done = store.last_done()
    if done is not None and done.topic != topic:
        raise ValueError(
            f"a sink to {_name(done.topic)} has written batch {done.batch_id} here, this one writes to {_name(topic)}: "
            "give each sink a location of its own"
        )
    if done is not None and batch_id <= done.batch_id:
        store.sweep(done)  # whoever marked it may have died over this
        return None
    plan, is_new = store.plan(batch_id), False
    if plan is None:
        planned = make_plan(batch_id, rows.stage(), topics, done, batch_size)
        is_new = store.create_plan(planned)
        done = store.last_done()
        if done is not None and batch_id <= done.batch_id:
            return None  # by another process, while this one staged
        plan = planned if is_new else store.plan(batch_id)
        if plan is None:
            raise RuntimeError(f"the plan of batch {batch_id} is gone: somebody deletes files of the sink")
    sent = rows.send(plan, {} if is_new else topics.written(plan))
    store.mark_done(marked := _done(plan, topic, done))
    store.sweep(marked)
    return sent


def make_plan(batch_id: int, staged: Staged, topics: Topics, done: Done | None, batch_size: int) -> BatchPlan:
    """A plan for what is staged, after the batch that is ``done``."""
    producers = done.successors() if done is not None else []
    missing = len(staged.files) - len(producers)
    if missing > 0:
        producers += topics.new_producers(missing)
    files = dict(zip(sorted(staged.files), producers, strict=False))
    return BatchPlan(batch_id, staged.directory, files, topics.targets(staged.topics), batch_size)


def _done(plan: BatchPlan, topic: str | None, before: Done | None) -> Done:
    """The mark of the plan's batch. Producers that it did not need stay for the next one."""
    producers = tuple(plan.files.values())
    used = {identity.producer_id for identity in producers}
    spare = [identity for identity in (before.producers if before else ()) if identity.producer_id not in used]
    return Done(plan.batch_id, topic, (*producers, *spare))


def _name(topic: str | None) -> str:
    return "the topics that rows name" if topic is None else f"topic {topic!r}"
