"""ApiVersions (API 18): which APIs and versions this broker offers. KIP-35, 511, 584.

v0      error code and one (key, lowest, highest) per API
v1, v2  the throttle time, too
v3      flexible; the request names the client's software; features in tagged fields (we have none yet)
v4      a feature's lowest version may be 0
newer   UNSUPPORTED_VERSION in a v0 response with only this API's own range, so that a client that knows no
        common version yet can ask again (KIP-511)

Any client may ask, before it has authenticated, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from raylog.broker.handlers.context import RequestContext
from raylog.broker.handlers.entities import make, throttle, types_of
from raylog.protocol.errors import ErrorCode, InvalidRequest, RaylogError, code_of
from raylog.protocol.wire.messages import encode_response

KEY = 18
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class Offer(NamedTuple):
    """The versions of one API that clients are told."""

    key: int
    min_version: int
    max_version: int


def decide(ctx: RequestContext, request: Any, offers: Iterable[Offer]) -> Any:
    """The offers, or INVALID_REQUEST when the client's software has no proper name (KIP-511)."""
    if ctx.version >= 3:
        for text in (request.client_software_name, request.client_software_version):
            if not _SOFTWARE.fullmatch(text):
                raise InvalidRequest(f"the client software's name or version {text!r} is not letters, digits, - and .")
    return _response(ctx, ErrorCode.none, offers)


def refuse(ctx: RequestContext, request: Any, error: RaylogError) -> Any:
    return _response(ctx, code_of(error), ())


def unsupported_version(correlation_id: int, own: Offer) -> bytes:
    """The reply to a version of ApiVersions that we do not have, readable by every client."""
    ctx = RequestContext(None, KEY, 0, correlation_id)  # type: ignore[arg-type]
    return encode_response(KEY, 0, correlation_id, _response(ctx, ErrorCode.unsupported_version, (own,)))


def _response(ctx: RequestContext, code: ErrorCode, offers: Iterable[Offer]) -> Any:
    types = types_of(ctx)
    return make(
        types.ApiVersionsResponse,
        error_code=code,
        api_keys=tuple(
            make(types.ApiVersion, api_key=key, min_version=low, max_version=high) for key, low, high in offers
        ),
        throttle_time=throttle(ctx),
    )
