"""◆ The settings of Kafka's clients, Java's (4.2) and librdkafka's: which are here, and why others are not.

``docs/configuration.md`` shows it, and a setting that is refused is refused with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

__all__ = ["KAFKA_SETTINGS", "LIBRDKAFKA_NAMES", "NOT_HERE", "NOT_HERE_OF_LIBRDKAFKA", "JavaDefault", "reason_of"]

_INT_MAX = "2147483647"


class JavaDefault(NamedTuple):
    """What Java's clients take a setting for that nobody gave; "" is none."""

    default: str
    admin: str | None = None
    """The admin client's, where it has another."""

    def of(self, client: str) -> str:
        return self.default if client != "admin" or self.admin is None else self.admin


KAFKA_SETTINGS: Mapping[str, JavaDefault] = {
    name: JavaDefault(*defaults)
    for name, *defaults in (
        ("acks", "all"),
        ("allow.auto.create.topics", "true"),
        ("auto.commit.interval.ms", "5000"),
        ("auto.offset.reset", "latest"),
        ("batch.size", "16384"),
        ("bootstrap.servers", ""),
        ("buffer.memory", "33554432"),
        ("check.crcs", "true"),
        ("client.dns.lookup", "use_all_dns_ips"),
        ("client.id", ""),
        ("client.rack", ""),
        ("compression.gzip.level", "-1"),
        ("compression.lz4.level", "9"),
        ("compression.type", "none"),
        ("compression.zstd.level", "3"),
        ("connections.max.idle.ms", "540000", "300000"),
        ("default.api.timeout.ms", "60000"),
        ("delivery.timeout.ms", "120000"),
        ("enable.auto.commit", "true"),
        ("enable.idempotence", "true"),
        ("fetch.max.bytes", "52428800"),
        ("fetch.max.wait.ms", "500"),
        ("fetch.min.bytes", "1"),
        ("group.id", ""),
        ("group.instance.id", ""),
        ("isolation.level", "read_uncommitted"),
        ("linger.ms", "5"),
        ("max.block.ms", "60000"),
        ("max.in.flight.requests.per.connection", "5"),
        ("max.partition.fetch.bytes", "1048576"),
        ("max.poll.interval.ms", "300000"),
        ("max.poll.records", "500"),
        ("max.request.size", "1048576"),
        ("metadata.max.age.ms", "300000"),
        ("metadata.max.idle.ms", "300000"),
        ("partition.assignment.strategy", "RangeAssignor,CooperativeStickyAssignor"),
        ("reconnect.backoff.max.ms", "1000"),
        ("reconnect.backoff.ms", "50"),
        ("request.timeout.ms", "30000"),
        ("retries", _INT_MAX),
        ("retry.backoff.max.ms", "1000"),
        ("retry.backoff.ms", "100"),
        ("session.timeout.ms", "45000"),
        ("socket.connection.setup.timeout.max.ms", "30000"),
        ("socket.connection.setup.timeout.ms", "10000"),
    )
}
"""Java's settings that are here, for one client at least."""

LIBRDKAFKA_NAMES: Mapping[str, str] = {
    "compression.codec": "compression.type",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.max.bytes": "max.request.size",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "metadata.broker.list": "bootstrap.servers",
    "queue.buffering.max.kbytes": "buffer.memory",
    "queue.buffering.max.ms": "linger.ms",
    "request.required.acks": "acks",
    "socket.timeout.ms": "request.timeout.ms",
    "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
}
"""librdkafka's names of what has another name here, Java's. ``queue.buffering.max.kbytes`` is in KiB."""

_SECURITY = "there is neither TLS nor SASL; docs/security.md tells what protects a cluster"
_SOCKETS = "the system sizes the buffers of sockets by itself"
_METRICS = "metrics() of a client answers its numbers, over windows of 30 to 60 s, and its stats_cb hears them"
_TRANSACTIONS = "there are no transactions"
_SHARE = "there are no share groups (KIP-932)"
_GROUPS = (
    "members of a group agree over ZooKeeper, by a protocol of their own (docs/groups.md), not by the coordinator's"
)
_PARTITIONER = "give the producer's partitioner a name, or a function of (key, all partitions, those with a leader)"
_SPREAD = "a partition without a leader gets no records without a key; how long queues are does not count"
_REBOOTSTRAP = "bootstrap.servers are always tried beside the brokers that are known"
_CALLBACK = "wait for, or add a callback to, the Delivery that send() gives"

NOT_HERE: Mapping[str, str] = {
    "bootstrap.controllers": "the cluster's metadata is in ZooKeeper: there are no KRaft controllers",
    "config.providers": "values are Python's: read secrets with it",
    "enable.metrics.push": _METRICS,
    "exclude.internal.topics": "brokers make no internal topics: offsets are in ZooKeeper",
    "group.protocol": _GROUPS,
    "group.remote.assignor": _GROUPS,
    "heartbeat.interval.ms": "a member keeps its ZooKeeper session by itself, ten times within session.timeout.ms",
    "interceptor.classes": "objects are given: the argument interceptors of producers and consumers",
    "internal.throw.on.fetch.stable.offset.unsupported": "brokers always answer stable offsets",
    "key.deserializer": "it is the consumer's argument key_deserializer: a name, or a function of bytes",
    "key.serializer": "it is the producer's argument key_serializer: a name, or a function that gives bytes",
    "metadata.recovery.rebootstrap.trigger.ms": _REBOOTSTRAP,
    "metadata.recovery.strategy": _REBOOTSTRAP,
    "metric.reporters": _METRICS,
    "metrics.num.samples": _METRICS,
    "metrics.recording.level": _METRICS,
    "metrics.sample.window.ms": _METRICS,
    "partitioner.adaptive.partitioning.enable": _SPREAD,
    "partitioner.availability.timeout.ms": _SPREAD,
    "partitioner.class": _PARTITIONER,
    "partitioner.ignore.keys": "partitioner=random or roundrobin goes by no key",
    "receive.buffer.bytes": _SOCKETS,
    "retries": "default.api.timeout.ms bounds how long an admin client's call is tried",
    "sasl.*": _SECURITY,
    "security.*": _SECURITY,
    "send.buffer.bytes": _SOCKETS,
    "share.*": _SHARE,
    "ssl.*": _SECURITY,
    "transaction.timeout.ms": _TRANSACTIONS,
    "transaction.two.phase.commit.enable": _TRANSACTIONS,
    "transactional.id": _TRANSACTIONS,
    "value.deserializer": "it is the consumer's argument value_deserializer: a name, or a function of bytes",
    "value.serializer": "it is the producer's argument value_serializer: a name, or a function that gives bytes",
}
"""Java's settings that are not here, for no client or not for all that have them there, and why; ``*`` is any."""

NOT_HERE_OF_LIBRDKAFKA: Mapping[str, str] = {
    "api.version.request": "a broker is always asked which versions it speaks",
    "batch.num.messages": "batch.size bounds a batch",
    "broker.address.ttl": "a host is looked up again for each new connection",
    "debug": "the loggers below raylog.client tell, by Python's logging",
    "delivery.report.only.error": _CALLBACK,
    "dr_cb": _CALLBACK,
    "dr_msg_cb": _CALLBACK,
    "enable.gapless.guarantee": "a batch that fails leaves its followers to be sent; Producer(continues=…) fails them",
    "enable.partition.eof": "current_lag() is 0 at the end, and iterate(until_end=True) ends there",
    "enable.ssl.certificate.verification": _SECURITY,
    "error_cb": "errors are raised by the call that they concern",
    "fetch.error.backoff.ms": "retry.backoff.ms is the pause after an error",
    "fetch.queue.backoff.ms": "what was fetched is bounded by fetch.max.bytes, and more is fetched as it is read",
    "log_level": "the loggers below raylog.client have Python's levels",
    "offset.store.method": "offsets of a group are stored by the cluster",
    "offset_commit_cb": "commit_async() gives a future",
    "partitioner_cb": _PARTITIONER,
    "queue.buffering.max.messages": "buffer.memory bounds what waits, in bytes",
    "queued.max.messages.kbytes": "what was fetched is bounded by fetch.max.bytes",
    "queued.min.messages": "what was fetched is bounded by fetch.max.bytes, and more is fetched as it is read",
    "rebalance_cb": "give the consumer a listener",
    "receive.message.max.bytes": "fetch.max.bytes bounds what a broker answers",
    "socket.keepalive.enable": "request.timeout.ms finds a connection dead that somebody waits at",
    "socket.nagle.disable": "Nagle's algorithm is always off",
    "socket.receive.buffer.bytes": _SOCKETS,
    "socket.send.buffer.bytes": _SOCKETS,
    "stats_cb": "it is an argument of producers and consumers, beside statistics.interval.ms",
    "sticky.partitioning.linger.ms": "records without a key stay at a partition for batch.size bytes",
    "topic.blacklist": "a pattern of topics is matched with whole names: leave out in it what you do not want",
}
"""The settings of librdkafka that people use, that Java's clients have not, and why they are not here."""


def reason_of(name: str) -> str | None:
    """Why there is no setting of that name here, as a phrase; None where Kafka's clients have none either."""
    if name in LIBRDKAFKA_NAMES:
        return f"is librdkafka's name of {LIBRDKAFKA_NAMES[name]}"
    for pattern, reason in (*NOT_HERE.items(), *NOT_HERE_OF_LIBRDKAFKA.items()):
        if fnmatchcase(name, pattern):
            return f"is not here: {reason}"
    return None
