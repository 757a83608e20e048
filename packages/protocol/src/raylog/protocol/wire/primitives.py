"""Kafka's primitive types on the wire, for the messages that are parsed by hand.

A message is either *flexible* (compact strings and arrays, whose length is an unsigned varint and one too
high so that 0 stands for null, and tagged fields at the end of each structure, KIP-482) or not (16- and
32-bit lengths, -1 for null). :class:`Reader` and :class:`Writer` are told which and otherwise hide the difference.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

from raylog.protocol.batches.compression import Buffer
from raylog.protocol.errors import InvalidRequest, RaylogError, UnsupportedVersion

T = TypeVar("T")
U = TypeVar("U")
Item = TypeVar("Item", covariant=True)

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")

REQUEST_HEADER = struct.Struct(">hhi")
"""API key, version and correlation id: what every request begins with."""

ZERO_UUID = UUID(int=0)


class NodeEndpoint(NamedTuple):
    """Where a broker can be reached: beside NOT_LEADER_OR_FOLLOWER it spares a metadata request (KIP-951)."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class Slice(Protocol):
    """Bytes that lie elsewhere, such as a piece of a file, and are not copied into the message."""

    @property
    def length(self) -> int:
        """In bytes."""


MAX_REQUEST_ITEMS = 1_000_000
"""How many array items a request may have in all: a byte can stand for an object of hundreds."""


class Reader:
    """Reads a message from ``data``, from ``pos`` on; whatever is malformed raises ``error``."""

    __slots__ = ("data", "end", "error", "flexible", "items", "pos")

    def __init__(
        self, data: Buffer, pos: int = 0, *, flexible: bool, error: type[RaylogError] = InvalidRequest
    ) -> None:
        self.data = memoryview(data)
        self.pos = pos
        self.end = len(data)
        self.flexible = flexible
        self.error = error
        self.items = MAX_REQUEST_ITEMS if error is InvalidRequest else self.end  # answers come from who was asked

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The fields of ``layout``."""
        try:
            fields = layout.unpack_from(self.data, self.pos)
        except struct.error:
            raise self._short() from None
        self.pos += layout.size
        return fields

    def int32(self) -> int:
        """A 32-bit signed integer."""
        try:
            value: int = INT32.unpack_from(self.data, self.pos)[0]
        except struct.error:
            raise self._short() from None
        self.pos += 4
        return value

    def uvarint(self) -> int:
        """An unsigned integer of at most 32 bits in groups of seven bits, lowest first."""
        data, pos, shift = self.data, self.pos, 7
        try:
            value = data[pos]
            if value < 0x80:
                self.pos = pos + 1
                return value
            value &= 0x7F
            while (byte := data[pos := pos + 1]) & 0x80:
                value |= (byte & 0x7F) << shift
                shift += 7
                if shift > 28:
                    raise self.error(f"the varint before byte {pos} does not end")
        except IndexError:
            raise self._short() from None
        self.pos = pos + 1
        value |= byte << shift
        if value >> 32:
            raise self.error(f"the varint before byte {pos} does not fit 32 bits")
        return value

    def bytes(self) -> memoryview | None:
        """A byte string, not copied; None for null. (Kafka's types ``bytes`` and ``records``.)"""
        return self._slice(self.uvarint() - 1 if self.flexible else self.int32())

    def nullable_string(self) -> str | None:
        """A string, or None for null."""
        data = self._slice(self.uvarint() - 1 if self.flexible else self.unpack(INT16)[0])
        if data is None:
            return None
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError:
            raise self.error(f"the string before byte {self.pos} is not UTF-8") from None

    def string(self) -> str:
        """A string that must not be null."""
        value = self.nullable_string()
        if value is None:
            raise self.error(f"the string before byte {self.pos} is null")
        return value

    def uuid(self) -> UUID:
        """A UUID; all zeros stands for none."""
        data = self._slice(16)
        return UUID(bytes=bytes(data)) if data is not None else ZERO_UUID

    def nullable_array(self, item: Callable[[], T]) -> list[T] | None:
        """``item()`` as often as the array's length says; None for null."""
        count = self.uvarint() - 1 if self.flexible else self.int32()
        if count < 0:
            if count == -1:
                return None
            raise self.error(f"the array before byte {self.pos} has {count} items")
        if count > self.end - self.pos:  # each item takes a byte at the least
            raise self.error(f"an array of {count} items does not fit {self.end - self.pos} bytes")
        self.items -= count
        if self.items < 0:
            raise self.error(f"the message has more array items than the {MAX_REQUEST_ITEMS} that are allowed")
        return [item() for _ in range(count)]

    def array(self, item: Callable[[], T]) -> list[T]:
        """An array that must not be null."""
        items = self.nullable_array(item)
        if items is None:
            raise self.error(f"the array before byte {self.pos} is null")
        return items

    def tags(self, known: Callable[[int, Reader], None] | None = None) -> None:
        """The tagged fields that end a structure: each tag with a reader of its value goes to ``known``.

        Tags that nobody asks for are skipped, as KIP-482 wants it. Does nothing in a message that is not flexible.
        """
        if not self.flexible:
            return
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            value = self._slice(self.uvarint())
            if known is not None and value is not None:
                inner = Reader(value, flexible=True, error=self.error)
                inner.items = self.items
                known(tag, inner)
                self.items = inner.items

    def finish(self) -> None:
        """Must be called at the message's end: bytes that are left over are an error, too."""
        if self.pos != self.end:
            raise self.error(f"{self.end - self.pos} bytes are left over after the message")

    def _slice(self, length: int) -> memoryview | None:
        if length < 0:
            if length == -1:
                return None
            raise self.error(f"the length before byte {self.pos} is {length}")
        start, stop = self.pos, self.pos + length
        if stop > self.end:
            raise self._short()
        self.pos = stop
        return self.data[start:stop]

    def _short(self) -> RaylogError:
        return self.error(f"the message of {self.end} bytes ends inside a field that begins at byte {self.pos}")


class Writer:
    """Builds a message of fields and of large pieces (record data) that are passed on uncopied.

    What is written ends up in :meth:`parts` in wire order.
    """

    __slots__ = ("_out", "_parts", "flexible")

    def __init__(self, *, flexible: bool) -> None:
        self._out = bytearray()
        self._parts: list[Any] = []
        self.flexible = flexible

    def pack(self, layout: struct.Struct, *fields: Any) -> None:
        """The fields of ``layout``. Raises InvalidRequest when one does not fit."""
        try:
            self._out += layout.pack(*fields)
        except struct.error as error:
            raise InvalidRequest(f"cannot encode {fields}: {error}") from None

    def pack_item(self, layout: struct.Struct, *fields: Any) -> None:
        """A structure of nothing but the fields of ``layout``."""
        self.pack(layout, *fields)
        self.tags()

    def raw(self, data: Buffer) -> None:
        """Bytes as they are."""
        self._out += data

    def uvarint(self, value: int) -> None:
        """An unsigned integer in groups of seven bits, lowest first."""
        out = self._out
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)

    def string(self, value: str | None) -> None:
        """A string, or null."""
        data = None if value is None else value.encode()
        if self.flexible:
            self.uvarint(0 if data is None else len(data) + 1)
        else:
            self.pack(INT16, -1 if data is None else len(data))
        if data is not None:
            self._out += data

    def uuid(self, value: UUID) -> None:
        """A UUID."""
        self._out += value.bytes

    def array(self, items: Sequence[T] | None, item: Callable[[T], None]) -> None:
        """An array, or null; ``item`` writes each."""
        self._size(-1 if items is None else len(items))
        for each in items or ():
            item(each)

    def records(self, data: Buffer | Slice | None) -> None:
        """Record data, passed on uncopied; None is sent as empty, for some clients take a null for damage."""
        if data is None:
            size = 0
        elif isinstance(data, bytes | bytearray | memoryview):
            size = len(data)
        else:
            size = data.length
        self._size(size)
        if size:
            self._flush()
            self._parts.append(data)

    def nullable_records(self, data: Buffer | None) -> None:
        """As :meth:`records`, but None is sent as null."""
        if data is None:
            self._size(-1)
        else:
            self.records(data)

    def _size(self, size: int) -> None:
        """The length of bytes or an array, -1 for null."""
        if self.flexible:
            self.uvarint(size + 1)
        else:
            self.pack(INT32, size)

    def tags(self, fields: Sequence[tuple[int, bytes]] = ()) -> None:
        """Tagged fields, lowest tag first; nothing in a message that is not flexible."""
        if not self.flexible:
            return
        self.uvarint(len(fields))
        for tag, value in fields:
            self.uvarint(tag)
            self.uvarint(len(value))
            self._out += value

    def parts(self) -> list[Any]:
        """All that was written, in wire order: ``bytes``, and the record data among them."""
        self._flush()
        return self._parts

    def _flush(self) -> None:
        if self._out:
            self._parts.append(bytes(self._out))
            self._out.clear()


def check_version(api: str, version: int, lowest: int, highest: int) -> None:
    """Raises UnsupportedVersion unless ``version`` is between ``lowest`` and ``highest``."""
    if not lowest <= version <= highest:
        raise UnsupportedVersion(f"{api} version {version} is not known; known are {lowest} to {highest}")


def encode_request_header(
    writer: Writer, api_key: int, version: int, correlation_id: int, client_id: str | None
) -> None:
    """The header that goes before a request's body.

    The client id's length has 16 bits in flexible messages, too.
    """
    writer.pack(REQUEST_HEADER, api_key, version, correlation_id)
    data = None if client_id is None else client_id.encode()
    writer.pack(INT16, -1 if data is None else len(data))
    writer.raw(data or b"")
    writer.tags()


def tagged(layout: struct.Struct, *fields: int) -> bytes:
    """The value of a tagged field that is a structure without strings, arrays or tags of its own."""
    return layout.pack(*fields) + b"\x00"


def encode_string(value: str) -> bytes:
    """The value of a tagged field that is a string."""
    writer = Writer(flexible=True)
    writer.string(value)
    return b"".join(writer.parts())


FIRST_TOPIC_ID = 13
"""From this version on Produce and Fetch name topics by id (KIP-516): by chance the same in both."""


class Topic(Protocol[Item]):
    """A topic and something for each of its partitions, in Produce or Fetch: it has either a name or an id."""

    @property
    def name(self) -> str: ...
    @property
    def topic_id(self) -> UUID: ...
    @property
    def partitions(self) -> Sequence[Item]: ...


def read_topics(
    version: int, reader: Reader, make: Callable[[str, UUID, list[T]], U], partition: Callable[[], T]
) -> list[U]:
    """An array of topics: ``partition`` reads one partition, ``make`` takes name, id and partitions."""

    def topic() -> U:
        with_id = version >= FIRST_TOPIC_ID
        name, topic_id = ("", reader.uuid()) if with_id else (reader.string(), ZERO_UUID)
        made = make(name, topic_id, reader.array(partition))
        reader.tags()
        return made

    return reader.array(topic)


def write_topics(version: int, writer: Writer, topics: Sequence[Topic[T]], partition: Callable[[T], None]) -> None:
    """The inverse of :func:`read_topics`."""

    def topic(data: Topic[T]) -> None:
        if version >= FIRST_TOPIC_ID:
            writer.uuid(data.topic_id)
        else:
            writer.string(data.name)
        writer.array(data.partitions, partition)
        writer.tags()

    writer.array(topics, topic)


def encode_node_endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """The value of the tagged field NodeEndpoints of Produce and Fetch responses."""
    writer = Writer(flexible=True)

    def endpoint(node: NodeEndpoint) -> None:
        writer.pack(INT32, node.node_id)
        writer.string(node.host)
        writer.pack(INT32, node.port)
        writer.string(node.rack)
        writer.tags()

    writer.array(endpoints, endpoint)
    return b"".join(writer.parts())


def read_node_endpoints(reader: Reader) -> list[NodeEndpoint]:
    """The inverse of :func:`encode_node_endpoints`."""

    def endpoint() -> NodeEndpoint:
        node = NodeEndpoint(reader.int32(), reader.string(), reader.int32(), reader.nullable_string())
        reader.tags()
        return node

    return reader.array(endpoint)
