"""What Produce and Fetch tell a client that came to the wrong broker: who leads, and where (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable

from raylog.broker.handlers.context import Ports, RequestContext
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


def node_endpoints(ctx: RequestContext, ports: Ports, leaders: Iterable[int]) -> list[NodeEndpoint]:
    """Where the named leaders are reached through the request's listener, each once."""
    brokers = ports.cluster.state().brokers
    endpoints = []
    for leader in sorted(set(leaders)):
        broker = brokers.get(BrokerId(leader))
        endpoint = broker and broker.endpoint(ctx.listener)
        if broker and endpoint:
            endpoints.append(NodeEndpoint(broker.id, endpoint.host, endpoint.port, broker.rack))
    return endpoints
