"""Reads the whole cluster from the store, as the controller does when elected; watches what it acts on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from raylog.coordination.model import BrokerInfo, ClusterState
from raylog.coordination.store import EventSink, MetadataStore
from raylog.protocol.ids import BrokerId, TopicName


class Snapshot(NamedTuple):
    state: ClusterState
    deleting: frozenset[TopicName]


def load(store: MetadataStore, watch: EventSink | None = None) -> Snapshot:
    """Everything; watches /brokers/ids, /brokers/topics, /admin/delete_topics and /config/changes."""
    raise NotImplementedError


def load_brokers(store: MetadataStore, watch: EventSink | None = None) -> Mapping[BrokerId, BrokerInfo]:
    """The registered brokers with their incarnations; watches /brokers/ids and each
    /raylog/broker_epochs/B.
    """
    raise NotImplementedError
