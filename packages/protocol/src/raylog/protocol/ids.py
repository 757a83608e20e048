"""Names for the numbers and strings that must not be mixed up.

Each is a plain ``int`` or ``str`` at run time. The type checker keeps an offset from being used as a byte
position, or a broker's epoch as a leader's.
"""

from typing import NamedTuple, NewType
from uuid import UUID

Offset = NewType("Offset", int)
"""A record's place in its partition, from 0, dense except where compaction or aborted producers left gaps."""

FilePosition = NewType("FilePosition", int)
"""A byte position in a segment's log file."""

TimestampMs = NewType("TimestampMs", int)
"""Milliseconds since the Unix epoch, on the wall clock; -1 means none."""

MonotonicMs = NewType("MonotonicMs", int)
"""Milliseconds on a clock that never jumps: for deadlines and leases, meaningless in another process."""

BrokerId = NewType("BrokerId", int)
BrokerEpoch = NewType("BrokerEpoch", int)
"""A broker's incarnation: the version of /raylog/broker_epochs/B, which every registration raises."""

ControllerEpoch = NewType("ControllerEpoch", int)
"""How many controllers were elected before; a lower one is a deposed controller's."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""How many leaders the partition had before; stamped into each batch (KIP-101)."""

PartitionIndex = NewType("PartitionIndex", int)
TopicName = NewType("TopicName", str)
TopicId = NewType("TopicId", UUID)
"""Tells a topic from another of the same name that was deleted before (KIP-516)."""

ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
Sequence = NewType("Sequence", int)
"""A record's number in its producer's stream to one partition; wraps from 2**31 - 1 to 0 (KIP-98)."""

GroupId = NewType("GroupId", str)
MemberId = NewType("MemberId", str)
"""One consumer in a group, from joining to leaving; a member that comes again has a new one."""

Generation = NewType("Generation", int)
"""How many assignments the group had before; what an older one's member commits is refused."""

InstanceId = NewType("InstanceId", str)
"""group.instance.id: a name that a static member keeps from life to life (KIP-345)."""

NO_OFFSET = Offset(-1)
NO_TIMESTAMP = TimestampMs(-1)
NO_LEADER = BrokerId(-1)
NO_EPOCH = LeaderEpoch(-1)
NO_PRODUCER_ID = ProducerId(-1)
NO_PRODUCER_EPOCH = ProducerEpoch(-1)
NO_SEQUENCE = Sequence(-1)
NO_MEMBER = MemberId("")
NO_GENERATION = Generation(-1)
NO_TOPIC_ID = TopicId(UUID(int=0))

LATEST = -1
"""ListOffsets takes this for a time, and offsets that are given may be it: the end of what consumers may read."""
EARLIEST = -2
"""The first offset that the log still has."""
MAX_TIMESTAMP = -3
"""The first record with the highest timestamp (KIP-734)."""
EARLIEST_LOCAL = -4
"""The first offset on the leader's own disk (KIP-405); nothing is kept elsewhere, so it is the earliest."""


class TopicPartition(NamedTuple):
    """One partition of one topic; prints as Kafka's directory name, ``flights-3``."""

    topic: TopicName
    partition: PartitionIndex

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
