"""A broker's place in the cluster: its registration, its incarnation and its old session (D9b, D9c)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

from raylog.coordination.host import clocks
from raylog.coordination.host.private_files import write_private
from raylog.coordination.host.processes import ProcessRef, machine_boot_id
from raylog.coordination.metadata import paths
from raylog.coordination.metadata.model import BrokerInfo
from raylog.coordination.store.port import (
    BadVersion,
    Check,
    Create,
    Delete,
    EventSink,
    MetadataStore,
    NodeExists,
    NoNode,
    Op,
    Session,
    SessionState,
    Set,
)
from raylog.coordination.store.trees import delete_tree
from raylog.coordination.store.unreadable import skipping, tell
from raylog.protocol.errors import RaylogError, UnsupportedVersion
from raylog.protocol.ids import BrokerEpoch, BrokerId, TimestampMs

FEATURE_LEVEL = 1
"""What this release writes into the store; a cluster at a higher level needs a newer release."""


class DuplicateBroker(RaylogError):
    """Another process is registered under this broker id, or was and its session has not lapsed yet."""


class SessionFile:
    """The session of a data dir's process, kept in ``path``, so that the process after a crash can end it.

    Another process may be running on a copy of the dir: so a session is only handed out when the process
    that had it ran on this machine since it booted, and is dead.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Session | None:
        """The session that a dead process left behind."""
        try:
            saved = json.loads(self._path.read_text())
            holder = ProcessRef(*saved["process"])
            session = Session(saved["id"], bytes.fromhex(saved["password"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if holder.boot_id != machine_boot_id() or (holder.is_alive and holder.pid != os.getpid()):
            return None
        return session

    def save(self, session: Session) -> None:
        """Keep this process's session; only the owner may read the file, for the password is in it."""
        record = {
            "id": session.id,
            "password": session.password.hex(),
            "process": ProcessRef.of(os.getpid()),
        }
        write_private(self._path, json.dumps(record))

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


def ensure_cluster(store: MetadataStore, proposed_id: str | None = None) -> str:
    """Make the base nodes where missing and answer the cluster's id: ``proposed_id`` or a new one, if it had none.

    UnsupportedVersion when a newer release has raised the cluster's feature level.
    """
    for path in paths.BASE_PATHS:
        store.ensure(path)
    firsts = {
        paths.FEATURE_LEVEL: paths.encode_number(FEATURE_LEVEL),
        paths.CONTROLLER_EPOCH: paths.encode_number(0),
        paths.CLUSTER_ID: paths.encode_cluster_id(proposed_id or paths.encode_topic_id(uuid4())),
    }
    for path, data in firsts.items():
        if store.exists(path) is None:
            try:
                store.create(path, data)
            except NodeExists:
                pass  # another broker came first
    level = paths.decode_feature_level(_data(store, paths.FEATURE_LEVEL))
    if level > FEATURE_LEVEL:
        raise UnsupportedVersion(
            f"the cluster's feature level {level} is above this release's, {FEATURE_LEVEL}: upgrade this broker"
        )
    return paths.decode_cluster_id(_data(store, paths.CLUSTER_ID))


def _data(store: MetadataStore, path: str) -> bytes:
    found = store.get(path)
    if found is None:
        raise NoNode(f"{path} vanished", path)
    return found.data


class BrokerRegistration:
    """Registers one broker. After a lost session (CONNECTED with another id), call :meth:`register` again.

    A registration says since which incarnation the broker's data is *intact*, for one that lost some must not lead
    over one that did not. It is as long as all log directories are there, and the last process stopped in an orderly
    way or the machine still runs: then the end of its log, if unsynced, is in the page cache. It says also since when
    its directories are all there: when all have lost something, those who lost a disk have lost most.
    """

    def __init__(
        self,
        store: MetadataStore,
        session_file: SessionFile,
        *,
        boot_id: str = "",
        lost_data: bool = False,
        wall_ms: Callable[[], TimestampMs] = clocks.wall_ms,
    ) -> None:
        """``boot_id``: see machine_boot_id; "" is taken for another than before. ``lost_data``: recovery found less in
        the logs than what had been checkpointed. ``wall_ms``: the time that is written beside, for people.
        """
        self._store = store
        self._session_file = session_file
        self._boot_id = boot_id
        self._lost_data = lost_data
        self._wall_ms = wall_ms
        self._broker: BrokerInfo | None = None
        self._was_registered = False
        self._session_id = 0
        self.missing_directories: frozenset[UUID] = frozenset()
        """Ids of log directories that this broker had at its last registration and has not now: emptied, replaced, or
        their disk has failed."""

    def register(self, broker: BrokerInfo) -> BrokerInfo:
        """Make /brokers/ids/B and raise the incarnation, in one multi; answer ``broker`` with its new epoch and since
        when it is intact.

        First ends the session that a crashed process of the same data dir left. Raises DuplicateBroker when
        a live process has the id, or a dead one whose session is not ours to end: that lapses within its
        timeout, so call again. After StoreUnavailable call again, too: a success that was not heard of is recognised.
        """
        self._session_id = 0  # until it is known what becomes of this: no older registration stands any more
        left = self._session_file.load()
        session = self._store.session
        if left is not None and left != session:
            self._store.end_session(left)
        self._session_file.save(session)  # before the ephemeral: a crash in between must not strand it
        self._store.ensure(paths.broker_epoch(broker.id))
        self._store.ensure(paths.raylog_broker(broker.id))
        self._remove_foreign(broker.id)
        try:
            registered = self._raise_incarnation(broker)
        except NodeExists:
            registered = self._as_registered(broker, session)
        self._broker, self._session_id, self._was_registered = registered, session.id, True
        return registered

    def _remove_foreign(self, broker_id: BrokerId) -> None:
        """A registration that no session keeps is none, and would never end."""
        path, epoch_path = paths.broker(broker_id), paths.broker_epoch(broker_id)
        epoch = self._store.exists(epoch_path)  # before the node: it rises when another process registers
        node = self._store.exists(path)
        if epoch is not None and node is not None and not node.ephemeral_owner:
            tell(paths.CorruptMetadata(path, "is no registration: no session keeps it; it is removed"))
            try:
                delete_tree(self._store, path, (Check(epoch_path, epoch.version),))
            except BadVersion:
                pass  # another was faster: what stands there now is judged as any registration

    def _raise_incarnation(self, broker: BrokerInfo) -> BrokerInfo:
        """The multi names the epoch that it raises: so what it says is right in the very incarnation that it makes,
        whoever else raised it since we looked.
        """
        while True:
            epoch = self._store.exists(paths.broker_epoch(broker.id))
            former = self._store.get(paths.raylog_broker(broker.id))
            if epoch is None or former is None:
                raise NoNode(f"{paths.broker_epoch(broker.id)} vanished", paths.broker_epoch(broker.id))
            life = _former_life(broker.id, former.data)
            new = replace(broker, epoch=BrokerEpoch(epoch.version + 1))
            new = replace(new, intact_since=self.intact_since(new, life), disks_since=self.disks_since(new, life))
            try:
                self._store.multi(self.operations(new, epoch.version))
            except BadVersion:
                continue  # fenced or registered meanwhile: look again
            self.missing_directories = _missing(broker, life)
            return new

    def operations(self, broker: BrokerInfo, epoch_version: int) -> list[Op]:
        """All of a registration, at once or not at all."""
        return [
            Create(paths.broker(broker.id), paths.encode_broker(broker, self._wall_ms()), ephemeral=True),
            Set(paths.raylog_broker(broker.id), paths.encode_raylog_broker(broker, self._boot_id)),
            Set(paths.broker_epoch(broker.id), b"", epoch_version),
        ]

    def intact_since(self, broker: BrokerInfo, former: paths.FormerLife | None) -> BrokerEpoch:
        """The oldest incarnation whose data is all here; ``broker``'s own epoch when that is where it begins anew."""
        if former is None or _missing(broker, former):
            return broker.epoch
        if self._was_registered:  # by this process: its session ended, it did not
            return former.intact_since
        is_same_boot = bool(self._boot_id) and former.boot_id == self._boot_id
        is_kept = not self._lost_data and (broker.clean_stop or is_same_boot)
        return former.intact_since if is_kept else broker.epoch

    def disks_since(self, broker: BrokerInfo, former: paths.FormerLife | None) -> BrokerEpoch:
        """The oldest incarnation whose log directories are all here; ``broker``'s own when one is missing."""
        return broker.epoch if former is None or _missing(broker, former) else former.disks_since

    def _as_registered(self, broker: BrokerInfo, session: Session) -> BrokerInfo:
        """The registration that exists, when it is this session's. Its node is looked at last: while it stands nobody
        has raised the epoch that was read before.
        """
        epoch = self._store.exists(paths.broker_epoch(broker.id))
        extra = self._store.get(paths.raylog_broker(broker.id))
        path = paths.broker(broker.id)
        found, node = self._store.get(path), self._store.exists(path)
        if node is not None and epoch is not None and extra is not None and node.ephemeral_owner == session.id:
            now = BrokerEpoch(epoch.version)
            life = _former_life(broker.id, extra.data) or paths.FormerLife((), now, now, "")
            return replace(broker, epoch=now, intact_since=life.intact_since, disks_since=life.disks_since)
        where = "another process"
        if found is not None:
            with skipping():
                other = paths.decode_broker(broker.id, found.data, None, BrokerEpoch(-1))
                where = f"a process at {', '.join(map(str, other.endpoints))}"
        raise DuplicateBroker(
            f"broker id {broker.id} is registered by {where}: choose another broker.id, or, if that one "
            f"is dead, wait for its session to lapse"
        )

    def stands(self, watch: EventSink | None = None) -> bool:
        """Whether the registration's node is there and ours; ``watch`` tells when it goes.

        It may be gone though the session lives: the controller ends an incarnation that seems dead (D9).
        """
        assert self._broker is not None
        node = self._store.exists(paths.broker(self._broker.id), watch)
        return node is not None and node.ephemeral_owner == self._store.session.id

    def deregister(self) -> None:
        """Take the registration back at once (a clean stop). Does nothing when it is no longer ours."""
        if self._broker is not None and self.is_current:
            try:
                is_ours = Check(paths.broker_epoch(self._broker.id), self._broker.epoch)
                self._store.multi([is_ours, Delete(paths.broker(self._broker.id))])
            except (NoNode, BadVersion):
                pass  # the controller took us for dead; what may stand there is of another process
            self._session_file.clear()
        self._broker = None

    @property
    def is_current(self) -> bool:
        """True while the registration's session is the store's and was not seen to end."""
        return (
            self._broker is not None
            and self._store.session_state is not SessionState.LOST
            and self._store.session.id == self._session_id
        )


def _former_life(broker_id: BrokerId, data: bytes) -> paths.FormerLife | None:
    """None before the first; and where it cannot be read: then nothing is known to be intact."""
    if data:
        with skipping():
            return paths.decode_former_life(broker_id, data)
    return None


def _missing(broker: BrokerInfo, former: paths.FormerLife | None) -> frozenset[UUID]:
    """The log directories that the broker had in its former life and has not now."""
    return frozenset(former.directory_ids) - frozenset(broker.directory_ids) if former else frozenset()
