"""Where a client finds brokers, and what it is told when it came to the wrong one: who leads (KIP-951).

A broker without its lease may have been replaced and not know it. It tells then what it knows of others, but not that
it leads itself: a client that heard so would come back to it until it can be reached by the controller again.
"""

from __future__ import annotations

from collections.abc import Iterable

from raylog.broker.handlers.context import Ports, RequestContext
from raylog.coordination.metadata.model import ClusterState
from raylog.protocol.errors import ErrorCode, NotLeaderOrFollower
from raylog.protocol.ids import NO_EPOCH, NO_LEADER, BrokerId, LeaderEpoch, TopicId, TopicPartition
from raylog.protocol.wire.primitives import NodeEndpoint

WRONG_LEADER = frozenset((ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch))


def lease_held(ports: Ports) -> bool:
    """Whether this broker may act as a leader now (D9c)."""
    try:
        ports.lease.check()
    except NotLeaderOrFollower:
        return False
    return True


def state_to_tell(ports: Ports) -> ClusterState:
    """The newest state of the cluster; without the lease nobody is known to lead what this broker led."""
    state = ports.cluster.state()
    return state if lease_held(ports) else state.without_leader(ports.cluster.broker_id)


def leader_hint(
    ports: Ports, tp: TopicPartition, code: ErrorCode, topic_id: TopicId | None = None
) -> tuple[BrokerId, LeaderEpoch]:
    """The leader and its epoch when ``code`` says that the client should look elsewhere and it is known where; else
    (-1, -1). ``topic_id``: as Partitions.get has it.
    """
    partition = ports.cluster.state().partition(tp, topic_id) if code in WRONG_LEADER else None
    if partition is None or (partition.leader == ports.cluster.broker_id and not lease_held(ports)):
        return NO_LEADER, NO_EPOCH
    return partition.leader, partition.leader_epoch


def reachable_brokers(ctx: RequestContext, state: ClusterState, *, with_fenced: bool = False) -> list[NodeEndpoint]:
    """The brokers that a client of the request's listener is to connect to, and where."""
    brokers = state.brokers if with_fenced else state.reachable
    endpoints = ((broker, broker.endpoint(ctx.listener)) for broker in brokers.values())
    return [NodeEndpoint(broker.id, at.host, at.port, broker.rack) for broker, at in endpoints if at is not None]


def node_endpoints(ctx: RequestContext, ports: Ports, leaders: Iterable[int]) -> list[NodeEndpoint]:
    """Where the named leaders are reached through the request's listener, each once, by id."""
    wanted = set(leaders)
    reachable = reachable_brokers(ctx, ports.cluster.state())
    return sorted((node for node in reachable if node.node_id in wanted), key=lambda node: node.node_id)
