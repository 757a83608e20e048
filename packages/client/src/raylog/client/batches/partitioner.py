"""◆ Which partition a record goes to.

A key's hash is Kafka's murmur2, so that every client of a topic, in any language, puts a key into the same
partition; librdkafka's other hashes are there for topics that its clients write. Records without a key stick to one
partition for a batch's worth of bytes and then move to another (KIP-480, KIP-794): that fills batches, which choosing
per record does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import unpack_from
from typing import NamedTuple
from zlib import crc32

__all__ = ["KEY_HASHES", "KeyHash", "KeyPartitioner", "StickyPartitioner", "Turns", "fnv1a", "murmur2"]

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """The 32-bit MurmurHash2 of ``data`` with Kafka's seed, unsigned."""
    length = len(data)
    words = length >> 2
    h = _SEED ^ length
    for k in unpack_from(f"<{words}I", data):
        k = k * _M & _MASK
        h = h * _M & _MASK ^ (k ^ k >> 24) * _M & _MASK
    tail = length & 3
    if tail:
        h = (h ^ int.from_bytes(data[length - tail :], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def fnv1a(data: bytes) -> int:
    """FNV-1a of ``data``, as librdkafka and Sarama have it: 32 bits, the absolute value of the signed number."""
    h = 0x811C9DC5
    for byte in data:
        h = (h ^ byte) * 0x01000193 & _MASK
    return min(h, (1 << 32) - h)


def _murmur2(key: bytes) -> int:
    """Kafka's ``toPositive(murmur2(key))``."""
    return murmur2(key) & 0x7FFFFFFF


class KeyHash(NamedTuple):
    """A partitioner that goes by the key: its hash, and the key whose hash decides where there is none, and where it
    is empty. None: nothing decides, and the record goes where others without a key go."""

    of: Callable[[bytes], int]
    null: bytes | None
    empty: bytes | None


KEY_HASHES: Mapping[str, KeyHash] = {
    "murmur2_random": KeyHash(_murmur2, None, b""),
    "murmur2": KeyHash(_murmur2, b"", b""),
    "consistent_random": KeyHash(crc32, None, None),
    "consistent": KeyHash(crc32, b"", b""),
    "fnv1a_random": KeyHash(fnv1a, None, b""),
    "fnv1a": KeyHash(fnv1a, b"", b""),
}
"""By their names in librdkafka. Java's default is murmur2_random."""


class KeyPartitioner:
    """Partition by key. Hashes of recent keys are kept: keys tend to come back, and the hash is pure
    Python."""

    def __init__(self, hash_of: Callable[[bytes], int] = _murmur2, kept_keys: int = 65_536) -> None:
        self._hash_of = hash_of
        self._hashes: dict[bytes, int] = {}
        self._kept = kept_keys

    def partition(self, key: bytes, partition_count: int) -> int:
        """The remainder of the key's hash by the number of partitions."""
        try:
            return self._hashes[key] % partition_count
        except KeyError:
            pass
        if len(self._hashes) >= self._kept:
            self._hashes.clear()
        hashed = self._hashes[key] = self._hash_of(key)
        return hashed % partition_count


class StickyPartitioner:
    """Partition of the records of one topic that have no key.

    ``choose(n)`` answers a number below n at random. ``switch_bytes`` is the size of a batch.
    """

    def __init__(self, choose: Callable[[int], int], switch_bytes: int) -> None:
        self._choose = choose
        self._switch_bytes = switch_bytes
        self._partition = -1
        self._bytes_left = 0

    def partition(self, size: int, available: Sequence[int], partition_count: int) -> int:
        """The partition of a record of ``size`` bytes. ``available``: partitions that have a leader; with
        none of them any partition is as good, and the record waits for its leader there."""
        self._bytes_left -= size
        if self._bytes_left < 0 or self._partition >= partition_count:
            self._bytes_left = self._switch_bytes - size
            if available:
                self._partition = available[self._choose(len(available))]
            else:
                self._partition = self._choose(partition_count)
        return self._partition


class Turns:
    """One partition after the other, record by record, as Java's RoundRobinPartitioner.

    ``available``: partitions that have a leader; the others are left out, unless there is none of these.
    """

    def __init__(self) -> None:
        self._taken = 0

    def partition(self, available: Sequence[int], partition_count: int) -> int:
        """The partition of the next record."""
        among = available or range(partition_count)
        self._taken += 1
        return among[(self._taken - 1) % len(among)]

    def partitions(self, records: int, available: Sequence[int], partition_count: int) -> list[int]:
        """Those of so many records."""
        among = available or range(partition_count)
        first = self._taken % len(among)
        self._taken += records
        in_order = [*among[first:], *among[:first]]
        return (in_order * (records // len(in_order) + 1))[:records]
