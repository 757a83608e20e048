"""A broker's place in the cluster: its registration, its incarnation and its old session (D9b, D9c)."""

from __future__ import annotations

from pathlib import Path

from raylog.coordination.model import BrokerInfo
from raylog.coordination.store import MetadataStore, Session
from raylog.protocol.errors import RaylogError
from raylog.protocol.ids import BrokerEpoch


class DuplicateBroker(RaylogError):
    """Another live process is registered under this broker id."""


class SessionFile:
    """The session of this data dir's last process, kept in ``path`` (readable by the owner only)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Session | None:
        raise NotImplementedError

    def save(self, session: Session) -> None:
        raise NotImplementedError


def ensure_cluster(store: MetadataStore, proposed_id: str) -> str:
    """Make the base nodes where missing and answer the cluster's id (the one proposed, when it had none)."""
    raise NotImplementedError


class BrokerRegistration:
    """Registers one broker. After a lost session (SessionEvent CONNECTED with another id), call register
    again.
    """

    def __init__(self, store: MetadataStore, session_file: SessionFile) -> None: ...

    def register(self, broker: BrokerInfo) -> BrokerInfo:
        """Make /brokers/ids/B and raise the incarnation, in one multi; answer ``broker`` with its new epoch.

        First ends the session that a crashed process of the same data dir left. DuplicateBroker when a live
        process, or a crashed one of another data dir until its session lapses, has the id.
        """
        raise NotImplementedError

    def deregister(self, *, clean_stop: bool) -> None:
        """Take the registration back at once, noting whether the logs were closed in an orderly way."""
        raise NotImplementedError

    @property
    def is_current(self) -> bool:
        """True while the session of the registration is the store's session."""
        raise NotImplementedError


_ = BrokerEpoch
