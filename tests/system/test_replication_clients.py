"""Idempotent producers through proxies that lose the brokers' answers, while leaders are killed: each record once."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from kit.history_checker import Verdict, check
from kit.history_mutations import MUTATIONS, OF_TRANSACTIONS, Ops
from kit.proxied import behind_proxies
from kit.proxy import Fate
from kit.waiting import wait_until
from kit.workload import Workload
from raylog.protocol.wire.produce import parse_produce_response

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

PRODUCE = 0
PARTITIONS = 3
EACH = 20
LEAST_REPEATED = 10
"""Retries that the brokers know from before: a slow machine takes longer to so many."""
WAIT_S = 30.0


def test_lost_answers_and_failover_make_no_duplicate_and_no_gap(tmp_path: Path) -> None:
    """Every twentieth answer to a produce is lost with its connection: the retry meets a broker that has the records,
    or another leader that has them from the log.
    """
    lost = Counter[Fate]()
    answers = itertools.count(1)
    told = Counter[tuple[int, int]]()

    def lose_some(api_key: int) -> Fate:
        fate = Fate.PASS if api_key != PRODUCE or next(answers) % EACH else Fate.CUT
        lost[fate] += 1
        return fate

    def note(api_key: int, version: int, frame: bytes) -> bytes:
        """How often brokers said, of each batch, that they have it: more than once where they knew it from before."""
        if api_key == PRODUCE:
            _, response = parse_produce_response(version, frame)
            parts = [part for topic in response.topics for part in topic.partitions if not part.error_code]
            told.update((part.partition, part.base_offset) for part in parts)
        return frame

    def repeated() -> int:
        times = list(told.values())
        return sum(times) - len(times)

    with behind_proxies(tmp_path, partitions=PARTITIONS) as (cluster, proxies, servers):
        with Workload(servers, "t", partitions=PARTITIONS) as load:
            load.wait_acked_everywhere()
            for proxy in proxies:
                proxy.on_answer, proxy.edit_answer = lose_some, note
            for _ in range(2):
                victim = cluster.leader("t", 0)
                killed = cluster.kill(victim)
                load.wait_acked_everywhere(killed)
                cluster.start(victim)
                cluster.wait_serving(victim)
                cluster.wait_in_sync("t", PARTITIONS)
            wait_until(lambda: repeated() > LEAST_REPEATED, WAIT_S, "answers are told again", instead=repeated)
            for proxy in proxies:
                proxy.on_answer = lambda _: Fate.PASS
        judgement = load.judge(keep=tmp_path / "history.jsonl")
    deduplicated = repeated()
    print(f"\n{lost[Fate.CUT]} answers lost and two leaders killed: {deduplicated} retries deduplicated; {judgement}")
    check_the_checker(load.recorder.ops())
    assert deduplicated > LEAST_REPEATED
    assert judgement.verdict is Verdict.VALID, judgement.findings
    assert load.errors == []
    assert load.resets == []


def test_a_wrong_hint_costs_a_registration_and_no_record(tmp_path: Path) -> None:
    """A broker's port refuses connections while the broker lives: others take it for dead, it registers anew."""
    with behind_proxies(tmp_path, partitions=PARTITIONS) as (cluster, proxies, servers):
        with Workload(servers, "t", partitions=PARTITIONS) as load:
            load.wait_acked_everywhere()
            victim = cluster.leader("t", 0)
            before = cluster.epoch(victim)
            refused = time.monotonic()
            proxies[victim].close()
            wait_until(lambda: cluster.leader("t", 0) != victim, WAIT_S, "another one leads")
            load.wait_acked_everywhere(refused)
            proxies[victim].reopen()
            cluster.wait_in_sync("t", PARTITIONS)
            after = cluster.epoch(victim)
            load.wait_acked_everywhere(time.monotonic())
        judgement = load.judge(keep=tmp_path / "history.jsonl")
        print(f"\na wrong hint: broker epoch {before}, then {after}; {judgement}")
        assert after > before
    assert judgement.verdict is Verdict.VALID, judgement.findings
    assert load.errors == []
    assert load.resets == []


def check_the_checker(ops: Ops) -> None:
    """It rejects each mutation of this history, too."""
    mutations = [mutate for mutate in MUTATIONS if mutate not in OF_TRANSACTIONS]
    rejected = [mutate for mutate in mutations if MUTATIONS[mutate] in check(mutate(ops, Random(7))).counts]
    print(f"mutations of this history rejected: {len(rejected)} of {len(mutations)}")
    assert rejected == mutations
