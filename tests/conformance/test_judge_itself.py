"""The judge's own parts: what it calls a difference, and how it shrinks a sequence."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.describe_groups.v0.response import DescribedGroup
from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v1.response import ListedGroup, ListGroupsResponse
from kio.schema.produce.v9.response import PartitionProduceResponse
from kio.schema.types import GroupId
from kio.static.primitive import i32, i32Timedelta, i64

from judge import asked
from judge.asker import Answers, compressed
from judge.bases import BASES, GROUP, ask, base_of
from judge.choices import CHOICES
from judge.edges import edges
from judge.judgement import idle_choices, judge
from judge.planted import PLANTED, planted_text
from judge.plausible import NOWHERE, Asked, is_plausible
from judge.recorded import load, recorded_sequences
from judge.steps import Sequence, Step
from judge.told import Known, told
from judge.verdict import differences, shortest
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.records import Codec, batch_headers, decode_batches
from raylog.protocol.wire.messages import request_type

HEARTBEAT, API_VERSIONS, CONFIGS = 12, 18, 32
PRODUCE, FETCH, LIST_OFFSETS, METADATA, JOIN, DESCRIBE, INIT, ALTER, INCREMENTAL = 0, 1, 2, 3, 11, 15, 22, 33, 44


def found(ours: object, kafka: object, *, api: int = HEARTBEAT) -> list[tuple[str, str, str]]:
    version = 4 if api == CONFIGS else 0
    sequence = Sequence("one", (ask(api, version),))
    return [(each.path, each.ours, each.kafka) for each in differences(sequence, [ours], [kafka])]


def test_equal_answers_do_not_differ() -> None:
    answer = {"error_code": "none", "members": [{"member_id": "m"}]}
    assert found(answer, dict(answer)) == []


@pytest.mark.parametrize(
    ("ours", "kafka", "path", "our", "their"),
    [
        ({"error_code": "none"}, {"error_code": "unknown"}, "error_code", "none", "unknown"),
        ({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}, {"b": 3}]}, "a[].b", "2", "3"),
        ({"a": [1]}, {"a": [1, 2]}, "a#", "fewer", "more"),
        ({"a": {"$": "session id a.1"}}, {"a": 0}, "a", "session id", "0"),
        ({"a": None}, {"a": []}, "a", "None", "an empty list"),
        ({"a": {"$": "topic id t"}}, {"a": None}, "a", "topic id t", "None"),
        ("closed", {"a": 1}, "", "closed", "an answer"),
        ({"a": 1}, ["late", {"a": 1}], "late", "False", "True"),
        (["late", {"a": 1}], ["late", {"a": 2}], "a", "1", "2"),
        (["late", {"a": 1}], "waits", "", "a list", "waits"),
        ({"configs": [{"name": "x"}]}, {"configs": [{"name": "x"}, {"name": "y"}]}, "configs[y]", "–", "an answer"),
    ],
)
def test_a_difference_names_its_field(ours: object, kafka: object, path: str, our: str, their: str) -> None:
    assert found(ours, kafka) == [(path, our, their)]


def unexplained(sequence: Sequence, ours: Answers, kafka: Answers) -> list[tuple[int, str, str, str]]:
    """How often, and what, after the API's name."""
    kinds = judge([sequence], {sequence.name: ours}, {sequence.name: kafka}).unexplained
    return [(len(names), *kind[1:]) for kind, names in kinds.items()]


def test_same_difference_of_many_items_is_one_kind() -> None:
    sequence = Sequence("one", (ask(HEARTBEAT, 0),))
    assert unexplained(sequence, [{"a": [1, 1, 1]}], [{"a": [2, 2, 2]}]) == [(1, "a[]", "1", "2")]


def test_error_code_hides_fields_of_its_own_item_alone() -> None:
    sequence = Sequence("one", (ask(HEARTBEAT, 0),))
    ours = [{"error_code": "a", "offset": 1, "index": 0}, {"error_code": "none", "offset": 1, "index": 1}]
    theirs = [{"error_code": "b", "offset": 2, "index": 0}, {"error_code": "none", "offset": 3, "index": 1}]
    found = unexplained(sequence, [{"parts": ours}], [{"parts": theirs}])
    assert found == [(1, "parts[].error_code", "a", "b"), (1, "parts[].offset", "1", "3")]


def test_items_that_both_have_are_compared_where_one_has_more() -> None:
    ours, theirs = [{"index": 1, "offset": 4}], [{"index": 0, "offset": 5}, {"index": 1, "offset": 5}]
    assert found({"parts": ours}, {"parts": theirs}) == [
        ("parts#", "fewer", "more"),
        ("parts[].offset", "4", "5"),
    ]


def test_topic_named_twice_in_a_fetch_answer_is_one_topic() -> None:
    sequence = Sequence("session", (ask(FETCH, 12),))
    zero, one, other = ({"topic": name, "partitions": [{"partition_index": int(n)}]} for name, n in ("t0", "t1", "u0"))
    kafka = {"responses": [zero, other, one]}
    ours = {"responses": [{"topic": "t", "partitions": [*zero["partitions"], *one["partitions"]]}, other]}
    assert list(differences(sequence, [ours], [kafka])) == []


def test_members_that_a_leader_is_told_hang_on_who_leads() -> None:
    group = Sequence("group 9.9", (ask(JOIN, 5), ask(JOIN, 5)), is_life=True)
    told = {"leader": {"$": "member id a.1, c-…"}, "members": [{"member_id": "a"}]}
    other = {"leader": {"$": "member id b.1, c-…"}, "members": []}

    assert unexplained(group, [told, told], [other, {"leader": None}]) == []
    assert unexplained(group, [told, told], [{**told, "members": []}, told]) == [(1, "members#", "more", "fewer")]


def test_the_shortest_sequence_has_only_what_is_needed() -> None:
    steps = [ask(HEARTBEAT, 0, group_id=str(number)) for number in range(30)]
    needed = [steps[3], steps[17]]
    whole = Sequence("long", tuple(steps))
    assert list(shortest(whole, lambda each: all(step in each.steps for step in needed)).steps) == needed


def test_each_field_is_tried_at_its_edges() -> None:
    kind = request_type(HEARTBEAT, 4)
    names = {each.name for each in edges(kind, ask(HEARTBEAT, 4, group_id="g", group_instance_id="i").tree)}
    assert {"group_id=empty", "group_id=very-long", "group_id=not-utf8", "group_id=upper-case"} <= names
    assert {"generation_id=-2147483648", "generation_id=2147483647", "generation_id=-1"} <= names
    assert "group_instance_id=null" in names
    assert "group_id=null" not in names


def test_load_refuses_what_was_never_asked() -> None:
    with pytest.raises(ValueError, match=r"1 sequences, as 'unheard of'.*judge-record"):
        load([Sequence("unheard of", (ask(HEARTBEAT, 0),))])


def test_choice_that_explains_nothing_is_idle() -> None:
    assert idle_choices(CHOICES[1:]) == [CHOICES[0]]


def test_choice_of_chance_is_not_idle() -> None:
    of_chance = [each for each in CHOICES if each.chance]
    assert [each.api for each in of_chance] == ["JoinGroup"]
    assert idle_choices(set(CHOICES).difference(of_chance)) == []
    assert idle_choices(()) == [each for each in CHOICES if each not in of_chance]


def test_produce_tries_each_codec_with_records_and_with_garbage() -> None:
    step = base_of(BASES["Produce"], PRODUCE, 9)
    tried = {
        each.name.partition("records=compressed-")[2]: each.tree["topic_data"][0]["partition_data"][0]["records"]
        for each in edges(request_type(PRODUCE, 9), step.tree)
        if "compressed-" in each.name
    }
    assert len(tried) == 8
    for name, records in tried.items():
        codec = Codec.from_name(name.removesuffix("-garbage"))
        [(_, header)] = batch_headers(compressed(records))
        assert header.codec is codec
        if name.endswith("-garbage"):
            with pytest.raises(CorruptMessage):
                list(decode_batches(compressed(records)))
        else:
            assert len(list(decode_batches(compressed(records)))) == 3


def test_number_of_a_sequence_is_told_within_no_other_number() -> None:
    assert told(("l10485-0", "1048588"), 10_485, Known({})) == ["l#-0", "1048588"]


NOW_MS = 1_800_000_000_000
AT_BROKER = Asked(("127.0.0.1", 9092), NOW_MS, {})
FOUND = {"node_id": 0, "error_code": ErrorCode.none}
MISSED = {"node_id": -1, "error_code": ErrorCode.invalid_request}


@pytest.mark.parametrize(
    ("field", "right", "wrong", "beside"),
    [
        ("throttle_time", timedelta(), timedelta(seconds=1), {}),
        ("error_message", None, "what", FOUND),
        ("cluster_id", "an id", None, {"brokers": (1,)}),
        ("cluster_id", "", "an id", {"brokers": ()}),
        ("host", "127.0.0.1", "localhost", FOUND),
        ("host", "", "127.0.0.1", MISSED),
        ("port", 9092, 9093, FOUND),
        ("port", 9092, -1, {"broker_id": 0}),
        ("port", -1, 9092, MISSED),
        ("client_host", "/127.0.0.1", "", {}),
        ("log_dir", "/data", "data", FOUND),
        ("documentation", None, "what it is", {}),
        ("total_bytes", 1, -1, {}),
        ("usable_bytes", 1, -1, {}),
        ("last_timestamp", NOW_MS - 1_000, -1, {}),
    ],
)
def test_field_of_each_brokers_own_is_told_where_it_cannot_be(
    field: str, right: Any, wrong: Any, beside: dict[str, Any]
) -> None:
    assert is_plausible(field, SimpleNamespace(**beside, **{field: right}), AT_BROKER)
    assert not is_plausible(field, SimpleNamespace(**beside, **{field: wrong}), AT_BROKER)


def test_documentation_is_there_where_it_is_asked_for() -> None:
    asked_for = AT_BROKER._replace(tree={"include_documentation": True})
    assert is_plausible("documentation", SimpleNamespace(documentation="what it is"), asked_for)
    assert not is_plausible("documentation", SimpleNamespace(documentation=None), asked_for)


def test_times_at_which_a_broker_is_asked_are_now() -> None:
    known = Known({}, AT_BROKER)
    at = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    assert told((NOW_MS + 5, NOW_MS - 10**9, at, at - timedelta(days=9)), 10_000, known) == [
        "now", NOW_MS - 10**9, "now", "a time",
    ]  # fmt: skip
    assert told(NOW_MS, 10_000, Known({}, NOWHERE)) == NOW_MS


def test_listed_groups_are_those_of_the_sequence_alone() -> None:
    names = ("j10485", "j10486", "v" * 300, "absent", "j104850", "settled0", GROUP)
    listed = ListGroupsResponse(
        throttle_time=i32Timedelta.parse(timedelta()),
        error_code=ErrorCode.none,
        groups=tuple(ListedGroup(group_id=GroupId(name), protocol_type="") for name in names),
    )
    assert [each["group_id"] for each in told(listed, 10_485, Known({}))["groups"]] == [GROUP, "j#"]


def test_described_groups_without_a_number_are_compared() -> None:
    names = ("j10485", "v" * 300, "absent", GROUP)
    described = tuple(
        DescribedGroup(
            error_code=ErrorCode.none, group_id=GroupId(name), group_state="", protocol_type="", protocol_data="",
            members=(),
        )
        for name in names
    )  # fmt: skip
    assert len(told(described, 10_485, Known({}))) == len(names)


@pytest.mark.parametrize(("appended", "expected"), [(None, None), (datetime(2026, 1, 1, tzinfo=UTC), "a time")])
def test_append_time_is_told_as_none_or_as_a_time(appended: datetime | None, expected: str | None) -> None:
    part = PartitionProduceResponse(
        index=i32(0), error_code=ErrorCode.none, base_offset=i64(0), log_append_time=appended, record_errors=()
    )
    assert told(part, 10_000, Known({}))["log_append_time"] == expected


@pytest.fixture(scope="module")
def recorded() -> list[tuple[Sequence, Answers]]:
    everything = list(recorded_sequences())
    _, kafka = load(everything)
    return [(each, kafka[each.name]) for each in everything]


PARTITION = ("responses", 0, "partitions", 0)
PRODUCED = ("responses", 0, "partition_responses", 0, "error_code")
CHANGED = ("responses", 0, "error_code")


@pytest.mark.parametrize(
    ("where", "api", "path", "kafka", "ours", "when"),
    [
        ("session *", FETCH, (*PARTITION, "error_code"), "none", "unknown_leader_epoch", None),
        ("session *", FETCH, (*PARTITION, "high_watermark"), 3, 2, None),
        ("Metadata v0 topics.name=not-utf8", METADATA, ("brokers", 0, "node_id"), 0, 1, None),
        ("Fetch v12 session_id=1", FETCH, (*PARTITION, "high_watermark"), 3, 7, None),
        ("Fetch v4 replica_id=0", FETCH, (*PARTITION, "error_code"), "not_leader_or_follower", "none", None),
        ("ApiVersions v3", API_VERSIONS, ("api_keys", 0, "max_version"), 13, 12, None),
        ("JoinGroup v0 protocols.name=absent", JOIN, ("error_code",), "none", "unknown_server_error", None),
        ("InitProducerId v0 transactional_id=empty", INIT, ("error_code",), "invalid_request", "none", None),
        ("CreatePartitions v3 topics.count=1", 37, ("results", 0, "error_code"), "invalid_partitions", "none", None),
        ("Produce v9 topic_data=twice", PRODUCE, PRODUCED, "none", "unknown_server_error", None),
        ("group *", DESCRIBE, ("groups", 0, "group_state"), "PreparingRebalance", "Dead", None),
        ("producer *", PRODUCE, PRODUCED, "none", "invalid_record", lambda step: not asked.bare_producer_id(step)),
        ("topic *", INCREMENTAL, CHANGED, "none", "invalid_config", lambda step: not asked.is_not_built(step)),
        (
            "topic *",
            INCREMENTAL,
            CHANGED,
            "invalid_config",
            "none",
            lambda step: not asked.small_segment_or_empty_item(step),
        ),
        (
            "topic *",
            LIST_OFFSETS,
            ("topics", 0, "partitions", 0, "offset"),
            0,
            5,
            lambda step: not asked.asks_for_newest(step),
        ),
    ],
)
def test_invented_answer_is_no_choice(
    recorded: list[tuple[Sequence, Answers]],
    where: str,
    api: int,
    path: tuple[Any, ...],
    kafka: Any,
    ours: Any,
    when: Callable[[Step], bool] | None,
) -> None:
    sequence, answers, index = next(
        (sequence, answers, index)
        for sequence, answers in recorded
        if fnmatchcase(sequence.name, where)
        for index, (step, answer) in enumerate(zip(sequence.steps, answers, strict=True))
        if step.api == api and _at(answer, path) == kafka and (when is None or when(step))
    )
    invented = deepcopy(answers)
    _at(invented[index], path[:-1])[path[-1]] = ours
    assert [each[2:] for each in unexplained(sequence, invented, answers)] == [(str(ours), str(kafka))]


@pytest.mark.parametrize(("api", "operation"), [(ALTER, None), (INCREMENTAL, 0)])
def test_unknown_server_error_is_chosen_for_unknown_operations_alone(api: int, operation: int | None) -> None:
    entry = {"name": "retention.ms", "value": "1", **({} if operation is None else {"config_operation": operation})}
    resources = [{"resource_type": 2, "resource_name": "t", "configs": [entry]}]
    sequence = Sequence("one", (ask(api, 1, resources=resources),))
    ours, theirs = ([{"responses": [{"error_code": code}]}] for code in ("invalid_request", "unknown_server_error"))
    assert len(unexplained(sequence, ours, theirs)) == 1


def _at(answer: Any, path: tuple[Any, ...]) -> Any:
    """What the path leads to; None where it leads to nothing."""
    for key in path:
        try:
            answer = answer[key]
        except (IndexError, KeyError, TypeError):
            return None
    return answer


def test_topic_left_out_of_a_session_answer_is_no_choice(recorded: list[tuple[Sequence, Answers]]) -> None:
    sequence, answers = next(each for each in recorded if each[0].name == "session 1.0")
    invented = deepcopy(answers)
    index = next(n for n, answer in enumerate(answers) if _at(answer, PARTITION))
    invented[index]["responses"].pop()
    assert unexplained(sequence, invented, answers) != []


def test_life_is_compared_behind_a_chosen_difference(recorded: list[tuple[Sequence, Answers]]) -> None:
    sequence, answers, index = next(
        (sequence, answers, index)
        for sequence, answers in recorded
        if sequence.name.startswith("producer ")
        for index, answer in enumerate(answers[:-2])
        if _at(answer, PRODUCED) == "out_of_order_sequence_number"
    )
    invented = deepcopy(answers)
    _at(invented[index], PRODUCED[:-1])["error_code"] = "duplicate_sequence_number"
    assert unexplained(sequence, invented, answers) == []
    invented[-1] = "closed"
    assert unexplained(sequence, invented, answers) == [(1, "", "closed", "an answer")]


def test_life_ends_with_a_chosen_difference_of_state(recorded: list[tuple[Sequence, Answers]]) -> None:
    sequence, answers, index = next(
        (sequence, answers, index)
        for sequence, answers in recorded
        if sequence.name.startswith("producer ")
        for index, (step, answer) in enumerate(zip(sequence.steps[:-2], answers, strict=False))
        if _at(answer, PRODUCED) == "none" and asked.bare_producer_id(step)
    )
    invented = deepcopy(answers)
    _at(invented[index], PRODUCED[:-1])["error_code"] = "invalid_record"
    invented[-1] = "closed"
    assert unexplained(sequence, invented, answers) == []


@pytest.mark.parametrize(("validates", "expected"), [(True, [(1, "", "closed", "an answer")]), (False, [])])
def test_life_goes_on_where_what_differs_was_only_tried(
    validates: bool, expected: list[tuple[int, str, str, str]]
) -> None:
    compact = {"name": "cleanup.policy", "value": "compact", "config_operation": 0}
    resources = [{"resource_type": 2, "resource_name": "t", "configs": [compact]}]
    tried = ask(INCREMENTAL, 1, resources=resources, validate_only=validates)
    life = Sequence("topic 9.9", (tried, ask(HEARTBEAT, 0)), is_life=True)
    ours, theirs = ({"responses": [{"error_code": code}]} for code in ("invalid_config", "none"))
    assert unexplained(life, [ours, "closed"], [theirs, {"error_code": "none"}]) == expected


@pytest.mark.parametrize("kind", ["topic ", "settings "])
def test_lives_of_topics_try_what_is_not_built_and_change_nothing(kind: str) -> None:
    steps = [step for each in recorded_sequences() if each.name.startswith(kind) for step in each.steps]
    not_built = [step for step in steps if asked.is_not_built(step)]
    assert len(not_built) >= 30
    assert all(step.tree["validate_only"] for step in not_built)


@pytest.mark.parametrize(
    ("name", "is_alone"),
    [
        ("CreateTopics v7 topics.name=absent", True),
        ("OffsetCommit v7 group_id=very-long", True),
        ("JoinGroup v0 group_id=not-utf8", True),
        ("CreateTopics v7", False),
        ("OffsetCommit v7 topics.name=absent", False),
        ("DescribeGroups v5 groups[0]=absent", False),
        ("topic 1.0", False),
    ],
)
def test_sequence_that_makes_what_others_name_is_asked_alone(name: str, is_alone: bool) -> None:
    steps = next(each.steps for each in recorded_sequences() if each.name == name)
    assert any(map(asked.makes_what_others_name, steps)) is is_alone


def test_faults_can_be_planted() -> None:
    assert len({fault.api for fault in PLANTED}) >= 10
    for fault in PLANTED:
        compile(planted_text(fault), fault.file, "exec")
