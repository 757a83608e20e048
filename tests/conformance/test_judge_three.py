"""Three of our brokers under a script of moves and kills: what is acknowledged and read is what Kafka's three had."""

from __future__ import annotations

from copy import deepcopy

import pytest

from judge.three.kept import SEEDS, differences, faults, load, outcomes, raylog
from judge.three.running import Outcome
from judge.three.script import Elect, Grow, Kill, Reassign, Start, Trim, Write, script

SEED = 2


@pytest.fixture(scope="module")
def kafkas() -> dict[int, Outcome]:
    return load(SEEDS)


@pytest.mark.system
@pytest.mark.timeout(600)
def test_three_brokers_end_as_kafkas(kafkas: dict[int, Outcome]) -> None:
    [ours] = outcomes(raylog, [SEED]).values()
    assert list(faults(ours)) == []
    assert list(differences(ours, kafkas[SEED])) == []


def test_scripts_do_enough() -> None:
    for seed in SEEDS:
        acts = script(seed)
        assert len(acts) >= 60
        assert {Elect, Grow, Kill, Reassign, Start, Trim, Write} <= set(map(type, acts))
        assert any(isinstance(act, Write) and act.kills for act in acts)
        assert any(isinstance(act, Write) and act.again for act in acts)
        assert any(isinstance(act, Write) and len(act.batches) > 1 for act in acts)


def test_kafka_has_what_it_acknowledged(kafkas: dict[int, Outcome]) -> None:
    assert {seed: list(faults(each)) for seed, each in kafkas.items()} == {seed: [] for seed in SEEDS}


def test_a_lost_batch_is_a_fault(kafkas: dict[int, Outcome]) -> None:
    changed = deepcopy(kafkas[SEED])
    del changed["readable"]["a-0"]["batches"][-1]
    assert [each.partition(":")[0] for each in faults(changed)] == ["a-0"]


def test_a_batch_that_is_there_twice_is_a_fault(kafkas: dict[int, Outcome]) -> None:
    changed = deepcopy(kafkas[SEED])
    batches = changed["readable"]["a-0"]["batches"]
    batches.append({**batches[-1], "base_offset": batches[-1]["base_offset"] + 9})
    assert [each.partition(":")[0] for each in faults(changed)] == ["a-0"]


def test_another_offset_for_what_is_sent_again_is_a_fault(kafkas: dict[int, Outcome]) -> None:
    changed = deepcopy(kafkas[SEED])
    act, found = next(
        each for each in changed["acknowledged"].items() if isinstance(each[1], list) and len(each[1]) > 1
    )
    found[1] = [offset + 1 for offset in found[1]]
    assert any(each.startswith(f"act {act}") for each in faults(changed))


def test_a_changed_byte_is_a_difference(kafkas: dict[int, Outcome]) -> None:
    changed = deepcopy(kafkas[SEED])
    changed["readable"]["a-0"]["batches"][-1]["bytes"] += "00"
    assert len(list(differences(changed, kafkas[SEED]))) == 1
