"""◆ What happens to a member of a group of actors, and what it has done about it (see ``group``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raylog.coordination.metadata.group_model import CommittedOffset, Shares
from raylog.protocol.ids import MemberId, TopicName, TopicPartition


@dataclass(frozen=True, slots=True)
class View:
    """The registries, read after ``version`` was."""

    shares: Shares | None
    version: int
    """Of the assignment's node when it was read; -1 while there is none, or it was not read."""
    members: Mapping[MemberId, frozenset[TopicName]]
    """Who is registered; and, in the view of the elected one, which of the topics there are each subscribes to."""
    partitions: Mapping[TopicName, int]
    """How many each topic has that somebody subscribes to, in the view of the elected one."""
    is_whole: bool = True
    """False: no more than its own share, itself and the member before it, which a member that is not elected needs."""


# --- what happens ---


@dataclass(frozen=True, slots=True)
class Started:
    """Take part; also after a session was lost and there is a new one, and after :class:`Leave`."""


@dataclass(frozen=True, slots=True)
class Registered: ...


@dataclass(frozen=True, slots=True)
class RegistrationFailed:
    """The store did not answer: it may have been made or not. It is tried again."""


@dataclass(frozen=True, slots=True)
class Deregistered: ...


@dataclass(frozen=True, slots=True)
class DeregisterFailed: ...


@dataclass(frozen=True, slots=True)
class Noticed:
    """A watch has told that a registry, the assignment or a topic changed, or watches were lost."""


@dataclass(frozen=True, slots=True)
class Looked:
    view: View


@dataclass(frozen=True, slots=True)
class LookFailed: ...


@dataclass(frozen=True, slots=True)
class Published:
    """An assignment was written, by us or by another who came first: look."""


@dataclass(frozen=True, slots=True)
class Claimed:
    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    """It is not ours: another owns it still."""

    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class ClaimInDoubt:
    """The store did not answer: it may be ours, which holds up whoever should have it instead."""

    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class Quiet:
    """Of a partition that was revoked: no record of it will be handed out any more. ``position``: commit this."""

    tp: TopicPartition
    position: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class Released:
    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class ReleaseFailed:
    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class ClaimLost:
    """A commit or a release was refused, for another has claimed the partition; or its topic is deleted."""

    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The ephemeral nodes are gone, the registration and the owner nodes with them."""


@dataclass(frozen=True, slots=True)
class Died:
    """It is proved that the process of a registered member is gone, though its session is not yet."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class Leave:
    """Give everything up in good order and sign off."""


@dataclass(frozen=True, slots=True)
class Tick: ...


Event = (
    Started | Registered | RegistrationFailed | Deregistered | DeregisterFailed | Noticed | Looked | LookFailed
    | Published | Claimed | ClaimRefused | ClaimInDoubt | Quiet | Released | ReleaseFailed | ClaimLost | SessionLost
    | Died | Leave | Tick
)  # fmt: skip


# --- what to do ---


@dataclass(frozen=True, slots=True)
class Register:
    """Make the ephemeral member node → Registered or RegistrationFailed."""


@dataclass(frozen=True, slots=True)
class Deregister:
    """Delete it; nothing is owned any more → Deregistered or DeregisterFailed."""


@dataclass(frozen=True, slots=True)
class Look:
    """Read the assignment, then the registries, with watches → Looked or LookFailed."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Write the assignment, if its node is still at ``version`` → Published or LookFailed."""

    shares: Shares
    version: int


@dataclass(frozen=True, slots=True)
class ClaimPartition:
    """Make the owner node → Claimed, ClaimRefused or ClaimInDoubt."""

    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class Release:
    """Commit ``position``, if there is one, and delete the owner node → Released, ReleaseFailed or ClaimLost."""

    tp: TopicPartition
    position: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class Evict:
    """Delete the node of a dead member and the owner nodes that are its. There is no answer to wait for."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class Assign:
    """Hand records out, from the committed offset on."""

    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class Revoke:
    """Hand no more out, and let what was handed out be finished → Quiet."""

    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class Lose:
    """Hand no more out, at once: it is not ours any more, and nothing of it can be committed. There is no answer."""

    tp: TopicPartition


Effect = Register | Deregister | Look | Publish | ClaimPartition | Release | Evict | Assign | Revoke | Lose
