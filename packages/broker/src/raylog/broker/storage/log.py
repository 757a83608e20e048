"""One partition's log: segments in a directory."""

from __future__ import annotations


class Log:
    """See the module."""
