"""The clients that others wrote, as long-lived streams, by name."""

from __future__ import annotations

from typing import Protocol

from kit import kafka_java, maven
from kit.clients import Kcat
from kit.demanded import java_left_out, left_out
from kit.kafka_java import JavaStream
from kit.streams import AioKafkaStream, ConfluentStream, KafkaPythonStream, KcatStream, Stream

__all__ = ["CLIENTS", "absent"]


class NewStream(Protocol):
    """Makes a stream, not started yet."""

    def __call__(self, servers: str, topic: str, *, rack: str = "") -> Stream: ...


def _java(release: maven.Release) -> NewStream:
    return lambda servers, topic, *, rack="": JavaStream(release, servers, topic, rack=rack)


CLIENTS: dict[str, NewStream] = {
    ConfluentStream.name: ConfluentStream,
    KafkaPythonStream.name: KafkaPythonStream,
    AioKafkaStream.name: AioKafkaStream,
    KcatStream.name: KcatStream,
    **{release.name: _java(release) for release in kafka_java.RELEASES},
}


def absent(name: str) -> bool:
    """Whether a client outside Python is not installed, and may be left out."""
    if name == KcatStream.name:
        return left_out("kcat", Kcat.missing())
    return name.startswith("java") and java_left_out()
