"""Is what a consumer has read still in the log? Asked after every change of leader (KIP-320).

A position is an offset and the leader epoch of the last batch before it. A leader that took over may lack that batch,
as after an unclean election; what it has at these offsets are other records. Its answer to OffsetForLeaderEpoch
(version 4) says where its log ends that epoch. An end below the position is the offset from which the logs
diverge, and fetching from the position would skip, or silently repeat, what others wrote there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kio.schema.offset_for_leader_epoch.v4.response import OffsetForLeaderEpochResponse
from kio.schema.types import BrokerId as KioBrokerId
from kio.schema.types import TopicName as KioTopicName
from kio.static.primitive import i32

from raylog.client.fetch.fetch_state import PartitionBuffer
from raylog.client.fetch.subscription import Place, Subscription
from raylog.client.network.connection import Address, Reply
from raylog.client.network.network import Network
from raylog.client.read_errors import LogTruncated
from raylog.client.requests.offset_queries import by_topic
from raylog.protocol.errors import RaylogError, UnsupportedVersion, exception_for, is_retriable
from raylog.protocol.ids import EARLIEST, LATEST, PartitionIndex, TopicName, TopicPartition
from raylog.protocol.logs import Logger
from raylog.protocol.wire.messages import decode_response

log = Logger(__name__)


class EpochEnd(NamedTuple):
    """The largest epoch of the leader's log at or below the one asked for, and the offset after its last record; -1
    and -1 when there is none."""

    epoch: int
    end: int


class EpochQuestion(NamedTuple):
    """What an OffsetForLeaderEpoch under way asked for, by partition."""

    asked: Mapping[TopicPartition, _Asked]


class _Asked(NamedTuple):
    generation: int
    epoch: int
    leader_epoch: int


class EpochChecks:
    """Validates the fetch positions of ``buffers``; what the user must be told goes to ``complain``, partitions to
    be left alone for a while to ``rest``."""

    def __init__(
        self,
        network: Network,
        subscription: Subscription,
        buffers: Mapping[TopicPartition, PartitionBuffer],
        complain: Callable[[TopicPartition, RaylogError], None],
        rest: Callable[[TopicPartition], None],
    ) -> None:
        self._network = network
        self._subscription = subscription
        self._buffers = buffers
        self._complain = complain
        self._rest = rest
        self._asking: dict[TopicPartition, int] = {}
        """Partitions whose answer is under way: the generation that asked."""

    def needed(self, buffer: PartitionBuffer) -> bool:
        """True while nothing must be fetched: the leader changed since the position was known to be in its log."""
        leader_epoch = self._network.metadata.view.leader_of(buffer.place.tp)[1]
        if buffer.fetch_epoch < 0 or buffer.fetch_epoch >= leader_epoch:
            return False
        return buffer.valid_for != leader_epoch

    def ask(self, wanted: Mapping[Address, list[PartitionBuffer]]) -> bool:
        """Ask leaders about these. True when some can't be asked yet."""
        blocked = False
        view = self._network.metadata.view
        for address, buffers in wanted.items():
            new = [buffer for buffer in buffers if self._asking.get(buffer.place.tp) != buffer.generation]
            if not new:
                continue
            if not self._network.ready(address):
                blocked = True
                continue
            asked = {b.place.tp: _Asked(b.generation, b.fetch_epoch, view.leader_of(b.place.tp)[1]) for b in new}
            self._asking.update((tp, question.generation) for tp, question in asked.items())
            self._network.send(address, _request(asked), EpochQuestion(asked))
        return blocked

    def forget(self) -> None:
        """No answer comes to what was asked."""
        self._asking.clear()

    def take(self, reply: Reply, question: EpochQuestion) -> None:
        """The answer, or what came instead of it."""
        for tp, asked in question.asked.items():
            if self._asking.get(tp) == asked.generation:
                del self._asking[tp]
        answers: Mapping[TopicPartition, EpochEnd | RaylogError]
        try:
            answers = _answers(reply)
        except RaylogError as error:
            answers = dict.fromkeys(question.asked, error)
        for tp, asked in question.asked.items():
            buffer, answer = self._buffers.get(tp), answers.get(tp)
            if buffer is None or buffer.generation != asked.generation or buffer.fetch_epoch != asked.epoch:
                continue  # asked anew, where it is still needed
            if isinstance(answer, EpochEnd):
                self._compare(buffer, answer, asked)
            elif isinstance(answer, UnsupportedVersion):
                buffer.valid_for = asked.leader_epoch  # a broker from before KIP-320: there is nobody to ask
            else:
                self._network.metadata.need_update()
                self._rest(tp)
                if answer is not None and not is_retriable(answer):
                    self._complain(tp, answer)

    def _compare(self, buffer: PartitionBuffer, answer: EpochEnd, asked: _Asked) -> None:
        place = buffer.place
        position = place.position
        if position is None:
            return
        if answer.end >= buffer.fetch_offset:
            buffer.valid_for = asked.leader_epoch
        elif answer.end >= position:
            # What was fetched ahead is of a log that was given up: the user hasn't seen it, and gets the new one.
            place.seek(position, min(place.epoch, answer.epoch))
        else:
            self._go_on(place, LogTruncated(place.tp, position, place.epoch, answer.end), answer)

    def _go_on(self, place: Place, lost: LogTruncated, answer: EpochEnd) -> None:
        """Where the logs diverge, or as auto.offset.reset says where the leader knows no epoch that old or young."""
        reset = self._subscription.reset
        if reset is None:
            place.truncated(lost)
            return
        if answer.end < 0:
            place.seek_to(reset)
            where = {EARLIEST: "the start", LATEST: "the end"}.get(reset, "the time that auto.offset.reset says")
        else:
            place.seek(answer.end, answer.epoch)
            where = f"offset {answer.end}"
        log.warning("%s; reading on from %s", lost, where)


def _request(asked: Mapping[TopicPartition, _Asked]) -> OffsetForLeaderEpochRequest:
    topics = by_topic(
        asked,
        lambda tp, question: OffsetForLeaderPartition(
            partition=i32(tp.partition),
            current_leader_epoch=i32(question.leader_epoch),
            leader_epoch=i32(question.epoch),
        ),
    )
    return OffsetForLeaderEpochRequest(
        replica_id=KioBrokerId(-1),
        topics=tuple(
            OffsetForLeaderTopic(topic=KioTopicName(name), partitions=tuple(partitions))
            for name, partitions in topics.items()
        ),
    )


def _answers(reply: Reply) -> dict[TopicPartition, EpochEnd | RaylogError]:
    """What came per partition. Raises what hit the whole request."""
    if reply.error is not None:
        raise reply.error
    _, entity = decode_response(reply.request.api_key, reply.request.version, reply.frame)
    answers: dict[TopicPartition, EpochEnd | RaylogError] = {}
    for topic in cast(OffsetForLeaderEpochResponse, entity).topics:
        for partition in topic.partitions:
            tp = TopicPartition(TopicName(topic.topic), PartitionIndex(partition.partition))
            code = partition.error_code.value
            if code:
                answers[tp] = exception_for(code, f"{tp}: asking where a leader epoch ends")
            else:
                answers[tp] = EpochEnd(partition.leader_epoch, partition.end_offset)
    return answers
