"""Moving a partition to other replicas (KIP-455), as pure functions of its state.

While a reassignment is under way the partition's replicas are the wanted ones (its *target*) first and then those that
are to go. ``adding`` are the wanted ones that were not there, ``removing`` those that are to go; all else follows from
these: the target is the replicas without ``removing``, and the *origin*, where it came from and to which a cancelling
leads back, the replicas without ``adding``. They stand in the topic's node as in Kafka, so that the next controller
goes on. Complete it is as soon as all of the target are in the ISR.
"""

from __future__ import annotations

from dataclasses import replace

from raylog.coordination.control.leadership import ElectionRules, Standing, Terms
from raylog.coordination.metadata.model import PartitionState
from raylog.protocol.errors import InvalidReplicaAssignment, NoReassignmentInProgress
from raylog.protocol.ids import BrokerId, TopicPartition


def is_under_way(partition: PartitionState) -> bool:
    return bool(partition.adding or partition.removing)


def target(partition: PartitionState) -> tuple[BrokerId, ...]:
    """The replicas that the partition is to have at the end; those it has where nothing is under way."""
    return tuple(b for b in partition.replicas if b not in partition.removing)


def origin(partition: PartitionState) -> tuple[BrokerId, ...]:
    """The replicas that it had at the beginning."""
    return tuple(b for b in partition.replicas if b not in partition.adding)


def begun(partition: PartitionState, wanted: tuple[BrokerId, ...]) -> PartitionState:
    """With the new replicas added, instead of those of a reassignment that was under way."""
    before = origin(partition)
    return _narrowed(
        partition,
        (*wanted, *(b for b in before if b not in wanted)),
        adding=tuple(b for b in wanted if b not in before),
        removing=tuple(b for b in before if b not in wanted),
    )


def cancelled(partition: PartitionState) -> PartitionState:
    """Back at the origin. Raises NoReassignmentInProgress."""
    if not is_under_way(partition):
        raise NoReassignmentInProgress("the partition is not being reassigned")
    return _narrowed(partition, origin(partition))


def completed(partition: PartitionState) -> PartitionState:
    """At the target, if all of it are in sync; else the very same object."""
    wanted = target(partition)
    if not is_under_way(partition) or not wanted or not set(wanted) <= set(partition.isr):
        return partition
    return _narrowed(partition, wanted)


def led(
    tp: TopicPartition,
    before: PartitionState,
    after: PartitionState,
    rules: ElectionRules,
    terms: Terms,
    standing: Standing,
) -> PartitionState:
    """``after`` with the leader that it then should have. Who leads now, or may believe so, and would leave the ISR by
    it, stays for now, as one that is to go: the reassignment is complete without it (see ``controller.handovers``).

    Raises InvalidReplicaAssignment when it had one ``before``, and now none that holds all that was acknowledged.
    """
    new, risk = rules.settled(tp, after, terms, standing)
    if (before.is_online and not new.is_online) or not (new.isr or new.elr) or risk:
        raise InvalidReplicaAssignment(
            f"{tp}: of the replicas {after.replicas} none is alive and in sync: records would be lost"
        )
    stay = tuple(
        b
        for b in before.isr
        if b not in new.replicas and rules.is_live(b, tp, terms, standing) and standing.may_serve(b, tp, before)
    )
    return _widened(new, before, stay) if stay else new


def _widened(new: PartitionState, before: PartitionState, stay: tuple[BrokerId, ...]) -> PartitionState:
    """With members of the former ISR that are to go, but not yet."""
    return replace(
        new,
        replicas=(*new.replicas, *stay),
        removing=(*new.removing, *stay),
        isr=(*new.isr, *stay),
        incarnations={**new.incarnations, **before.incarnations_of(stay)},
    )


def _narrowed(
    partition: PartitionState,
    replicas: tuple[BrokerId, ...],
    adding: tuple[BrokerId, ...] = (),
    removing: tuple[BrokerId, ...] = (),
) -> PartitionState:
    """Members of ISR and ELR that are no replicas any more are none."""
    isr = tuple(b for b in partition.isr if b in replicas)
    elr = tuple(b for b in partition.elr if b in replicas)
    return replace(
        partition,
        replicas=replicas,
        adding=adding,
        removing=removing,
        isr=isr,
        elr=elr,
        incarnations=partition.incarnations_of((*isr, *elr)),
    )
