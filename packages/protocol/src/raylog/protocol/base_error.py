"""The base of all errors, and how long what they say may be."""

from __future__ import annotations

MAX_MESSAGE = 4_000
"""Characters: a message quotes what clients sent, which may be any length; it goes into logs and into answers, where
old versions of the protocol take 32,767 bytes.
"""


class RaylogError(Exception):
    """Base of all errors that raylog raises on purpose; alone it means a defect: UNKNOWN_SERVER_ERROR on the wire."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…")
