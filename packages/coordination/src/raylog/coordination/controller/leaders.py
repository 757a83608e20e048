"""The controller's jobs about brokers and leaders: who came and went, who is in sync, who is to lead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import replace

from raylog.coordination.control import reassignment
from raylog.coordination.control.leadership import Change, ElectionRules, Standing
from raylog.coordination.control.proposals import (
    DamagedReplica,
    Drain,
    DrainAnswer,
    IsrAnswer,
    Outcome,
    ProposeIsr,
    ReplicasDamaged,
    ReplicasOffline,
    Verdict,
)
from raylog.coordination.controller.events import (
    ElectionRequested,
    Fence,
    NewReplicas,
    Notice,
    ReassignmentRequested,
    Result,
    Wanted,
)
from raylog.coordination.controller.isr import IsrJudge
from raylog.coordination.controller.leader_elections import Elections
from raylog.coordination.controller.office import Job, Office, WriteOutcome
from raylog.coordination.controller.pending_proposals import Proposals
from raylog.coordination.controller.pending_requests import named_twice
from raylog.coordination.controller.topics import check_replicas
from raylog.coordination.controller.writes import MAX_MOVING_TOPIC_BYTES, growth_of, topic_bytes
from raylog.coordination.metadata.model import BrokerInfo, PartitionState, TopicState
from raylog.coordination.store.port import BadVersion, NodeExists, NoNode, Op, StoreError
from raylog.protocol.errors import (
    EligibleLeadersNotAvailable,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    RaylogError,
    UnknownTopicOrPartition,
)
from raylog.protocol.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)

Results = Generator[Wanted, StoreError | None, list[Result]]


class Leaders:
    """Of one mandate. What brokers said of themselves (failed disks, to be drained) is kept in memory alone: they say
    it again to the next controller.
    """

    def __init__(self, office: Office, rules: ElectionRules, proposals: Proposals) -> None:
        self._office = office
        self._rules = rules
        self._proposals = proposals
        self._offline: dict[BrokerId, set[tuple[TopicId, PartitionIndex]]] = {}
        self._leaving: set[BrokerId] = set()
        self._refused: set[TopicName | TopicPartition] = set()

    @property
    def standing(self) -> Standing:
        office = self._office
        unaware, fenced = office.handovers.unaware, office.state.fenced
        return Standing(office.state.brokers, self._offline, self._leaving, unaware, fenced)

    def successor(self, tp: TopicPartition, partition: PartitionState) -> BrokerId:
        """Which broker would lead the partition if its leader died, without a risk; NO_LEADER when none."""
        state, standing = self._office.state, self.standing
        others = {b: info for b, info in standing.brokers.items() if b != partition.leader}
        terms = self._rules.terms(state.topics[tp.topic], state)
        after, risk = self._rules.settled(tp, partition, terms, replace(standing, brokers=others))
        return NO_LEADER if risk else after.leader

    def set_brokers(self, brokers: Mapping[BrokerId, BrokerInfo]) -> Job:
        """These are alive now."""
        self.know_brokers(brokers)
        yield from self.settle()

    def know_brokers(self, brokers: Mapping[BrokerId, BrokerInfo]) -> None:
        """What a former incarnation said does not hold for the next."""
        before = self._office.state.brokers
        for broker_id in [b for b in before if b not in brokers or brokers[b].epoch != before[b].epoch]:
            self._offline.pop(broker_id, None)
            self._leaving.discard(broker_id)
        self._office.now(self._office.state.with_brokers(brokers))
        self._office.peers.set_brokers(brokers)

    def read_anew(self) -> None:
        """What stands in the store was read again: what refused a write is tried again."""
        self._refused.clear()

    @property
    def has_refused(self) -> bool:
        """Whether something refused a write, and is left until the store is read again."""
        return bool(self._refused)

    def settle(self, names: Iterable[TopicName] | None = None) -> Job:
        """Give the partitions (of these topics, or all) the states that they should have.

        A partition or topic whose nodes refuse that, or the end of a reassignment (foreign ones, with rights of their
        own), is left until the store is read again, so that it holds up no other one.
        """
        office = self._office
        changes = [c for c in self._rules.decide(office.state, self.standing, names) if c.tp not in self._refused]
        yield from self._update(change for change in changes if change.old.version != -1)
        fresh: dict[TopicName, list[Change]] = defaultdict(list)
        for change in changes:
            if change.old.version == -1 and change.tp.topic not in self._refused:
                fresh[change.tp.topic].append(change)
        for topic, of_it in sorted(fresh.items()):
            error = yield from self._initialise(topic, of_it)
            if error is None:
                office.take_in(of_it)
            else:
                self._leave(topic, error, "topic has no leaders: its nodes refuse the partitions' states")
        yield from self._complete_reassignments(names)

    def aware(self, broker_id: BrokerId) -> Job:
        """A broker has learned who leads what it led: a drain of it, or a reassignment, may have waited for that."""
        yield from self.settle(None if broker_id in self._leaving else sorted(self._office.moving))

    def _initialise(self, topic: TopicName, fresh: list[Change]) -> WriteOutcome:
        """Partitions whose nodes stand there without a state get the state alone. Answers None or a refusal."""
        writes, state = self._office.writes, self._office.state
        error = yield from self._ensure(writes.parent_of_partitions(topic))
        if error is not None:
            return error
        multis = writes.initialisation(fresh, state)
        error = yield from self._office.write(multis, expected=(NodeExists,), may_be_refused=True)
        if not isinstance(error, NodeExists):
            return error
        for change in fresh:
            error = yield from self._ensure(writes.partition_node(change.tp))
            if error is not None:
                return error
        return (yield from self._office.write(writes.first_states(fresh, state), may_be_refused=True))

    def _update(self, wanted: Iterable[Change]) -> Job:
        """Write these, but for those that are refused: no partition holds up another one."""
        changes = [change for change in wanted if change.tp not in self._refused]
        for chunk in self._office.writes.chunks_of(changes):
            yield from self._update_each(chunk)

    def _update_each(self, chunk: list[Change]) -> Job:
        """All at once; when that is refused, one by one."""
        office = self._office
        error = yield from office.write(office.writes.updates(chunk, office.state), may_be_refused=True)
        if error is None:
            office.take_in(chunk)
        elif len(chunk) == 1:
            self._leave(chunk[0].tp, error, "partition keeps its leader and ISR: its node refuses another state")
        else:
            for change in chunk:
                yield from self._update_each([change])

    def _leave(self, which: TopicName | TopicPartition, error: StoreError, text: str) -> None:
        self._refused.add(which)
        topic = which.topic if isinstance(which, TopicPartition) else which
        self._office.effects.append(Notice(text, {"topic": topic, "path": error.path, "reason": error}))

    def _ensure(self, node: tuple[Op, ...]) -> WriteOutcome:
        """A node that may be there already. Answers None or a refusal."""
        error = yield from self._office.write([node], expected=(NodeExists,), may_be_refused=True)
        return None if isinstance(error, NodeExists) else error

    def fence(self, event: Fence) -> Job:
        """End the incarnation, then go on as if its session had lapsed."""
        office = self._office
        found = office.state.brokers.get(event.broker_id)
        if found is None or found.epoch != event.epoch:
            return
        multi = office.writes.fence(event.broker_id, event.epoch)
        error = yield from office.write([multi], expected=(BadVersion, NoNode))
        if not isinstance(error, BadVersion):  # else it has registered anew, of which the store tells
            others = {b: info for b, info in office.state.brokers.items() if b != event.broker_id}
            yield from self.set_brokers(others)

    # --- what brokers propose

    def propose(self, token: object, proposal: ProposeIsr) -> Job:
        """Let a leader change its ISRs."""
        office = self._office
        judge = IsrJudge(proposal, office.state, self.standing, self._rules)
        verdicts = [judge.judge(change) for change in proposal.changes]
        changes = {verdict.tp: verdict for verdict in verdicts if isinstance(verdict, Change)}
        yield from self._update(changes.values())
        outcomes = map(self._outcome, verdicts)
        self._proposals.decided(token, IsrAnswer(office.state.controller_epoch, tuple(outcomes)))
        yield from self._complete_reassignments({tp.topic for tp in changes})

    def _outcome(self, judged: Change | Outcome) -> Outcome:
        """Of a change: what came of it."""
        if isinstance(judged, Outcome):
            return judged
        state = self._office.state.partition(judged.tp)
        if judged.tp in self._refused:
            return Outcome(judged.tp, Verdict.REFUSED, state, _refusal(judged.tp))
        return Outcome(judged.tp, Verdict.OK, state)

    def take_offline(self, token: object, proposal: ReplicasOffline) -> Job:
        """Do without replicas whose disk failed."""
        office = self._office
        is_current = self._is_current(proposal.broker_id, proposal.broker_epoch)
        if is_current:
            lost = self._offline.setdefault(proposal.broker_id, set())
            new = {(replica.topic_id, replica.tp.partition) for replica in proposal.replicas} - lost
            if new:
                lost |= new
                fields = {"broker": proposal.broker_id, "replicas": len(new), "reason": proposal.reason}
                office.effects.append(Notice("replicas are offline: others lead, and do without them", fields))
                yield from self.settle()
        outcomes = []
        for tp, topic_id in proposal.replicas:
            topic, verdict = office.state.topics.get(tp.topic), Verdict.OK if is_current else Verdict.STALE
            if topic is None or topic.id != topic_id:
                outcomes.append(Outcome(tp, Verdict.REFUSED, reason=f"there is no {tp} of a topic with this id"))
            else:
                outcomes.append(Outcome(tp, verdict, office.state.partition(tp)))
        self._proposals.decided(token, IsrAnswer(office.state.controller_epoch, tuple(outcomes)))

    def do_without_damaged(self, token: object, proposal: ReplicasDamaged) -> Job:
        """Let intact replicas lead, and count no more on damaged ones."""
        office = self._office
        verdicts = [self._without(proposal, damaged) for damaged in proposal.replicas]
        changes = {verdict.tp: verdict for verdict in verdicts if isinstance(verdict, Change)}
        yield from self._update(changes.values())
        if written := changes.keys() - self._refused:
            names = ", ".join(map(str, sorted(written)))
            fields = {"broker": proposal.broker_id, "partitions": names}
            office.effects.append(Notice("replicas are damaged: others lead, and count no more on them", fields))
        outcomes = map(self._outcome, verdicts)
        self._proposals.decided(token, IsrAnswer(office.state.controller_epoch, tuple(outcomes)))

    def _without(self, proposal: ReplicasDamaged, damaged: DamagedReplica) -> Change | Outcome:
        state, tp = self._office.state, damaged.tp
        topic, partition = state.topics.get(tp.topic), state.partition(tp)
        if topic is None or topic.id != damaged.topic_id or partition is None:
            return Outcome(tp, Verdict.REFUSED, reason=f"there is no {tp} of a topic with this id")
        is_current = self._is_current(proposal.broker_id, proposal.broker_epoch)
        if not is_current or damaged.leader_epoch != partition.leader_epoch:
            reason = f"it is about broker epoch {proposal.broker_epoch} and leader epoch {damaged.leader_epoch}"
            return Outcome(tp, Verdict.STALE, partition, reason)
        terms = self._rules.terms(topic, state)
        new = self._rules.without(tp, partition, terms, self.standing, proposal.broker_id)
        if new is partition:
            return Outcome(tp, Verdict.REFUSED, partition, f"no intact replica of {tp} is there to lead it instead")
        return Change.by(state, tp, partition, new)

    def drain(self, token: object, proposal: Drain) -> Job:
        """Let others lead what a broker leads that is about to stop."""
        office, epoch, broker_id = self._office, self._office.state.controller_epoch, proposal.broker_id
        if not self._is_current(broker_id, proposal.broker_epoch):
            reason = f"broker {broker_id} is not registered in epoch {proposal.broker_epoch}"
            self._proposals.decided(token, DrainAnswer(Verdict.STALE, epoch, reason=reason))
            return
        if proposal.cancel:
            self._leaving.discard(broker_id)
        else:
            self._leaving.add(broker_id)
        yield from self.settle()
        remaining = tuple(tp for tp, partition in office.state.partitions() if partition.leader == broker_id)
        answer = DrainAnswer(Verdict.OK, epoch, remaining)
        self._proposals.decided(token, answer, office.peers.revision, lambda: not self._is_counted_on(broker_id))

    def _is_counted_on(self, broker_id: BrokerId) -> bool:
        """Whether a drained broker is in sync where another leads: until it knows that it does not."""
        partitions = self._office.state.partitions() if broker_id in self._leaving else ()
        return any(broker_id in partition.isr and partition.leader != broker_id for _, partition in partitions)

    def _is_current(self, broker_id: BrokerId, epoch: BrokerEpoch) -> bool:
        found = self._office.state.brokers.get(broker_id)
        return found is not None and found.epoch == epoch

    # --- elections

    def elect(self, request: ElectionRequested) -> Results:
        """As somebody asked."""
        elections = Elections(self._office.state, self.standing, self._rules)
        results: list[Result] = []
        changes = {}
        for tp in request.partitions:
            try:
                changes[tp] = elections.unclean(tp) if request.unclean else elections.preferred(tp)
                results.append(tp)
            except RaylogError as error:
                results.append(error)
        yield from self._update(changes.values())
        return [EligibleLeadersNotAvailable(_refusal(tp)) if tp in self._refused else tp for tp in results]

    def rebalance(self, percentage: int) -> Job:
        """Let preferred replicas lead again, where too many do not."""
        elections = Elections(self._office.state, self.standing, self._rules)
        yield from self._update(elections.imbalanced(percentage))

    # --- reassignment

    def reassign(self, request: ReassignmentRequested) -> Results:
        """Begin, replace or cancel reassignments; those that need no copying are complete at once."""
        results: list[Result] = []
        changes: dict[TopicName, list[Change]] = defaultdict(list)
        refused = named_twice(request)
        rooms: dict[TopicName, int] = {}
        for index, wanted in enumerate(request.partitions):
            try:
                if index in refused:
                    raise refused[index]
                change = self._reassigned(wanted, allow_factor_change=request.allow_factor_change)
                if change.new != change.old:
                    self._take_room(change, rooms)
                    changes[wanted.tp.topic].append(change)
                results.append(wanted.tp)
            except RaylogError as error:
                results.append(error)
        for name, of_it in changes.items():
            yield from self._move(self._office.state.topics[name], of_it)
        yield from self._complete_reassignments(changes)
        return results

    def _take_room(self, change: Change, rooms: dict[TopicName, int]) -> None:
        """Raises InvalidReplicaAssignment where the topic's node would be too large; ``rooms``: what is left of it."""
        name, growth = change.tp.topic, growth_of(change)
        if name not in rooms:
            rooms[name] = MAX_MOVING_TOPIC_BYTES - topic_bytes(self._office.state.topics[name])
        if growth > max(rooms[name], 0):
            raise InvalidReplicaAssignment(
                f"{change.tp}: too many partitions of the topic are reassigned at once for its node in the metadata "
                f"store, of {MAX_MOVING_TOPIC_BYTES} bytes: try again when some of them are complete"
            )
        rooms[name] -= growth

    def _reassigned(self, wanted: NewReplicas, *, allow_factor_change: bool) -> Change:
        tp, state = wanted.tp, self._office.state
        topic, partition = state.topics.get(tp.topic), state.partition(tp)
        if topic is None or partition is None:
            raise UnknownTopicOrPartition(f"there is no partition {tp}")
        if partition.version == -1 or partition.is_unreadable:
            raise InvalidReplicaAssignment(f"{tp} has no leader yet, so nobody to copy it from")
        if wanted.replicas is None:
            after = reassignment.cancelled(partition)
        else:
            there = reassignment.origin(partition)
            check_replicas(str(tp), wanted.replicas, {**dict.fromkeys(there), **dict.fromkeys(state.brokers)})
            if not allow_factor_change and len(wanted.replicas) != len(there):
                raise InvalidReplicationFactor(
                    f"{tp}: {len(wanted.replicas)} replicas, but it has {len(there)}, and that is not to change"
                )
            after = reassignment.begun(partition, wanted.replicas)
        terms = self._rules.terms(topic, state)
        new = reassignment.led(tp, partition, after, self._rules, terms, self.standing)
        return Change.by(state, tp, partition, new)

    def _complete_reassignments(self, names: Iterable[TopicName] | None) -> Job:
        """Of these topics, or of all."""
        moving, topics = self._office.moving, self._office.state.topics
        for topic in [topics[name] for name in sorted(moving if names is None else moving.intersection(names))]:
            changes = [] if topic.name in self._refused else list(self._completed(topic))
            if changes:
                error = yield from self._move(topic, changes, may_be_refused=True)
                if error is not None:
                    self._leave(topic.name, error, "reassignment is not completed: the topic's node refuses it")

    def _completed(self, topic: TopicState) -> Iterator[Change]:
        state = self._office.state
        for tp, partition in topic.topic_partitions():
            if (after := reassignment.completed(partition)) is not partition:
                try:
                    terms = self._rules.terms(topic, state)
                    new = reassignment.led(tp, partition, after, self._rules, terms, self.standing)
                except InvalidReplicaAssignment:
                    continue  # once somebody can lead
                if new != partition:
                    yield Change.by(state, tp, partition, new)

    def _move(self, topic: TopicState, changes: list[Change], *, may_be_refused: bool = False) -> WriteOutcome:
        """Answers None or a refusal that may be."""
        office = self._office
        multis = office.writes.reassignment(topic, changes, office.state)
        error = yield from office.write(multis, may_be_refused=may_be_refused)
        if error is None:
            office.take_in(changes)
        return error


def _refusal(of: TopicName | TopicPartition) -> str:
    return f"the node of {of} in the metadata store refuses another state, as the controller's log tells"
