"""Settings of a broker: who it is, and how clients reach it."""

from __future__ import annotations

from raylog.protocol.settings import Scope, Setting, ValueType, at_least


def _most(name: str, doc: str) -> Setting[int]:
    return Setting(name, ValueType.INT, 2**31 - 1, Scope.CLUSTER, doc, check=at_least(0))


BROKER_ID = Setting(
    "broker.id",
    ValueType.INT,
    -1,
    Scope.STATIC,
    "This broker's number, unique in the cluster.",
    check=at_least(0),
)
BROKER_RACK = Setting(
    "broker.rack",
    ValueType.STRING,
    "",
    Scope.STATIC,
    "Where the broker runs; replicas of a partition never share a rack.",
)
LISTENERS: Setting[tuple[str, ...]] = Setting(
    "listeners",
    ValueType.LIST,
    ("PLAINTEXT://127.0.0.1:0",),
    Scope.STATIC,
    "Addresses to listen on, NAME://host:port each; port 0 is chosen once and kept.",
)
ADVERTISED_LISTENERS: Setting[tuple[str, ...]] = Setting(
    "advertised.listeners",
    ValueType.LIST,
    (),
    Scope.STATIC,
    "Addresses that clients are told, NAME://host:port each; a listener not named here: where it listens.",
)
SOCKET_REQUEST_MAX_BYTES = Setting(
    "socket.request.max.bytes",
    ValueType.INT,
    100 * 1024 * 1024,
    Scope.STATIC,
    "The largest request; a longer frame closes the connection.",
    unit="bytes",
    check=at_least(1),
)
QUEUED_MAX_REQUEST_BYTES = Setting(
    "queued.max.request.bytes",
    ValueType.LONG,
    1024**3,
    Scope.CLUSTER,
    "Memory for requests above 256 KB while they come in. While others wait for it, a client is cut off that sends "
    "nothing for 1 s, or less than 1 MB/s; so is one that gets none in 5 s. -1: no limit.",
    unit="bytes",
    check=at_least(-1),
)
MAX_CONNECTIONS = _most("max.connections", "Connections held at once; more are closed at accept.")
MAX_CONNECTIONS_PER_IP = _most("max.connections.per.ip", "The same, for those from one address.")
CONNECTIONS_MAX_IDLE_MS = Setting(
    "connections.max.idle.ms",
    ValueType.LONG,
    10 * 60 * 1000,
    Scope.STATIC,
    "A connection without requests is closed after this time.",
    unit="ms",
    check=at_least(1),
)
FETCH_MAX_BYTES = Setting(
    "fetch.max.bytes",
    ValueType.INT,
    55 * 1024 * 1024,
    Scope.STATIC,
    "The most bytes in one fetch response; a first batch that is larger is still sent.",
    unit="bytes",
    check=at_least(1024),
)
MAX_FETCH_SESSIONS = Setting(
    "max.incremental.fetch.session.cache.slots",
    ValueType.INT,
    1000,
    Scope.STATIC,
    "Fetch sessions remembered at once; clients without one send full fetches.",
    check=at_least(0),
)
