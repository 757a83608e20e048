"""Credentials for ZooKeeper: ``user:password``, as its own ``addauth digest`` takes them, and the file they are in.

The password itself is nowhere in ZooKeeper: ACLs name its hash.
"""

from __future__ import annotations

import hashlib
import secrets
from base64 import b64encode
from pathlib import Path

from raylog.coordination.host.private_files import write_private
from raylog.protocol.errors import InvalidConfig

__all__ = ["check_credentials", "digest_of", "new_credentials", "read_credentials"]

USER = "raylog"


def read_credentials(file: Path) -> str:
    """What ``file`` holds. Raises InvalidConfig when it is not readable, or holds no credentials."""
    try:
        text = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidConfig(f"the credentials for ZooKeeper in {file} cannot be read: {reason}") from error
    return check_credentials(text, f"in {file}")


def check_credentials(text: str, place: str) -> str:
    """``text``. Raises InvalidConfig, which does not repeat it, when it is not ``user:password``."""
    user, _, password = text.partition(":")
    if not user or not password or "\n" in text:
        raise InvalidConfig(f"the credentials for ZooKeeper {place} are not user:password on one line")
    return text


def new_credentials(file: Path) -> None:
    """Make some that nobody can guess, and keep them in ``file``, for its owner only; nothing when it holds some."""
    if not file.exists():
        write_private(file, f"{USER}:{secrets.token_hex(32)}\n")


def digest_of(credentials: str) -> str:
    """``user:hash``, as ACLs and the server's superDigest name them."""
    user, _, _ = credentials.partition(":")
    return f"{user}:{b64encode(hashlib.sha1(credentials.encode()).digest()).decode()}"
