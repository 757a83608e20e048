"""All other messages through ``kio``, whose types are generated from Kafka's own schemas (release 4.2.0).

A request on the wire is a header (API key, version, correlation id, client id) and a body; a response a header
(correlation id) and a body. Which header version goes with which message is in kio's types. Responses and bodies
come without the frame's length, requests made here carry it.
"""

from __future__ import annotations

from typing import NamedTuple

from kio.static.protocol import RequestPayload, ResponsePayload

from raylog.protocol.compression import Buffer


class RequestHeader(NamedTuple):
    """``body_pos`` is where the body begins in the frame."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body_pos: int


def parse_request_header(frame: Buffer) -> RequestHeader:
    """The header of a request's frame, of whatever API and version.

    For an API or version that is unknown here, the client id is None and ``body_pos`` is behind the frame's fixed
    part, so that an answer (UNSUPPORTED_VERSION) can still name the correlation id. Raises InvalidRequest.
    """
    raise NotImplementedError


def decode_request(api_key: int, version: int, body: Buffer) -> RequestPayload:
    """The request as kio's type. Raises UnsupportedVersion, or InvalidRequest when malformed or too long."""
    raise NotImplementedError


def encode_response(api_key: int, version: int, correlation_id: int, entity: ResponsePayload) -> bytes:
    """Header and body of a response, without a length before it."""
    raise NotImplementedError


def encode_request(entity: RequestPayload, correlation_id: int, client_id: str | None) -> bytes:
    """The request's whole frame, with its length. API and version are those of the entity's type."""
    raise NotImplementedError


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[int, ResponsePayload]:
    """Correlation id and body of a response's frame (without its length), as kio's type.

    Raises UnsupportedVersion, or CorruptMessage when it is malformed.
    """
    raise NotImplementedError
