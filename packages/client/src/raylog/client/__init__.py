"""Producer, consumer, admin client and command line.

The public names load their module on first use, so that a program which only consumes never imports Ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import raylog.protocol  # noqa: F401  (it must be the first to import kio)

if TYPE_CHECKING:
    from raylog.client.admin import Admin, NewTopic
    from raylog.client.arguments.interceptors import (
        ConsumerInterceptor,
        ProducerBatch,
        ProducerInterceptor,
        ProducerRecord,
    )
    from raylog.client.cluster import BrokerHandle, Cluster, connect
    from raylog.client.consumer import Consumer
    from raylog.client.delivery import BatchDelivery, Delivery, Landed
    from raylog.client.groups.group_consumer import RebalanceListener
    from raylog.client.handlers.actor_group import ActorGroup, GroupStatus, group
    from raylog.client.producer import Producer
    from raylog.client.read_errors import (
        CorruptBatch,
        LogTruncated,
        PositionLost,
        RecordDeserializationError,
        WakeupError,
    )
    from raylog.client.results import (
        BrokerDescription,
        ClusterDescription,
        ConfigEntry,
        ConsumerRecord,
        GroupDescription,
        GroupListing,
        LogDirDescription,
        MemberDescription,
        OffsetAndTimestamp,
        PartitionDescription,
        PartitionReassignment,
        ProducerDescription,
        RecordMetadata,
        TopicDescription,
    )
    from raylog.coordination.metadata.group_model import CommittedOffset

__all__ = [
    "ActorGroup",
    "Admin",
    "BatchDelivery",
    "BrokerDescription",
    "BrokerHandle",
    "Cluster",
    "ClusterDescription",
    "CommittedOffset",
    "ConfigEntry",
    "Consumer",
    "ConsumerInterceptor",
    "ConsumerRecord",
    "CorruptBatch",
    "Delivery",
    "GroupDescription",
    "GroupListing",
    "GroupStatus",
    "Landed",
    "LogDirDescription",
    "LogTruncated",
    "MemberDescription",
    "NewTopic",
    "OffsetAndTimestamp",
    "PartitionDescription",
    "PartitionReassignment",
    "PositionLost",
    "Producer",
    "ProducerBatch",
    "ProducerDescription",
    "ProducerInterceptor",
    "ProducerRecord",
    "RebalanceListener",
    "RecordDeserializationError",
    "RecordMetadata",
    "TopicDescription",
    "WakeupError",
    "connect",
    "group",
]

_HOME = {
    "ActorGroup": "handlers.actor_group",
    "Admin": "admin",
    "BatchDelivery": "delivery",
    "BrokerDescription": "results",
    "BrokerHandle": "cluster",
    "Cluster": "cluster",
    "ClusterDescription": "results",
    "CommittedOffset": "consumer",
    "ConfigEntry": "results",
    "Consumer": "consumer",
    "ConsumerRecord": "results",
    "ConsumerInterceptor": "arguments.interceptors",
    "CorruptBatch": "read_errors",
    "Delivery": "delivery",
    "GroupDescription": "results",
    "GroupListing": "results",
    "GroupStatus": "handlers.actor_group",
    "Landed": "delivery",
    "LogDirDescription": "results",
    "LogTruncated": "read_errors",
    "MemberDescription": "results",
    "NewTopic": "admin",
    "OffsetAndTimestamp": "results",
    "PartitionDescription": "results",
    "PartitionReassignment": "results",
    "PositionLost": "read_errors",
    "Producer": "producer",
    "ProducerBatch": "arguments.interceptors",
    "ProducerDescription": "results",
    "ProducerInterceptor": "arguments.interceptors",
    "ProducerRecord": "arguments.interceptors",
    "RebalanceListener": "groups.group_consumer",
    "RecordDeserializationError": "read_errors",
    "RecordMetadata": "results",
    "TopicDescription": "results",
    "WakeupError": "read_errors",
    "connect": "cluster",
    "group": "handlers.actor_group",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"raylog.client.{_HOME[name]}"), name)
