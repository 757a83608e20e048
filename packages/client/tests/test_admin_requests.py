"""What the admin client makes of brokers' answers; the requests themselves are tested against brokers."""

from __future__ import annotations

from datetime import timedelta

import pytest
from kio.schema.create_topics.v7.response import CreatableTopicResult, CreateTopicsResponse
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kio.schema.describe_log_dirs.v4.response import DescribeLogDirsResponse, DescribeLogDirsResult
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.response import AlterConfigsResourceResponse
from kio.schema.incremental_alter_configs.v1.response import IncrementalAlterConfigsResponse as AlterResponse
from kio.schema.types import TopicName
from kio.static.primitive import i8, i16, i32, i32Timedelta

from raylog.client.requests import admin_requests as ask
from raylog.protocol.errors import (
    ClusterAuthorizationFailed,
    InvalidConfig,
    NotController,
    PolicyViolation,
    StorageError,
)

NOW = i32Timedelta.parse(timedelta(0))


def created(name: str, error: ErrorCode = ErrorCode.none, message: str | None = None) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=TopicName(name), topic_id=None, error_code=error, error_message=message, num_partitions=i32(3),
        replication_factor=i16(1), configs=(), topic_config_error_code=i16(0),
    )  # fmt: skip


def test_each_topic_has_its_own_fate() -> None:
    response = CreateTopicsResponse(
        throttle_time=NOW, topics=(created("a"), created("b", ErrorCode.policy_violation, "no b here"))
    )
    errors, partitions = ask.read_create_topics(response)
    assert errors["a"] is None
    assert isinstance(errors["b"], PolicyViolation)
    assert "no b here" in str(errors["b"])
    assert partitions == {"a": 3}


def test_a_broker_that_is_not_the_controller_is_told_from_a_refusal() -> None:
    with pytest.raises(NotController):
        ask.read_create_topics(
            CreateTopicsResponse(throttle_time=NOW, topics=(created("a", ErrorCode.not_controller),))
        )


def setting(name: str, *, kind: int, source: int, sensitive: bool = False) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=name, value="v", read_only=False, config_source=i8(source), is_sensitive=sensitive, synonyms=(),
        config_type=i8(kind), documentation=None,
    )  # fmt: skip


def described(error: ErrorCode = ErrorCode.none, *settings: DescribeConfigsResourceResult) -> DescribeConfigsResponse:
    result = DescribeConfigsResult(
        error_code=error, error_message=None, resource_type=i8(2), resource_name="t", configs=settings
    )
    return DescribeConfigsResponse(throttle_time=NOW, results=(result,))


def test_settings_come_by_name_and_secrets_stay_secret() -> None:
    found = ask.read_describe_configs(
        described(ErrorCode.none, setting("z", kind=5, source=1), setting("a", kind=9, source=5, sensitive=True))
    )
    assert [(entry.name, entry.value, entry.type, entry.source) for entry in found] == [
        ("a", None, "password", "default"),
        ("z", "v", "long", "topic"),
    ]
    assert [entry.is_default for entry in found] == [True, False]


def test_kinds_and_sources_of_a_later_broker_are_unknown() -> None:
    (entry,) = ask.read_describe_configs(described(ErrorCode.none, setting("a", kind=99, source=99)))
    assert (entry.type, entry.source) == ("unknown", "unknown")


def test_an_error_without_a_message_names_what_it_is_about() -> None:
    with pytest.raises(ClusterAuthorizationFailed, match="'t'"):
        ask.read_describe_configs(described(ErrorCode.cluster_authorization_failed))
    refused = AlterConfigsResourceResponse(
        error_code=ErrorCode.invalid_config, error_message=None, resource_type=i8(2), resource_name="t"
    )
    with pytest.raises(InvalidConfig, match="'t'"):
        ask.read_alter_configs(AlterResponse(throttle_time=NOW, responses=(refused,)))


def test_a_log_directory_that_is_offline_is_told_beside_the_others() -> None:
    offline = DescribeLogDirsResult(error_code=ErrorCode.kafka_storage_error, log_dir="/disk", topics=())
    (found,) = ask.read_log_dirs(
        DescribeLogDirsResponse(throttle_time=NOW, error_code=ErrorCode.none, results=(offline,))
    )
    assert isinstance(found.error, StorageError)
    assert "/disk" in str(found.error)
    assert (found.total_bytes, dict(found.replicas)) == (-1, {})


def test_a_setting_is_set_deleted_appended_and_subtracted() -> None:
    request = ask.alter_configs(ask.TOPIC, "t", {"a": "1", "b": None}, {"c": "2"}, {"d": "3"}, validate_only=True)
    (resource,) = request.resources
    assert [(change.name, change.config_operation, change.value) for change in resource.configs] == [
        ("a", 0, "1"), ("b", 1, None), ("c", 2, "2"), ("d", 3, "3"),
    ]  # fmt: skip
    assert request.validate_only
