"""How a consumer becomes a member of a group of actors: finds ZooKeeper, and registers there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from re import Pattern
from typing import NamedTuple

from raylog.client.admin import Admin
from raylog.client.arguments.arguments import several
from raylog.client.config.client import CLIENT_ID, DEFAULT_API_TIMEOUT_MS
from raylog.client.fetch.consumer_config import (
    AUTO_COMMIT_INTERVAL_MS,
    ENABLE_AUTO_COMMIT,
    ENABLE_AUTO_OFFSET_STORE,
    GROUP_ID,
    GROUP_INSTANCE_ID,
    MAX_POLL_INTERVAL_MS,
    PARTITION_ASSIGNMENT_STRATEGY,
    SESSION_TIMEOUT_MS,
    ZOOKEEPER_AUTH,
    ZOOKEEPER_CONNECT,
)
from raylog.client.fetch.subscription import Subscription
from raylog.client.groups.group_consumer import AnyListener, GroupReader, Membership
from raylog.client.groups.group_consumer_core import GroupCore, Offsets
from raylog.client.groups.member import GroupMember
from raylog.client.network.discovery import zookeeper_auth
from raylog.client.network.metadata import Metadata
from raylog.client.results import BrokerDescription
from raylog.coordination.groups.assignors import Assignor
from raylog.coordination.groups.offsets import RegistryOffsetStore
from raylog.coordination.membership.liveness import address_towards
from raylog.coordination.metadata.topic_names import check_topic_name
from raylog.coordination.metadata.topic_patterns import pattern_text
from raylog.coordination.store.port import StoreUnavailable
from raylog.coordination.zookeeper.store import ZkStore
from raylog.protocol.errors import BrokerNotAvailable, InvalidConfig, InvalidGroupId
from raylog.protocol.ids import GroupId, InstanceId, TopicName
from raylog.protocol.logs import Logger
from raylog.protocol.settings import Settings
from raylog.protocol.texts import host_port

log = Logger(__name__)

Topics = frozenset[TopicName] | Pattern[str]

_METADATA_MAX_BYTES = "offset.metadata.max.bytes"
_DEFAULT_METADATA_MAX_BYTES = 4096
"""Kafka's default."""


def subscribed(topics: str | Pattern[str] | Iterable[str | Pattern[str]]) -> Topics:
    """What the user named, checked: topics, or one pattern. Raises InvalidTopic, InvalidConfig."""
    if isinstance(topics, str | Pattern):
        topics = (topics,)
    given = several("topics", topics)
    patterns = [topic for topic in given if isinstance(topic, Pattern)]
    names = [topic for topic in given if not isinstance(topic, Pattern)]
    if not given or (patterns and len(given) > 1):
        raise InvalidConfig("topics: a group reads topics by name, at least one, or one compiled pattern")
    if patterns:
        pattern_text(patterns[0])
        return patterns[0]
    for name in names:
        check_topic_name(name)
    return frozenset(map(TopicName, names))


def join_group(
    topics: Topics,
    settings: Settings,
    subscription: Subscription,
    listener: AnyListener,
    metadata: Metadata,
    came_through: Callable[[Offsets], None],
    wake: Callable[[], None],
    new_admin: Callable[[], Admin],
) -> GroupReader:
    """Registers with the group of ``settings``; its partitions come when polling.

    Raises InvalidGroupId, InconsistentGroupProtocol for a group of Kafka's clients, BrokerNotAvailable and
    RequestTimedOut when brokers or ZooKeeper do not answer.
    """
    group = GroupId(settings[GROUP_ID])
    if not group:
        raise InvalidGroupId("group.id is empty: give the group a name")
    instance = InstanceId(settings[GROUP_INSTANCE_ID]) if settings[GROUP_INSTANCE_ID] else None
    found = _ask(settings, new_admin)
    store = ZkStore(
        found.zookeeper,
        auth=settings[ZOOKEEPER_AUTH] or zookeeper_auth(found.zookeeper),
        session_timeout_ms=settings[SESSION_TIMEOUT_MS],
        connect_timeout_ms=settings[DEFAULT_API_TIMEOUT_MS],
    )
    core = GroupCore(
        subscription,
        auto_commit=settings[ENABLE_AUTO_COMMIT],
        auto_store=settings[ENABLE_AUTO_OFFSET_STORE],
        auto_commit_interval_ms=settings[AUTO_COMMIT_INTERVAL_MS],
        max_metadata_bytes=found.metadata_bytes,
    )

    def join(woken: Callable[[], None]) -> Membership:
        def member_at(host: str) -> GroupMember:
            return GroupMember(
                store,
                group,
                topics,
                client_id=settings[CLIENT_ID],
                assignor=Assignor(settings[PARTITION_ASSIGNMENT_STRATEGY]),
                max_poll_interval_ms=settings[MAX_POLL_INTERVAL_MS],
                host=host,
                instance=instance,
                woken=woken,
            )

        try:
            member = member_at(found.own_host)
        except OSError as error:
            log.warning(
                "group %s: cannot listen at %s (%s): others will learn of this member's death from the end of its "
                "session only",
                group, found.own_host, error,
            )  # fmt: skip
            member = member_at("")
        member.start(settings[DEFAULT_API_TIMEOUT_MS] / 1_000)
        return member

    try:
        try:
            store.start()
        except StoreUnavailable as error:
            raise BrokerNotAvailable(
                f"group {group}: no ZooKeeper answers at {found.zookeeper}, {found.source}: {error}"
            ) from error
        if store.session_timeout_ms < settings[SESSION_TIMEOUT_MS]:
            log.warning(
                "group %s: ZooKeeper at %s grants sessions of %d ms, less than session.timeout.ms=%d: raise its "
                "maxSessionTimeout",
                group, found.zookeeper, store.session_timeout_ms, settings[SESSION_TIMEOUT_MS],
            )  # fmt: skip
        left = store.close if instance is None else store.abandon
        return GroupReader(
            group, topics, join, core, RegistryOffsetStore(store), listener, metadata, came_through, wake, left
        )
    except BaseException:
        store.close()
        raise


class _Found(NamedTuple):
    """What a broker told."""

    zookeeper: str
    source: str
    """Who said so, for who cannot reach it."""
    metadata_bytes: int
    """How much text may be committed beside an offset."""
    own_host: str
    """This machine's address as the broker sees it, and other members; "" when it cannot be told."""


def _ask(settings: Settings, new_admin: Callable[[], Admin]) -> _Found:
    with new_admin() as admin:
        broker, values = _settings_of_a_broker(admin)
    name = f"broker {broker.broker_id} ({host_port(broker.host, broker.port)})"
    zookeeper, source = settings[ZOOKEEPER_CONNECT], "as zookeeper.connect says"
    if not zookeeper:
        zookeeper = values.get("zookeeper.connect") or ""
        source = f"where {name} knows it; give zookeeper.connect if it has another address from here"
    if not zookeeper:
        raise BrokerNotAvailable(
            f"{name} does not say where ZooKeeper is, and a group of actors needs it: is that a broker of raylog? give "
            "zookeeper.connect"
        )
    metadata_bytes = int(values.get(_METADATA_MAX_BYTES) or _DEFAULT_METADATA_MAX_BYTES)
    try:
        own_host = address_towards(broker.host, broker.port)
    except OSError:
        own_host = ""
    return _Found(zookeeper, source, metadata_bytes, own_host)


def _settings_of_a_broker(admin: Admin) -> tuple[BrokerDescription, dict[str, str | None]]:
    """Of the first that answers: one that was up a moment ago may have died. Raises BrokerNotAvailable."""
    gone = BrokerNotAvailable("no broker of the cluster is registered just now; try again in a moment")
    for broker in admin.describe_cluster().brokers:
        try:
            return broker, _settings_of(admin, broker)
        except BrokerNotAvailable as error:
            gone = error
    raise gone


def _settings_of(admin: Admin, broker: BrokerDescription) -> dict[str, str | None]:
    return {entry.name: entry.value for entry in admin.describe_broker_configs(broker.broker_id)}
