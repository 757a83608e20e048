"""The embedded ZooKeeper: one owner process per data dir, which keeps a JVM running (D7)."""

from __future__ import annotations

from pathlib import Path

from raylog.protocol.errors import RaylogError


class EmbeddedError(RaylogError):
    """The embedded ZooKeeper cannot run; one sentence."""


class EmbeddedZooKeeper:
    """A handle on the owner of ``data_dir``; several handles, in several processes, may exist."""

    def __init__(self, data_dir: Path, *, host: str = "127.0.0.1") -> None: ...

    def start(self, *, timeout_s: float = 30.0) -> None:
        """Start the owner process (detached from this one) and wait until ZooKeeper answers.

        Raises EmbeddedError when the dir has an owner already or the server does not come up; NoJava
        without a Java.
        """
        raise NotImplementedError

    def stop(self, *, timeout_s: float = 15.0) -> None:
        """End the owner and its JVM; nothing when none runs."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        """``host:port``, the same after every restart."""
        raise NotImplementedError

    @property
    def is_running(self) -> bool:
        """True while the owner process lives (recorded pid and start time agree)."""
        raise NotImplementedError
