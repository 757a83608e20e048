"""The table of APIs against Kafka 4.2.0, whose schemas kio is generated from."""

from __future__ import annotations

import pytest
from kio.index import load_request_schema
from kio.schema.index import api_key_map, schema_name_map

from raylog.broker.handlers import TABLE, ApiRow, offers

UNSTABLE_IN_4_2_0 = {"init_producer_id": 6}
"""Versions whose request schema says ``latestVersionUnstable``: brokers do not offer them by default."""

OFFERED_BUT_GONE = {"produce": 0}
"""Kafka 4 offers Produce from 0 for librdkafka's sake and handles it from 3 (KIP-896)."""


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_versions_are_those_that_kafka_marks_stable(row: ApiRow) -> None:
    name = api_key_map[row.key]
    versions = [version for version in schema_name_map[name] if version != UNSTABLE_IN_4_2_0.get(name)]
    assert (row.min_version, row.max_version) == (min(versions), max(versions))
    assert load_request_schema(row.key, row.max_version).__name__ == f"{row.name}Request"


def test_each_api_is_there_once() -> None:
    keys = [row.key for row in TABLE]
    assert keys == sorted(set(keys))


def test_offers_are_the_handled_versions_but_for_produce() -> None:
    for row, offer in zip(TABLE, offers(), strict=True):
        lowest = OFFERED_BUT_GONE.get(api_key_map[row.key], row.min_version)
        assert offer == (row.key, lowest, row.max_version)
