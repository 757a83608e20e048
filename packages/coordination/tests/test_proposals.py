"""What brokers ask of the controller: bytes that other releases read, and nothing else taken for a message."""

from __future__ import annotations

from uuid import UUID

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.coordination.control.proposals import (
    DamagedReplica,
    Drain,
    DrainAnswer,
    IsrAnswer,
    IsrChange,
    OfflineReplica,
    Outcome,
    Proposal,
    ProposeIsr,
    ReplicasDamaged,
    ReplicasOffline,
    Verdict,
    decode_proposal,
)
from raylog.coordination.metadata.model import PartitionState
from raylog.protocol.errors import InvalidRequest
from raylog.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    PartitionIndex,
    TopicId,
    TopicName,
    TopicPartition,
)

TP = TopicPartition(TopicName("flights"), PartitionIndex(3))
ID = TopicId(UUID(int=7))
SENDER = (BrokerId(1), BrokerEpoch(4), ControllerEpoch(2))
CHANGE = IsrChange(TP, ID, LeaderEpoch(5), 6, ((BrokerId(1), BrokerEpoch(4)), (BrokerId(2), BrokerEpoch(9))))
STATE = PartitionState(
    (BrokerId(1), BrokerId(2)),
    BrokerId(1),
    LeaderEpoch(5),
    (BrokerId(1),),
    ControllerEpoch(2),
    7,
    elr=(BrokerId(2),),
    incarnations={BrokerId(1): BrokerEpoch(4), BrokerId(2): BrokerEpoch(9)},
    adding=(BrokerId(2),),
)
PROPOSALS: list[Proposal] = [
    ProposeIsr(*SENDER, (CHANGE, CHANGE)),
    ReplicasOffline(*SENDER, (OfflineReplica(TP, ID),), "/disk1: EIO"),
    ReplicasDamaged(*SENDER, (DamagedReplica(TP, ID, LeaderEpoch(5)),)),
    Drain(*SENDER),
    Drain(*SENDER, cancel=True),
]
ANSWERS: list[IsrAnswer | DrainAnswer] = [
    IsrAnswer(ControllerEpoch(2), (Outcome(TP, Verdict.OK, STATE), Outcome(TP, Verdict.REFUSED, None, "why"))),
    DrainAnswer(Verdict.OK, ControllerEpoch(2), (TP,), "why"),
]


@pytest.mark.parametrize("proposal", PROPOSALS, ids=lambda each: type(each).__name__)
def test_proposals_survive_their_encoding(proposal: Proposal) -> None:
    assert decode_proposal(proposal.encode()) == proposal


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda each: type(each).__name__)
def test_answers_survive_their_encoding(answer: IsrAnswer | DrainAnswer) -> None:
    assert type(answer).decode(answer.encode()) == answer


def test_fields_that_a_newer_release_added_are_ignored() -> None:
    proposal = PROPOSALS[0]
    fields = msgpack.unpackb(proposal.encode())
    fields["shiny"] = 1
    fields["changes"][0].append("shiny")
    fields["changes"][0][5][0].append("shiny")
    assert decode_proposal(msgpack.packb(fields)) == proposal


@pytest.mark.parametrize("payload", [b"", b"\x00", ANSWERS[0].encode(), msgpack.packb({"kind": "isr", "v": 1})])
def test_what_is_no_proposal_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_proposal(payload)


@given(st.sampled_from([each.encode() for each in PROPOSALS]), st.integers(0), st.integers(0, 255))
def test_damaged_proposals_are_proposals_or_refused(payload: bytes, at: int, value: int) -> None:
    damaged = bytearray(payload)
    damaged[at % len(damaged)] = value
    try:
        decode_proposal(bytes(damaged))
    except InvalidRequest:
        pass
