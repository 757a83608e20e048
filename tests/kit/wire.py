"""Requests from plain values, and a client that speaks the protocol byte by byte: for tests of brokers."""

from __future__ import annotations

import socket
import struct
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType, UnionType
from typing import Any, Self, get_args, get_origin

from kio.schema.errors import ErrorCode

from raylog.protocol.wire.fetch import FetchRequest, FetchResponse, encode_fetch_request, parse_fetch_response
from raylog.protocol.wire.messages import decode_response, encode_request, request_type
from raylog.protocol.wire.primitives import ZERO_UUID
from raylog.protocol.wire.produce import (
    PartitionRecords,
    ProduceRequest,
    ProduceResponse,
    TopicRecords,
    encode_produce_request,
    parse_produce_response,
)

CLIENT_ID = "wire-test"
TIMEOUT = timedelta(seconds=60)


def entity(kind: Any, values: dict[str, Any]) -> Any:
    """A kio entity from nested plain values.

    Values that the version has no field for are left out; fields without a value get their default, or zero. A request
    that names no timeout has time.
    """
    filled = {}
    for field in fields(kind):
        if field.name in values:
            filled[field.name] = _value(field.type, values[field.name])
        elif field.default is MISSING:
            filled[field.name] = _zero(field)
    return kind(**filled)


def _value(annotation: Any, value: Any) -> Any:
    for option in get_args(annotation) if get_origin(annotation) is UnionType else (annotation,):
        if get_origin(option) is tuple and isinstance(value, list | tuple):
            return tuple(_value(get_args(option)[0], item) for item in value)
        if is_dataclass(option) and isinstance(value, dict):
            return entity(option, value)
    return value


def _zero(field: Field[Any]) -> Any:
    annotation: Any = field.type
    if field.name == "timeout":
        return TIMEOUT
    if get_origin(annotation) is UnionType:
        return None
    if get_origin(annotation) is tuple:
        return ()
    return entity(annotation, {}) if is_dataclass(annotation) else _ZEROS.get(field.metadata["kafka_type"], 0)


_ZEROS: dict[str, Any] = {
    "bool": False,
    "string": "",
    "bytes": b"",
    "records": b"",
    "error_code": ErrorCode.none,
    "timedelta_i32": timedelta(),
    "timedelta_i64": timedelta(),
    "datetime_i64": datetime(1970, 1, 1, tzinfo=UTC),
}


def request(api_key: int, version: int, *, correlation_id: int = 7, **values: Any) -> bytes:
    """The frame of a request, with its length."""
    kind = request_type(api_key, version)
    return encode_request(entity(kind, values), correlation_id, CLIENT_ID)


def produce_request(
    topic: str,
    batches: bytes,
    *,
    version: int = 9,
    partition: int = 0,
    acks: int = 1,
    topic_id: Any = ZERO_UUID,
    transactional_id: str | None = None,
    timeout_ms: int = 1000,
    correlation_id: int = 7,
) -> bytes:
    """The frame of a Produce request for one partition, with its length."""
    parsed = ProduceRequest(
        transactional_id, acks, timeout_ms, [TopicRecords(topic, topic_id, [PartitionRecords(partition, batches)])]
    )
    return b"".join(encode_produce_request(version, parsed, correlation_id=correlation_id, client_id=CLIENT_ID))


def fetch_request(version: int, parsed: FetchRequest, *, correlation_id: int = 7) -> bytes:
    """The frame of a Fetch request, with its length."""
    return encode_fetch_request(version, parsed, correlation_id=correlation_id, client_id=CLIENT_ID)


class WireClient:
    """One connection to a broker, blocking, with a deadline on each step."""

    def __init__(self, address: tuple[str, int], *, timeout_s: float = 10.0) -> None:
        self.sock = socket.create_connection(address, timeout_s)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def receive(self) -> bytes:
        """The next response's frame without its length. EOFError when the broker closed the connection."""
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def closed(self) -> bool:
        """True when the broker ended the connection in an orderly way (no reset), having sent nothing more."""
        return self.sock.recv(1) == b""

    def ask(self, api_key: int, version: int, **values: Any) -> Any:
        """Send one request, and the response to it."""
        self.send(request(api_key, version, **values))
        _, response = decode_response(api_key, version, self.receive())
        return response

    def produce(self, topic: str, batches: bytes, *, version: int = 9, **options: Any) -> ProduceResponse:
        self.send(produce_request(topic, batches, version=version, **options))
        return parse_produce_response(version, self.receive())[1]

    def fetch(self, version: int, parsed: FetchRequest) -> FetchResponse[memoryview]:
        self.send(fetch_request(version, parsed))
        return parse_fetch_response(version, self.receive())[1]

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            more = self.sock.recv(count - len(data))
            if not more:
                raise EOFError(f"the broker closed the connection after {len(data)} of {count} bytes")
            data += more
        return bytes(data)
