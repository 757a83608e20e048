"""All other messages through ``kio``, whose types are generated from Kafka's own schemas (release 4.2.0).

kio writes; reading is done by :mod:`raylog.protocol.wire.entities`, which also says why.

A request on the wire is a header (API key, version, correlation id, client id) and a body; a response a
header (correlation id) and a body. In a flexible message (KIP-482) the header ends with tagged fields, except
that of an ApiVersions response, which must be readable before versions are agreed on. Responses come and go
without the frame's length, requests that are made here carry it.
"""

from __future__ import annotations

import struct
from functools import cache
from io import BytesIO
from typing import Any, NamedTuple, cast

from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.serial import entity_writer
from kio.static.protocol import RequestPayload, ResponsePayload

from raylog.protocol.batches.compression import Buffer
from raylog.protocol.errors import CorruptMessage, UnsupportedVersion
from raylog.protocol.wire.entities import entity_reader
from raylog.protocol.wire.frames import encode_frame
from raylog.protocol.wire.primitives import INT32, REQUEST_HEADER, Reader, Writer, encode_request_header


class RequestHeader(NamedTuple):
    """``body_pos`` is where the body begins in the frame."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_pos: int


def parse_request_header(frame: Buffer) -> RequestHeader:
    """The header of a request's frame, of whatever API and version.

    For an API or version that kio does not know, the client id is None and ``body_pos`` is behind the frame's
    fixed part, so that an answer (UNSUPPORTED_VERSION) can still name the correlation id. Raises
    InvalidRequest.
    """
    usual = _usual_header(frame)
    if usual is not None:
        return usual
    reader = Reader(frame, flexible=False)
    api_key, version, correlation_id = reader.unpack(REQUEST_HEADER)
    flexible = _request_is_flexible(api_key, version)
    if flexible is None:
        return RequestHeader(api_key, version, correlation_id, None, reader.pos)
    client_id = reader.nullable_string()  # with a 16-bit length in flexible messages, too
    if flexible:
        reader.flexible = True
        reader.tags()
    return RequestHeader(api_key, version, correlation_id, client_id, reader.pos)


def _usual_header(frame: Buffer) -> RequestHeader | None:
    """What nearly all requests begin with: a client id, and no tagged fields. None for everything else."""
    try:
        api_key, version, correlation_id, size = _USUAL_HEADER.unpack_from(frame)
        end = _USUAL_HEADER.size + size
        if size < 0 or end >= len(frame) or (flexible := _request_is_flexible(api_key, version)) is None:
            return None
        client_id = str(memoryview(frame)[_USUAL_HEADER.size : end], "utf-8")
    except (struct.error, UnicodeDecodeError):
        return None
    if not flexible:
        return RequestHeader(api_key, version, correlation_id, client_id, end)
    return None if frame[end] else RequestHeader(api_key, version, correlation_id, client_id, end + 1)


_USUAL_HEADER = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id


@cache
def _request_is_flexible(api_key: int, version: int) -> bool | None:
    """Whether the request's header ends with tagged fields; None when kio does not know the message."""
    if api_key == _PRODUCE and 0 <= version < 3:
        return False
    if api_key == _FETCH and 0 <= version < 4:
        return False
    try:
        return bool(load_request_schema(api_key, version).__header_schema__.__flexible__)
    except KioIndexError:
        return None


_PRODUCE, _FETCH = 0, 1


@cache
def request_type(api_key: int, version: int) -> type[RequestPayload]:
    """kio's type of the request. Raises UnsupportedVersion for an API or version that kio does not know."""
    try:
        return load_request_schema(api_key, version)
    except KioIndexError:
        raise UnsupportedVersion(f"API {api_key} has no version {version} here") from None


@cache
def response_type(api_key: int, version: int) -> type[ResponsePayload]:
    """kio's type of the response. Raises UnsupportedVersion for an API or version that kio does not know."""
    try:
        return load_response_schema(api_key, version)
    except KioIndexError:
        raise UnsupportedVersion(f"API {api_key} has no version {version} here") from None


def decode_request(api_key: int, version: int, body: Buffer) -> RequestPayload:
    """The request as kio's type. Raises UnsupportedVersion, or InvalidRequest when malformed.

    Bytes after the request are ignored, as Kafka does: librdkafka leaves three behind the null array with
    which it asks for the metadata of all topics.
    """
    kind = request_type(api_key, version)
    reader = Reader(body, flexible=kind.__flexible__)
    return cast(RequestPayload, _read_entity(kind, reader, f"request {api_key} v{version}"))


def encode_response(api_key: int, version: int, correlation_id: int, entity: ResponsePayload) -> bytes:
    """Header and body of a response, without a length before it.

    ``entity`` must be of the type that ``response_type(api_key, version)`` gives; TypeError says that it is not.
    """
    expected = response_type(api_key, version)
    if type(entity) is not expected:
        raise TypeError(f"response {api_key} v{version} is {expected}, not {type(entity)}")
    buffer = BytesIO()
    buffer.write(INT32.pack(correlation_id))
    if expected.__header_schema__.__flexible__:
        buffer.write(b"\x00")
    entity_writer(expected)(buffer, entity)
    return buffer.getvalue()


def encode_request(entity: RequestPayload, correlation_id: int, client_id: str | None) -> bytes:
    """The request's whole frame, with its length. API and version are those of the entity's type."""
    kind = type(entity)
    writer = Writer(flexible=kind.__header_schema__.__flexible__)
    encode_request_header(writer, kind.__api_key__, kind.__version__, correlation_id, client_id)
    buffer = BytesIO()
    entity_writer(kind)(buffer, entity)
    return encode_frame(b"".join((*writer.parts(), buffer.getbuffer())))


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[int, ResponsePayload]:
    """Correlation id and body of a response's frame (without its length), as kio's type.

    Raises UnsupportedVersion, or CorruptMessage when it is malformed.
    """
    kind = response_type(api_key, version)
    reader = Reader(frame, flexible=kind.__header_schema__.__flexible__, error=CorruptMessage)
    correlation_id = reader.int32()
    reader.tags()
    reader.flexible = kind.__flexible__
    return correlation_id, cast(
        ResponsePayload, _read_entity(kind, reader, f"response {api_key} v{version}", to_the_end=True)
    )


def _read_entity(kind: Any, reader: Reader, what: str, *, to_the_end: bool = False) -> Any:
    try:
        entity = entity_reader(kind)(reader)
        if to_the_end:
            reader.finish()
    except reader.error as reason:
        raise reader.error(f"{what} is malformed: {reason}") from None
    return entity
