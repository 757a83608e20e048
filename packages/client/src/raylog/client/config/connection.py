"""◆ The settings about connections and what is known of the cluster; all others are in :mod:`raylog.client.config`."""

from __future__ import annotations

from raylog.protocol.settings import Scope, Setting, ValueType, at_least, one_of

METADATA_MAX_IDLE_MS = Setting(
    "metadata.max.idle.ms",
    ValueType.LONG,
    300_000,
    Scope.CLIENT,
    "A producer forgets a topic that it has not sent to for this time (for delivery.timeout.ms where that is longer).",
    unit="ms",
    check=at_least(5_000),
)
CLIENT_DNS_LOOKUP = Setting(
    "client.dns.lookup",
    ValueType.STRING,
    "use_all_dns_ips",
    Scope.CLIENT,
    "All addresses of a host are tried, one after the other (KIP-302). Its name is looked up in the background.",
    check=one_of("use_all_dns_ips"),
)
BROKER_ADDRESS_FAMILY = Setting(
    "broker.address.family",
    ValueType.STRING,
    "any",
    Scope.CLIENT,
    "Which addresses of a host are tried, as librdkafka's setting of that name: any, those of IPv4 (v4) or IPv6 (v6).",
    check=one_of("any", "v4", "v6"),
)
CONNECTION_SETUP_TIMEOUT_MS = Setting(
    "socket.connection.setup.timeout.ms",
    ValueType.LONG,
    10_000,
    Scope.CLIENT,
    "How long one address of a host has to take a connection before the next is tried; doubles each time that all "
    "failed, give or take a fifth (KIP-601).",
    unit="ms",
    check=at_least(1),
)
CONNECTION_SETUP_TIMEOUT_MAX_MS = Setting(
    "socket.connection.setup.timeout.max.ms",
    ValueType.LONG,
    30_000,
    Scope.CLIENT,
    "The longest that this time gets.",
    unit="ms",
    check=at_least(1),
)
RECONNECT_BACKOFF_MS = Setting(
    "reconnect.backoff.ms",
    ValueType.LONG,
    50,
    Scope.CLIENT,
    "The pause before a broker that cannot be connected to is tried again; doubles each time, give or take a fifth.",
    unit="ms",
    check=at_least(0),
)
RECONNECT_BACKOFF_MAX_MS = Setting(
    "reconnect.backoff.max.ms",
    ValueType.LONG,
    1_000,
    Scope.CLIENT,
    "The longest of these pauses.",
    unit="ms",
    check=at_least(0),
)
CONNECTIONS_MAX_IDLE_MS = Setting(
    "connections.max.idle.ms",
    ValueType.LONG,
    540_000,
    Scope.CLIENT,
    "A connection on which nothing was sent or awaited for this time is closed, and made again when it is needed. 0, "
    "as in librdkafka, or -1: never by the client.",
    unit="ms",
    check=at_least(-1),
)
CONNECTION_SETTINGS = (
    CONNECTIONS_MAX_IDLE_MS,
    CLIENT_DNS_LOOKUP,
    BROKER_ADDRESS_FAMILY,
    CONNECTION_SETUP_TIMEOUT_MS,
    CONNECTION_SETUP_TIMEOUT_MAX_MS,
    RECONNECT_BACKOFF_MS,
    RECONNECT_BACKOFF_MAX_MS,
)
"""Every client has these."""
