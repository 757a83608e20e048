"""DeleteRecords: asked of leaders, and noted whatever became of it."""

from __future__ import annotations

import time

from kit.churn.readers import bounds_at_leader
from kit.churn.topics import Log
from kit.churn.world import ChurnThread, Unanswered, World
from kit.history import Type
from raylog.protocol.errors import ErrorCode

__all__ = ["Trimmer", "delete_records"]

DELETE_RECORDS, DELETE_RECORDS_VERSION = 21, 2
ALL = -1


def delete_records(thread: ChurnThread, broker: int, log: Log, offset: int) -> bool:
    """Ask ``broker`` to delete what lies before ``offset`` (-1: all that is committed); whether it says so.

    It is asked by name: where another life of the topic may have got it, or may still get it, that one counts as asked.
    """
    world, topics = thread.world, thread.world.topics
    topic = {"name": log.life.name, "partitions": [{"partition_index": log.index, "offset": offset}]}
    begun = time.monotonic_ns()
    number = world.recorder.invoke(thread.name, "delete", partition=log.number, offset=offset)
    try:
        answer = thread.connections.ask(broker, DELETE_RECORDS, DELETE_RECORDS_VERSION, topics=[topic])
    except Unanswered:
        code, told = ErrorCode.network_exception, -1
    else:
        [part] = answer.topics[0].partitions
        code, told = part.error_code, part.low_watermark
    if code is ErrorCode.none and topics.only(log.life.name, log.index, begun) is log:
        world.recorder.done(thread.name, number, Type.OK, "delete", start=told)
        world.counts[f"{thread.name}: records deleted"] += 1
        if told < offset:
            world.fault(f"DeleteRecords of {log} to {offset} was answered by {told}")
        return True
    topics.may_be_deleted(log, offset)
    if code is not ErrorCode.offset_out_of_range:  # a new leader may not know yet how far its predecessor had committed
        world.judge_code(code, f"DeleteRecords of {log} to {offset}")
    world.counts[f"{thread.name}: records not deleted: {code.name}"] += 1
    return False


class Trimmer(ChurnThread):
    """Deletes a few of the oldest records of some topics, all the time: their segments come and go."""

    LEFT = 80
    STEP = 60

    def __init__(self, world: World, name: str, names: frozenset[str]) -> None:
        super().__init__(world, name)
        self._names = names

    def step(self) -> None:
        self.pause(0.01)
        logs = [log for log in self.world.topics.busy() if log.life.name in self._names]
        if not logs:
            return
        log = self.rng.choice(logs)
        if log.end - log.start <= self.LEFT:
            return
        bounds = bounds_at_leader(self, log)
        if bounds is not None and bounds[2] - bounds[1] > self.LEFT:
            delete_records(self, bounds[0], log, bounds[1] + self.rng.randint(1, self.STEP))
