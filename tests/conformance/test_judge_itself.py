"""The judge's own parts: what it calls a difference, and how it shrinks a sequence."""

from __future__ import annotations

import pytest

from judge.asker import compressed
from judge.bases import BASES, ask, base_of
from judge.choices import CHOICES
from judge.edges import edges
from judge.judgement import idle_choices
from judge.recorded import load
from judge.steps import Sequence
from judge.verdict import differences, shortest
from raylog.protocol.errors import CorruptMessage
from raylog.protocol.messages import request_type
from raylog.protocol.records import Codec, batch_headers, decode_batches

PRODUCE, HEARTBEAT, CONFIGS = 0, 12, 32


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


def test_same_difference_of_many_items_is_told_once() -> None:
    assert len(found({"a": [1, 1, 1]}, {"a": [2, 2, 2]})) == 1


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


def test_load_leaves_out_only_what_is_unrecorded() -> None:
    assert load([Sequence("settings 1.0", (ask(HEARTBEAT, 0),))])[1] == {}


def test_choice_is_idle_unless_an_unrecorded_sequence_may_need_it() -> None:
    idle = idle_choices(set(), ["settings 1.0"])
    assert {"producer *", "topic *"} <= {each.where for each in idle}
    assert not any(each.covers("settings 1.0") for each in idle)
    assert idle_choices(set(CHOICES), []) == []


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
