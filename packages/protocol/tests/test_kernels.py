"""What the kernel's modules are given may contradict itself: they refuse it, before they follow it anywhere."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.kernels import uncompiled
from raylog.protocol.batches.column_buffers import Blobs, HeaderLists
from raylog.protocol.batches.compiled import KERNEL
from raylog.protocol.batches.rows import Record, decode_records
from raylog.protocol.errors import InvalidRecord

SOURCE = uncompiled("encode_kernel")
ENCODE_KERNELS = {"source": SOURCE, **({} if KERNEL is None else {"compiled": KERNEL[1]})}
every_kernel = pytest.mark.parametrize("kernel", ENCODE_KERNELS.values(), ids=ENCODE_KERNELS)


def int32s(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little", signed=True) for number in numbers)


def int64s(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)


TWO = Blobs(int32s(0, 1, 3), b"abc", None)
NO_HEADERS = HeaderLists(int32s(0, 0, 0), Blobs(int32s(0), b"", None), Blobs(int32s(0), b"", None))


@every_kernel
def test_sound_columns_become_records(kernel: ModuleType) -> None:
    keys = Blobs(int32s(0, 0, 1), b"k", b"\xfe", 6)
    headers = HeaderLists(int32s(0, 0, 1), Blobs(int32s(0, 1), b"n", None), Blobs(int32s(0, 0), b"", b"\x00"))
    body, edges = kernel.encode(keys, TWO, int64s(5, 4), headers, [0, 2])
    assert edges == [0, len(body)]
    first, second = decode_records(
        Record, bytes(body), 2, base_offset=0, last_delta=1, base_timestamp=5, append_time=None
    )
    assert (first.key, first.value, first.timestamp, list(first.headers)) == (b"", b"a", 5, [])
    assert (second.key, second.value, second.timestamp, list(second.headers)) == (b"k", b"bc", 4, [("n", None)])


@every_kernel
@pytest.mark.parametrize(
    "blobs",
    [
        Blobs(b"", b"", None),
        Blobs(int32s(0, 1, 4), b"abc", None),
        Blobs(int32s(0, 2, 1), b"abc", None),
        Blobs(int32s(-1, 1, 3), b"abc", None),
        Blobs(int32s(0, 1, -1), b"abc", None),
        Blobs(int32s(0, 1, 3), b"abc", b"\xff", 7),
        Blobs(int32s(0, 1, 3), b"abc", b"\xff", -1),
        Blobs(int32s(0, 1, 3), b"abc", b""),
        Blobs(int32s(0, 1), b"abc", None),
    ],
)
def test_a_column_that_contradicts_itself_is_refused(kernel: ModuleType, blobs: Blobs) -> None:
    for keys, values in ((blobs, TWO), (TWO, blobs)):
        with pytest.raises(InvalidRecord):
            kernel.encode(keys, values, int64s(1, 1), None, [0, 2])
    with pytest.raises(InvalidRecord):
        kernel.encode(TWO, TWO, int64s(1, 1), HeaderLists(int32s(0, 1, 2), TWO, blobs), [0, 2])
    with pytest.raises(InvalidRecord):
        kernel.encode(TWO, TWO, int64s(1, 1), HeaderLists(int32s(0, 1, 2), blobs, TWO), [0, 2])


@every_kernel
@pytest.mark.parametrize(
    "offsets", [int32s(0, 1), int32s(0, 1, 3), int32s(1, 0, 2), int32s(0, -1, 2), int32s(-1, 0, 2)]
)
def test_headers_that_contradict_themselves_are_refused(kernel: ModuleType, offsets: bytes) -> None:
    with pytest.raises(InvalidRecord):
        kernel.encode(TWO, TWO, int64s(1, 1), HeaderLists(offsets, TWO, TWO), [0, 2])


@every_kernel
@pytest.mark.parametrize("cuts", [[], [0], [0, 1], [0, 3], [1, 2], [0, 2, 1], [0, 2, 3], [0, -1, 2]])
def test_batches_that_do_not_cover_the_rows_are_refused(kernel: ModuleType, cuts: list[int]) -> None:
    with pytest.raises(InvalidRecord):
        kernel.encode(TWO, TWO, int64s(1, 1), NO_HEADERS, cuts)


@every_kernel
def test_columns_of_different_lengths_are_refused(kernel: ModuleType) -> None:
    with pytest.raises(InvalidRecord):
        kernel.encode(TWO, TWO, int64s(1, 1, 1), None, [0, 2])


offsets_ = st.lists(st.integers(-2, 6), max_size=5).map(lambda numbers: int32s(*numbers))
blobs_ = st.builds(Blobs, offsets_, st.binary(max_size=5), st.none() | st.binary(max_size=2), st.integers(-2, 20))


@pytest.mark.skipif(KERNEL is None, reason="no compiler was here when the package was built")
@given(
    blobs_,
    blobs_,
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4),
    st.none() | st.builds(HeaderLists, offsets_, blobs_, blobs_),
    st.lists(st.integers(-1, 5), max_size=4),
)
def test_the_compiled_kernel_does_with_any_buffers_what_its_source_does(
    keys: Blobs, values: Blobs, times: list[int], headers: HeaderLists | None, cuts: list[int]
) -> None:
    outcomes = []
    for kernel in ENCODE_KERNELS.values():
        try:
            body, edges = kernel.encode(keys, values, int64s(*times), headers, cuts)
        except InvalidRecord as error:
            outcomes.append(str(error))
        else:
            assert all(start <= end for start, end in pairwise(edges))
            outcomes.append((bytes(body), edges))
    assert outcomes[0] == outcomes[1]
