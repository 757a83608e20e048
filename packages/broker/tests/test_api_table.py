"""The table of APIs against Kafka 4.2.0's schemas: offered in all stable versions, or left out for a reason."""

from __future__ import annotations

import pytest
from kio.index import load_request_schema

from kit import kafka_apis
from raylog.broker.handlers import TABLE, ApiRow, offers

KAFKA = kafka_apis.load()

NOT_OFFERED = {
    "removed in Kafka 4": {"LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown"},
    "between KRaft's nodes, whose place ZooKeeper has": {
        "Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "DescribeQuorum", "AlterPartition", "Envelope", "FetchSnapshot",
        "BrokerRegistration", "BrokerHeartbeat", "UnregisterBroker", "AllocateProducerIds", "ControllerRegistration",
        "AssignReplicasToDirs", "AddRaftVoter", "RemoveRaftVoter", "UpdateRaftVoter", "UpdateFeatures",
    },
    "groups whose coordinator assigns (KIP-848) are not planned": {"ConsumerGroupHeartbeat", "ConsumerGroupDescribe"},
    "with transactions": {
        "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "WriteTxnMarkers", "TxnOffsetCommit", "DescribeTransactions",
        "ListTransactions",
    },
    "with SASL and ACLs": {
        "SaslHandshake", "SaslAuthenticate", "DescribeAcls", "CreateAcls", "DeleteAcls", "CreateDelegationToken",
        "RenewDelegationToken", "ExpireDelegationToken", "DescribeDelegationToken", "DescribeUserScramCredentials",
        "AlterUserScramCredentials",
    },
    "with quotas": {"DescribeClientQuotas", "AlterClientQuotas"},
    "a broker's log directories are not balanced by hand": {"AlterReplicaLogDirs"},
    "clients send no telemetry here": {"GetTelemetrySubscriptions", "PushTelemetry", "ListConfigResources"},
    "share and streams groups are not planned": {
        "ShareGroupHeartbeat", "ShareGroupDescribe", "ShareFetch", "ShareAcknowledge", "InitializeShareGroupState",
        "ReadShareGroupState", "WriteShareGroupState", "DeleteShareGroupState", "ReadShareGroupStateSummary",
        "DescribeShareGroupOffsets", "AlterShareGroupOffsets", "DeleteShareGroupOffsets", "StreamsGroupHeartbeat",
        "StreamsGroupDescribe",
    },
}  # fmt: skip
"""Names by the reason for which they are not offered, or what they come with."""

OFFERED_BUT_GONE = {"Produce": 0}
"""Kafka 4 offers Produce from 0 for librdkafka's sake and handles it from 3 (KIP-896)."""


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_versions_are_those_that_kafka_marks_stable(row: ApiRow) -> None:
    kafka = KAFKA[row.key]
    assert (row.name, range(row.min_version, row.max_version + 1)) == (kafka.name, kafka.versions)
    assert "broker" in kafka.listeners
    assert load_request_schema(row.key, row.max_version).__name__ == f"{row.name}Request"


def test_each_api_of_kafka_is_offered_once_or_left_out_for_a_reason() -> None:
    offered = [row.name for row in TABLE]
    left_out = [name for names in NOT_OFFERED.values() for name in names]
    assert sorted(offered + left_out) == sorted(api.name for api in KAFKA.values())
    assert [row.key for row in TABLE] == sorted(row.key for row in TABLE)


def test_what_kafka_removed_is_what_we_say_was_removed() -> None:
    assert {api.name for api in KAFKA.values() if not api.versions} == NOT_OFFERED["removed in Kafka 4"]


def test_offers_are_the_handled_versions_but_for_produce() -> None:
    for row, offer in zip(TABLE, offers(), strict=True):
        lowest = OFFERED_BUT_GONE.get(row.name, row.min_version)
        assert offer == (row.key, lowest, row.max_version)
