"""Where places begin that have no position yet: at an end of the log, or beside what was lost, as leaders tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from raylog.client.fetch.leaders import Leaders
from raylog.client.fetch.subscription import Place, Subscription
from raylog.client.network.connection import Address, Reply
from raylog.client.network.network import Network
from raylog.client.requests.offset_queries import list_offsets_request, read_list_offsets
from raylog.protocol.errors import OffsetOutOfRange, RaylogError, is_retriable
from raylog.protocol.ids import TopicPartition
from raylog.protocol.logs import Logger

log = Logger(__name__)


class OffsetQuestion(NamedTuple):
    """What a ListOffsets under way asked for."""

    end: int
    generations: dict[TopicPartition, int]


class OffsetSearches:
    """Asks for the offsets that places of ``subscription`` look for. What the user must be told goes to
    ``complain``."""

    def __init__(
        self,
        network: Network,
        subscription: Subscription,
        leaders: Leaders,
        complain: Callable[[TopicPartition, RaylogError], None],
        isolation_level: int,
    ) -> None:
        self._network = network
        self._subscription = subscription
        self._leaders = leaders
        self._complain = complain
        self._isolation_level = isolation_level
        self._asking: dict[tuple[TopicPartition, int], int] = {}
        """Offsets asked for and not answered: the generation that asked."""

    def ask(self, places: Iterable[Place], now_ms: int) -> bool:
        """Ask leaders for what these look for. True when some can't be asked yet."""
        wanted: dict[tuple[Address, int], list[Place]] = {}
        blocked = False
        for place in places:
            if place.position is not None:
                continue
            try:
                ends = place.questions()
            except OffsetOutOfRange as error:
                self._complain(place.tp, error)
                continue
            for end in ends:
                if self._asking.get((place.tp, end)) == place.generation:
                    continue
                address = self._leaders.address(place.tp, now_ms)
                if address is None or self._leaders.rests(place.tp, now_ms) or not self._network.ready(address):
                    blocked = True
                else:
                    wanted.setdefault((address, end), []).append(place)
        for (address, end), places in wanted.items():
            for place in places:
                self._asking[place.tp, end] = place.generation
            epochs = {place.tp: self._network.metadata.view.leader_of(place.tp)[1] for place in places}
            message = list_offsets_request({place.tp: end for place in places}, epochs, self._isolation_level)
            self._network.send(address, message, OffsetQuestion(end, {p.tp: p.generation for p in places}))
        return blocked

    def forget(self) -> None:
        """No answer comes to what was asked."""
        self._asking.clear()

    def take(self, reply: Reply, question: OffsetQuestion) -> None:
        """The answer, or what came instead of it."""
        for tp, generation in question.generations.items():
            if self._asking.get((tp, question.end)) == generation:
                del self._asking[tp, question.end]
        try:
            answers = read_list_offsets(reply)
        except RaylogError as error:
            self._network.metadata.need_update()
            answers = dict.fromkeys(question.generations, error)
        for tp, answer in answers.items():
            place = self._subscription.get(tp)
            if place is None or place.generation != question.generations.get(tp) or place.position is not None:
                continue
            if isinstance(answer, RaylogError):
                self._network.metadata.need_update()
                self._leaders.rest(tp)
                if not is_retriable(answer):
                    self._complain(tp, answer)
                continue
            try:
                jump = place.answer(question.end, answer[0], answer[2])
            except OffsetOutOfRange as error:
                self._complain(tp, error)
            else:
                if jump is not None:
                    where = (
                        "the time that auto.offset.reset says" if jump.position is None else f"offset {jump.position}"
                    )
                    log.warning("%s; reading on from %s", jump.lost, where)
