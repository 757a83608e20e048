"""What `raylog doctor` makes of facts: each kind of trouble is told, with what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from raylog.broker.cli import doctor_checks
from raylog.broker.cli.doctor_checks import GIB, MIB, Finding, State, worst
from raylog.broker.cli.doctor_facts import Disk, NodeFacts

GOOD = NodeFacts(
    version="1",
    java="Java 17",
    java_error="",
    java_on_path=True,
    is_ray_worker=True,
    file_limit=1_000_000,
    disks={"/data": Disk(50 * GIB, 100 * GIB)},
    reached={},
    open_files={},
    taken_ports={},
)
SERVING: Mapping[str, Any] = {
    "state": "serving",
    "trouble": "",
    "id": 0,
    "pid": 7,
    "partitions": 3,
    "controller_id": 0,
    "lease_held": True,
    "offline_log_dirs": {},
    "damaged": {},
    "failed_partitions": {},
    "failing_threads": {},
    "missing_log_dirs": [],
    "listeners": {"PLAINTEXT": "10.0.0.1:9092"},
    "listening": {"PLAINTEXT": "10.0.0.1:9092"},
}


def of_node(**changes: Any) -> list[Finding]:
    return list(doctor_checks.node("n", replace(GOOD, **changes), needs_java=False, here_version="1"))


def of_broker(open_files: tuple[int, int] = (10, 1000), **changes: Any) -> list[Finding]:
    return list(doctor_checks.brokers({0: {**SERVING, **changes}}, {0: open_files}))


def of_listener(address: str, bound: str, error: str = "", *, is_local: bool = False) -> Finding:
    answer = {**SERVING, "listeners": {"A": address}, "listening": {"A": bound}}
    [finding] = doctor_checks.told_addresses({0: answer}, {("n", address): error}, is_local=is_local)
    return finding


def test_where_all_is_well_nothing_is_advised() -> None:
    findings = [*of_node(), *of_broker(), of_listener("10.0.0.1:9092", "10.0.0.1:9092")]
    assert worst(findings) is State.OK
    assert {finding.advice for finding in findings} == {""}


@pytest.mark.parametrize(
    ("changes", "check", "state", "found"),
    [
        ({"java_error": "no Java 17 found"}, "java", State.WARN, "no Java 17"),
        ({"java_on_path": False}, "java", State.WARN, "without java on its PATH"),
        ({"disks": {"/data": Disk(99 * MIB, 100 * GIB)}}, "disk", State.FAIL, "0.1 GiB of 100.0 GiB"),
        ({"disks": {"/data": Disk(4 * GIB, 100 * GIB)}}, "disk", State.WARN, "4.0 GiB"),
        ({"file_limit": 1024}, "file limit", State.WARN, "1024"),
        ({"version": "2"}, "version", State.WARN, "raylog 2, but 1"),
        ({"taken_ports": {"/b A": "h:1 cannot be listened at"}}, "port", State.FAIL, "h:1"),
    ],
)
def test_a_nodes_trouble_is_told(changes: dict[str, Any], check: str, state: State, found: str) -> None:
    [trouble] = [finding for finding in of_node(**changes) if finding.state is not State.OK]
    assert (trouble.check, trouble.state) == (check, state)
    assert found in trouble.found
    assert trouble.advice


def test_java_must_be_where_zookeeper_runs() -> None:
    findings = doctor_checks.node("n", replace(GOOD, java_error="none"), needs_java=True, here_version="1")
    assert worst(findings) is State.FAIL


@pytest.mark.parametrize(
    ("changes", "check", "found"),
    [
        ({"state": "starting", "trouble": "a port is in use"}, "broker", "starting: a port is in use"),
        ({"state": "missing"}, "broker", "missing"),
        ({"lease_held": False, "trouble": "no answer"}, "broker", "refuses to serve: no answer"),
        ({"lease_held": False}, "broker", "refuses to serve: the controller"),
        ({"offline_log_dirs": {"/d": "fsync failed"}}, "log dir", "/d: fsync failed"),
        ({"state": "failed", "trouble": "thread controller"}, "broker", "failed: thread controller"),
        ({"failing_threads": {"maintenance": "OSError"}}, "thread", "maintenance fails: OSError"),
        ({"damaged": {"t-0": "bad at 5"}}, "replica", "t-0 is damaged: bad at 5"),
        ({"failed_partitions": {"t-1": "can't start new thread"}}, "replica", "t-1 is neither led nor followed"),
        ({"missing_log_dirs": ["abc"]}, "log dir", "abc"),
        ({"open_files": (950, 1000)}, "open files", "950 of 1000"),
    ],
)
def test_a_brokers_trouble_is_told(changes: dict[str, Any], check: str, found: str) -> None:
    [trouble] = [finding for finding in of_broker(**changes) if finding.state is not State.OK]
    assert (trouble.check, trouble.state) == (check, State.FAIL)
    assert found in trouble.found
    assert trouble.advice


@pytest.mark.parametrize(
    ("address", "bound", "error", "is_local", "state"),
    [
        ("127.0.0.1:9092", "127.0.0.1:9092", "", True, State.OK),
        ("public.example:9092", "0.0.0.0:9092", "", False, State.OK),
        ("public.example:9092", "0.0.0.0:9092", "Connection refused", False, State.FAIL),
        ("127.0.0.1:9092", "0.0.0.0:9092", "", True, State.WARN),
        ("[::1]:9092", "[::]:9092", "", True, State.WARN),
        ("localhost:9092", "127.0.0.1:9092", "", False, State.WARN),
    ],
)
def test_what_clients_are_told_must_lead_there(
    address: str, bound: str, error: str, is_local: bool, state: State
) -> None:
    finding = of_listener(address, bound, error, is_local=is_local)
    assert finding.state is state
    assert address in finding.found
    assert error in finding.found
    assert bool(finding.advice) == (state is not State.OK)


def test_an_address_stands_for_one_broker() -> None:
    [shared] = doctor_checks.shared_addresses({0: SERVING, 1: SERVING})
    assert (shared.subject, shared.state) == ("brokers 0, 1", State.FAIL)
    assert not list(doctor_checks.shared_addresses({0: SERVING, 1: {**SERVING, "listeners": {"A": "h:1"}}}))


@pytest.mark.parametrize(
    ("skew_ms", "state"), [(0, State.OK), (-499, State.OK), (500, State.WARN), (-60_000, State.FAIL)]
)
def test_a_clock_that_is_off_is_told(skew_ms: int, state: State) -> None:
    assert doctor_checks.clock("c", skew_ms).state is state


def test_the_worst_decides() -> None:
    ok, warn, fail = (Finding("c", "s", state, "") for state in (State.OK, State.WARN, State.FAIL))
    assert worst([]) is worst([ok]) is State.OK
    assert worst([ok, warn]) is State.WARN
    assert worst([fail, warn, ok]) is State.FAIL


def test_each_unreadable_node_is_told_with_what_to_do() -> None:
    [finding] = doctor_checks.unreadable({"/brokers/topics/x": "holds no JSON: b''"})
    assert (finding.state, finding.subject, finding.found) == (State.WARN, "/brokers/topics/x", "holds no JSON: b''")
    assert "raylog topics delete" in finding.advice
    [finding] = doctor_checks.unreadable({})
    assert finding.state is State.OK
