"""SIGSTOP of a replicated leader past its session, SIGCONT: the zombie acknowledges nothing and tells no old end."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import pytest

from kit.history_checker import Verdict
from kit.machine import scaled, scaled_ms
from kit.replicated import ReplicatedCluster
from kit.waiting import wait_until
from kit.wire import WireClient, produce_request, request
from kit.workload import Workload
from raylog.protocol.records import Record, encode_batch
from raylog.protocol.wire.messages import decode_response
from raylog.protocol.wire.produce import parse_produce_response

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

SESSION_MS = scaled_ms(2_000)
PRODUCE_VERSION = 9
LIST_OFFSETS, LIST_OFFSETS_VERSION, LATEST = 2, 5, -1
ROUNDS, MAX_ROUNDS, REQUESTS = 3, 9, 10
IMPATIENT = {"request.timeout.ms": 500, "socket.timeout.ms": 1_000}
"""A stopped broker answers nothing: how long clients wait for it is their own affair, and must not count here."""
FAILOVER_S = SESSION_MS / 1000 + scaled(1.0)
"""Of the quickest of the rounds: a machine that is busy with other things delays some, and gets up to MAX_ROUNDS."""
WAIT_S = 30.0
INTRUDER = encode_batch([Record(b"999999999", timestamp=1_000)])
ENDS = {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": LATEST}]}]}


def stop_the_leader(cluster: ReplicatedCluster, load: Workload, codes: list[tuple[int, int]]) -> float:
    """SIGSTOP until another one leads, requests meanwhile, SIGCONT; the seconds to the next acknowledged record, and
    into ``codes`` what the zombie answered to each produce and list-offsets.
    """
    zombie = cluster.leader("t", 0)
    with WireClient(cluster.address(zombie), timeout_s=scaled(WAIT_S)) as client:
        cluster.pause(zombie)
        stopped = time.monotonic()
        try:
            wait_until(lambda: cluster.leader("t", 0) != zombie, WAIT_S, "another one leads")
            load.wait_acked_everywhere(stopped)
            for number in range(0, 2 * REQUESTS, 2):
                produce = produce_request("t", INTRUDER, version=PRODUCE_VERSION, acks=-1, correlation_id=number)
                client.send(produce + request(LIST_OFFSETS, LIST_OFFSETS_VERSION, correlation_id=number + 1, **ENDS))
        finally:
            cluster.resume(zombie)
        for _ in range(REQUESTS):
            [topic] = parse_produce_response(PRODUCE_VERSION, client.receive())[1].topics
            _, ends = decode_response(LIST_OFFSETS, LIST_OFFSETS_VERSION, client.receive())
            codes.append((topic.partitions[0].error_code, ends.topics[0].partitions[0].error_code.value))
    acked = load.acked_since(0, stopped)
    assert acked is not None
    return acked - stopped


def test_a_leader_stopped_past_its_session_acknowledges_nothing_when_it_goes_on(tmp_path: Path) -> None:
    failovers: list[float] = []
    codes: list[tuple[int, int]] = []
    with ReplicatedCluster(tmp_path, session_ms=SESSION_MS) as cluster:
        cluster.create_topic("t")
        with Workload(cluster.bootstrap_servers, "t", partitions=1, producer_config=IMPATIENT) as load:
            while len(failovers) < ROUNDS or (min(failovers) > FAILOVER_S and len(failovers) < MAX_ROUNDS):
                load.wait_acked_everywhere(time.monotonic())
                failovers.append(stop_the_leader(cluster, load, codes))
                cluster.wait_in_sync("t", 1)
        judgement = load.judge(keep=tmp_path / "history.jsonl")
    zombie_acks, old_ends = (sum(code == 0 for code in each) for each in zip(*codes, strict=True))
    print(
        f"\nSIGSTOP of a leader past its session of {SESSION_MS / 1000:g} s, {len(failovers)} times: "
        f"zombie acks {zombie_acks}, old ends told {old_ends} of {len(codes)} each; "
        f"failover p50 {median(failovers):.2f} s, max {max(failovers):.2f} s; {judgement}"
    )
    assert (zombie_acks, old_ends) == (0, 0)
    assert judgement.verdict is Verdict.VALID, judgement.findings
    assert load.errors == []
    assert load.resets == []
    assert min(failovers) <= FAILOVER_S, failovers
