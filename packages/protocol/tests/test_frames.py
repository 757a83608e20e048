"""Frames out of a stream that arrives in any pieces, within bounds of length and memory."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable

import pytest

from raylog.protocol.errors import InvalidRequest
from raylog.protocol.wire.frames import GREEDY_BYTES, SMALL_BYTES, FrameBuffer, encode_frame, frame_length

MAX = 4 << 20


def receive(buffer: FrameBuffer, stream: bytes, sizes: Iterable[int]) -> list[bytes]:
    """All frames of ``stream``, of which the socket gives as many bytes at a time as ``sizes`` say."""
    frames: list[bytes] = []
    rest = memoryview(stream)
    for size in sizes:
        while (frame := buffer.next_frame()) is not None:
            frames.append(bytes(frame))
        if not rest:
            break
        room = buffer.writable()
        assert len(room) > 0
        count = min(size, len(room), len(rest))
        room[:count] = rest[:count]
        rest = rest[count:]
        buffer.advance(count)
    assert not rest
    return frames


def forever(size: int) -> Iterable[int]:
    while True:
        yield size


MESSAGES = [b"a", b"bb" * 1000, bytes(3), b"c" * 70_000, b"d" * (GREEDY_BYTES + 1), b"e" * 1_500_000, b"f"]


@pytest.mark.parametrize("size", [1, 3, 4, 5, 4096, 65_536, 10**9])
def test_frames_come_out_however_the_bytes_come_in(size: int) -> None:
    messages = MESSAGES if size > 1 else MESSAGES[:4]
    stream = b"".join(map(encode_frame, messages))
    assert receive(FrameBuffer(MAX), stream, forever(size)) == messages


@pytest.mark.parametrize("seed", range(20))
def test_frames_come_out_of_random_pieces(seed: int) -> None:
    chance = random.Random(seed)
    messages = [chance.randbytes(int(10 ** chance.uniform(0, 5.7))) for _ in range(40)]
    stream = b"".join(map(encode_frame, messages))
    pieces = (int(10 ** chance.uniform(0, 5.5)) for _ in forever(0))
    assert receive(FrameBuffer(MAX), stream, pieces) == messages


@pytest.mark.parametrize("length", [-(2**31), -1, 0, MAX + 1, 2**31 - 1])
def test_a_bad_length_ends_the_stream(length: int) -> None:
    buffer = FrameBuffer(MAX)
    room = buffer.writable()
    room[:4] = struct.pack(">i", length)
    buffer.advance(4)
    with pytest.raises(InvalidRequest, match=f"claims {length} bytes"):
        buffer.next_frame()


def test_the_largest_frame_is_allowed() -> None:
    assert receive(FrameBuffer(10), encode_frame(bytes(10)), forever(100)) == [bytes(10)]


def test_a_frame_is_writable_and_not_a_copy() -> None:
    buffer = FrameBuffer(MAX)
    room = buffer.writable()
    room[:7] = b"\0\0\0\3abc"
    buffer.advance(7)
    frame = buffer.next_frame()
    assert frame is not None
    frame[0] = ord("x")
    assert bytes(room[:7]) == b"\0\0\0\3xbc"


def test_a_claimed_length_reserves_nothing() -> None:
    buffer = FrameBuffer(100 << 20)
    room = buffer.writable()
    room[:4] = struct.pack(">i", 100 << 20)
    buffer.advance(4)
    assert buffer.next_frame() is None
    buffer.writable()
    assert buffer.capacity == SMALL_BYTES


def test_the_buffer_never_outgrows_what_came_by_more_than_its_growth() -> None:
    buffer = FrameBuffer(MAX)
    stream = encode_frame(bytes(MAX))
    received = 0
    while received < len(stream):
        room = buffer.writable()
        assert buffer.capacity <= max(4 * received, SMALL_BYTES)
        count = min(len(room), len(stream) - received)
        room[:count] = stream[received : received + count]
        buffer.advance(count)
        received += count
        frame = buffer.next_frame()
    assert frame is not None
    assert len(frame) == MAX


def test_a_busy_stream_of_small_frames_is_read_greedily() -> None:
    buffer = FrameBuffer(MAX)
    stream = encode_frame(bytes(100)) * 20_000
    assert len(receive(buffer, stream, forever(10**9))) == 20_000
    assert buffer.capacity == GREEDY_BYTES


def test_a_large_buffer_is_given_back_after_a_while_and_at_once_when_asked() -> None:
    buffer = FrameBuffer(MAX)
    receive(buffer, encode_frame(bytes(MAX)), forever(10**9))
    assert buffer.capacity > MAX
    receive(buffer, encode_frame(b"small") * 400, forever(9))
    assert buffer.capacity <= GREEDY_BYTES
    receive(buffer, encode_frame(bytes(MAX)), forever(10**9))
    buffer.trim()
    assert buffer.capacity == 0


def test_trim_keeps_a_frame_that_has_begun() -> None:
    buffer = FrameBuffer(MAX)
    stream = encode_frame(bytes(range(256)) * 1000)
    half = len(stream) // 2
    assert receive(buffer, stream[:half], forever(10**9)) == []
    assert buffer.pending == half
    buffer.trim()
    assert receive(buffer, stream[half:], forever(10**9)) == [stream[4:]]


def test_lengths_are_written() -> None:
    assert encode_frame(b"abc") == b"\0\0\0\3abc"
    assert frame_length([b"ab", b"c"]) == b"\0\0\0\3"
