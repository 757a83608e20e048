"""Where a client finds brokers, and what it is told when it came to the wrong one: who leads (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable

from raylog.broker.handlers.context import Ports, RequestContext
from raylog.coordination.model import ClusterState
from raylog.protocol.errors import ErrorCode
from raylog.protocol.ids import NO_EPOCH, NO_LEADER, BrokerId, LeaderEpoch, TopicPartition
from raylog.protocol.wire import NodeEndpoint

WRONG_LEADER = frozenset((ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch))


def leader_hint(ports: Ports, tp: TopicPartition, code: ErrorCode) -> tuple[BrokerId, LeaderEpoch]:
    """The leader and its epoch when ``code`` says that the client should look elsewhere; else (-1, -1)."""
    if code not in WRONG_LEADER:
        return NO_LEADER, NO_EPOCH
    partition = ports.cluster.state().partition(tp)
    return (NO_LEADER, NO_EPOCH) if partition is None else (partition.leader, partition.leader_epoch)


def reachable_brokers(ctx: RequestContext, state: ClusterState) -> list[NodeEndpoint]:
    """The brokers that a client of the request's listener can connect to, and where."""
    endpoints = ((broker, broker.endpoint(ctx.listener)) for broker in state.brokers.values())
    return [NodeEndpoint(broker.id, at.host, at.port, broker.rack) for broker, at in endpoints if at is not None]


def node_endpoints(ctx: RequestContext, ports: Ports, leaders: Iterable[int]) -> list[NodeEndpoint]:
    """Where the named leaders are reached through the request's listener, each once, by id."""
    wanted = set(leaders)
    reachable = reachable_brokers(ctx, ports.cluster.state())
    return sorted((node for node in reachable if node.node_id in wanted), key=lambda node: node.node_id)
