"""Compressed batches in Produce: what no consumer could read is refused, and a check costs a bounded amount."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

import cramjam
import pytest
import zstandard
from kio.schema.errors import ErrorCode

from kit.node import Node
from raylog.broker.storage.log.decompression import MAX_REQUEST_BYTES, RequestDecompression
from raylog.protocol.batches.compression import DEFAULT_MAX_BYTES, Codec, compress
from raylog.protocol.batches.rows import encode_records
from raylog.protocol.errors import InvalidRecord, MessageTooLarge
from raylog.protocol.ids import PartitionIndex, TopicName, TopicPartition
from raylog.protocol.records import Record, frame_batch, read_header
from raylog.protocol.wire.primitives import ZERO_UUID
from raylog.protocol.wire.produce import (
    PartitionRecords,
    ProducedPartition,
    ProduceRequest,
    TopicRecords,
    encode_produce_request,
    parse_produce_response,
)

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
MIB = 1 << 20
TP = TopicPartition(TopicName("t"), PartitionIndex(0))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, config={"message.max.bytes": str(64 * MIB)}) as node:
        node.create_topic("t", leader_epoch=3)
        yield node


def garbled(codec: Codec, body: bytes, count: int = 1) -> bytes:
    """A batch with the right checksum that claims to be compressed by ``codec``."""
    return frame_batch(body, count, 1, 1, attributes=codec)


def streamed(data: bytes, window_log: int) -> bytes:
    """A zstd frame that does not say how much it stands for."""
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=window_log)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(data) + packer.flush()


def produce(node: Node, *batches: bytes, topic: str = "t", acks: int = 1) -> Sequence[ProducedPartition]:
    """Each batch goes to partition 0, all in one request."""
    parts = [PartitionRecords(0, batch) for batch in batches]
    parsed = ProduceRequest(None, acks, 1000, [TopicRecords(topic, ZERO_UUID, parts)])
    frame = b"".join(encode_produce_request(9, parsed, correlation_id=7, client_id="c"))
    reply = node.answer(frame[4:])
    assert isinstance(reply, bytes)
    return parse_produce_response(9, reply)[1].topics[0].partitions


@pytest.mark.parametrize("codec", COMPRESSED)
def test_produce_of_what_cannot_be_decompressed_is_refused(node: Node, codec: Codec) -> None:
    sound = compress(codec, b"".join(encode_records([Record(b"v" * 500)])[0]))
    for body in (b"\xff\x00garbage" * 9, sound[:-3], sound[: len(sound) // 2]):
        (part,) = produce(node, garbled(codec, body))
        assert part.error_code == ErrorCode.invalid_record, body
        assert "t-0" in (part.error_message or "")
    (short,) = produce(node, garbled(codec, compress(codec, b"1234")))
    assert short.error_code == ErrorCode.invalid_record
    (part,) = produce(node, garbled(codec, sound))
    assert part.base_offset == 0


@pytest.mark.parametrize("codec", COMPRESSED)
def test_produce_unchecked_stores_what_its_producer_says(tmp_path: Path, codec: Codec) -> None:
    with Node(tmp_path, config={"raylog.produce.check.compressed": "false"}) as node:
        node.create_topic("t")
        (part,) = produce(node, garbled(codec, b"garbage" * 9))
        assert part.error_code == 0


@pytest.mark.parametrize("codec", COMPRESSED)
def test_produce_of_a_compression_bomb_is_too_large(node: Node, codec: Codec) -> None:
    """MESSAGE_TOO_LARGE, on which Java's producer sends the records again in smaller batches."""
    data = bytes(DEFAULT_MAX_BYTES + 1)
    bodies = [compress(codec, data)]
    if codec is Codec.ZSTD:
        bodies.append(streamed(data, window_log=27))
    if codec is Codec.SNAPPY:
        bodies.append(bytes(cramjam.snappy.compress_raw(data)))
    del data
    for body in bodies:
        batch = garbled(codec, body)
        tracemalloc.start()
        try:
            (part,) = produce(node, batch)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert part.error_code == ErrorCode.message_too_large
        assert f"t-0: a batch decompresses to more than {DEFAULT_MAX_BYTES} bytes" in (part.error_message or "")
        assert peak < 4 * MIB + 3 * len(batch)


def test_produce_of_many_bombs_costs_what_one_request_may(node: Node) -> None:
    record = b"".join(encode_records([Record(b"v" * 100)])[0])
    bomb = garbled(Codec.ZSTD, compress(Codec.ZSTD, record + bytes(100 * MIB)))
    fits = MAX_REQUEST_BYTES // (100 * MIB)
    parts = produce(node, *[bomb] * (fits + 3))
    assert [part.error_code for part in parts] == [0] * fits + [ErrorCode.message_too_large] * 3
    assert all(f"more than {MAX_REQUEST_BYTES} bytes" in (part.error_message or "") for part in parts[fits:])
    (again,) = produce(node, bomb)
    assert again.error_code == 0, "the next request begins anew"


@pytest.mark.parametrize("acks", [1, -1])
def test_produce_is_refused_before_anything_is_decompressed(node: Node, acks: int) -> None:
    node.create_topic("few", replicas=(1, 2, 3), isr=(1,), config={"min.insync.replicas": "2"})
    node.create_topic("led", replicas=(1, 2), leader=2)
    garbage = garbled(Codec.GZIP, b"garbage" * 9)
    (few,) = produce(node, garbage, topic="few", acks=acks)
    assert few.error_code == (ErrorCode.not_enough_replicas if acks == -1 else ErrorCode.invalid_record)
    (led,) = produce(node, garbage, topic="led", acks=acks)
    assert led.error_code == ErrorCode.not_leader_or_follower


# --- the budget of a request


class Slots(AbstractContextManager[None]):
    """Counts how often a slot was taken; none may be held at the end."""

    def __init__(self) -> None:
        self.taken = self.held = 0

    def __enter__(self) -> None:
        self.taken += 1
        self.held += 1

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.held -= 1


def check(batch: bytes, decompression: RequestDecompression) -> None:
    decompression.check(read_header(batch), memoryview(batch), TP)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_large_batches_wait_for_a_slot_small_ones_do_not(codec: Codec) -> None:
    slots = Slots()
    decompression = RequestDecompression(slots=slots)
    check(garbled(codec, compress(codec, bytes(MIB // 2))), decompression)
    assert (slots.taken, slots.held) == (0, 0)
    check(garbled(codec, compress(codec, bytes(MIB + 1))), decompression)
    assert (slots.taken, slots.held) == (1, 0)


def test_large_raw_snappy_block_waits_before_it_is_decompressed() -> None:
    slots = Slots()
    block = bytes(cramjam.snappy.compress_raw(bytes(2 * MIB)))
    with pytest.raises(InvalidRecord):
        check(garbled(Codec.SNAPPY, block[:-1]), RequestDecompression(slots=slots))
    assert (slots.taken, slots.held) == (1, 0)


def test_slot_is_given_back_by_a_batch_that_is_refused() -> None:
    slots = Slots()
    cut = compress(Codec.GZIP, bytes(4 * MIB))[:-1]
    with pytest.raises(InvalidRecord, match="no consumer can read the batch"):
        check(garbled(Codec.GZIP, cut), RequestDecompression(slots=slots))
    assert (slots.taken, slots.held) == (1, 0)


@pytest.mark.parametrize("data", [b"", b"ab"])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_small_pieces_count_as_more_than_they_are(codec: Codec, data: bytes) -> None:
    """A tiny frame costs as much time as some kilobytes."""
    with pytest.raises(MessageTooLarge, match="a batch decompresses to more than"):
        check(garbled(codec, compress(codec, data) * 40_000), RequestDecompression())
