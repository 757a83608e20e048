"""`raylog doctor`: looks at this machine and at a cluster, and says what is wrong and what to do.

It asks the brokers' actors, ZooKeeper, and a task on every node with brokers (``doctor_facts``); what comes back is
judged in ``doctor_checks``. It changes nothing. What is down is a finding, not an error, and the rest is looked at.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from raylog.broker.cli import doctor_checks
from raylog.broker.cli.doctor_checks import Finding, State
from raylog.broker.cli.doctor_facts import NodeFacts, Question, look
from raylog.broker.groups.examination import examine_groups
from raylog.broker.launch import ray_driver
from raylog.broker.launch.cluster_file import ClusterFile, RayInfo, raylog_home
from raylog.broker.launch.local_ray import PLACE_LABEL
from raylog.coordination.host.clocks import wall_ms
from raylog.coordination.metadata import snapshot
from raylog.coordination.store import unreadable
from raylog.coordination.store.port import MetadataStore, StoreError
from raylog.coordination.zookeeper.embedded import EmbeddedZooKeeper
from raylog.coordination.zookeeper.store import ZkStore
from raylog.protocol.errors import InvalidConfig, RaylogError

__all__ = ["examine", "unreadable_nodes"]

HERE = "this machine"
LOOK_TIMEOUT_S = 60.0
ZOOKEEPER_TIMEOUT_MS = 4_000
SLOW_MS = 200
"""A metadata store that takes longer than this for an answer makes leases end and elections slow."""


def examine(cluster: ClusterFile | None) -> list[Finding]:
    """Everything there is to say about ``cluster``, or, when there is none, about bringing one up here."""
    if cluster is None:
        facts = look(Question(directories=(str(raylog_home()),)))
        none = Finding("cluster", HERE, State.OK, "none runs here; `raylog up` starts one")
        return [none, *doctor_checks.node(HERE, facts, needs_java=True, here_version=_version())]
    findings = [*_zookeeper(cluster), *_token(cluster.ray)]
    if not ray_driver.runs(cluster.ray):
        return [*_stopped(cluster), *findings]
    try:
        with ray_driver.driver(cluster.ray):
            return [Finding("ray", cluster.ray.address, State.OK, "answers"), *findings, *_running(cluster)]
    except RaylogError as error:
        return [Finding("ray", cluster.ray.address, State.FAIL, str(error), _ray_advice(cluster)), *findings]


def _version() -> str:
    return version("raylog-broker")


def _ray_advice(cluster: ClusterFile) -> str:
    return f"see {cluster.data_dir}/ray/session_latest/logs" if cluster.ray.is_local else "ask `ray status` there"


# --- a cluster that is down ---


def _stopped(cluster: ClusterFile) -> Iterator[Finding]:
    """Ray is not there, so no broker is: what would hinder the next start on this machine."""
    yield Finding(
        "ray", cluster.ray.address, State.FAIL, "it does not run, or its node has died, so no broker runs",
        f"`raylog up --data-dir {cluster.data_dir}` brings the cluster up",
    )  # fmt: skip
    directories = [broker.data_dir for broker in cluster.brokers]
    facts = look(Question(directories=directories or (cluster.data_dir,), stopped=directories))
    yield from doctor_checks.node(HERE, facts, needs_java=cluster.zookeeper.embedded, here_version=_version())


# --- a cluster that runs ---


def _running(cluster: ClusterFile) -> Iterator[Finding]:
    begun_ms = wall_ms()
    answers = ray_driver.describe(cluster.namespace, [broker.id for broker in cluster.brokers])
    ended_ms = wall_ms()
    serving = {broker_id: answer for broker_id, answer in answers.items() if answer["state"] == "serving"}
    facts, missing = _look_everywhere(cluster, serving)
    open_files = dict(chain.from_iterable(found.open_files.items() for found in facts.values()))
    reached = {(name, at): error for name, found in facts.items() for at, error in found.reached.items()}
    yield from missing
    yield from doctor_checks.brokers(answers, open_files)
    yield from doctor_checks.told_addresses(serving, reached, is_local=cluster.ray.is_local)
    yield from doctor_checks.shared_addresses(serving)
    for broker_id, answer in sorted(serving.items()):
        yield doctor_checks.clock(f"broker {broker_id}", _beyond(answer["time_ms"], begun_ms, ended_ms))
    for name, found in facts.items():
        needs_java = name == HERE and cluster.zookeeper.embedded
        yield from doctor_checks.node(name, found, needs_java=needs_java, here_version=_version())


def _look_everywhere(
    cluster: ClusterFile, serving: Mapping[int, Mapping[str, Any]]
) -> tuple[dict[str, NodeFacts], list[Finding]]:
    """The facts of every node with brokers, by its name, and of this machine; and the nodes that tell none."""
    addresses = [
        (address, cluster.cluster_id) for answer in serving.values() for address in answer["listeners"].values()
    ]
    facts: dict[str, NodeFacts] = {}
    missing: list[Finding] = []
    if not cluster.ray.is_local:
        facts[HERE] = look(Question(addresses=addresses))
    places = {place.name: place for place in ray_driver.places(local=cluster.ray.is_local)}
    for name in sorted({broker.place for broker in cluster.brokers}):
        if name not in places:
            missing.append(_no_node(name))
            continue
        on_it = [broker for broker in cluster.brokers if broker.place == name]
        pids = {broker.id: serving[broker.id]["pid"] for broker in on_it if broker.id in serving}
        kept_in = [serving.get(broker.id, {}).get("log_dirs", [broker.data_dir]) for broker in on_it]
        question = Question(list(chain.from_iterable(kept_in)), addresses, pids, is_ray_worker=True)
        try:
            # A task on this machine, too: what Ray's processes have counts, not what our shell has.
            facts[name] = ray_driver.run_at(places[name], look, question, timeout_s=LOOK_TIMEOUT_S)
        except RaylogError as error:
            missing.append(Finding("node", name, State.FAIL, str(error), "see Ray's logs of that node"))
    return facts, missing


def _no_node(name: str) -> Finding:
    return Finding(
        "node", name, State.FAIL, "Ray has no live node of this name, and brokers have their data there",
        f"start Ray there, with --labels {PLACE_LABEL}={name} if it had that label",
    )  # fmt: skip


def _beyond(then_ms: int, begun_ms: int, ended_ms: int) -> int:
    """How far a clock that was read between two readings of ours lies outside them."""
    return min(then_ms - begun_ms, 0) or max(then_ms - ended_ms, 0)


# --- ZooKeeper and the token ---


def _zookeeper(cluster: ClusterFile) -> Iterator[Finding]:
    connect = cluster.zookeeper.connect
    if cluster.zookeeper.embedded:
        server = EmbeddedZooKeeper(Path(cluster.data_dir) / "zookeeper")
        if server.owner is None:
            yield Finding(
                "zookeeper", connect, State.FAIL, f"its owner does not run{'' if server.jvm else ', nor does it'}",
                f"`raylog up --data-dir {cluster.data_dir}` starts it; it has its data",
            )  # fmt: skip
            if server.jvm is None:
                return
    try:
        auth = cluster.zookeeper.auth
        with ZkStore(
            connect, auth=auth, session_timeout_ms=ZOOKEEPER_TIMEOUT_MS, connect_timeout_ms=ZOOKEEPER_TIMEOUT_MS
        ) as store:
            begun_ms = wall_ms()
            server_ms = store.server_time_ms()
            ended_ms = wall_ms()
            odd = unreadable_nodes(store)
    except (StoreError, InvalidConfig) as error:
        advice = f"see {cluster.data_dir}/zookeeper/*.log" if cluster.zookeeper.embedded else "see to the ensemble"
        yield Finding("zookeeper", connect, State.FAIL, str(error), f"{advice}; brokers refuse to serve meanwhile")
        return
    took_ms = ended_ms - begun_ms
    advice = "" if took_ms < SLOW_MS else "see how busy its machine and its disk are"
    state = State.WARN if advice else State.OK
    yield Finding("zookeeper", connect, state, f"takes {took_ms} ms for a write, a read and a write", advice)
    yield doctor_checks.clock(f"ZooKeeper {connect}", _beyond(server_ms, begun_ms, ended_ms))
    yield from doctor_checks.unreadable(odd)


def unreadable_nodes(store: MetadataStore) -> Mapping[str, str]:
    """What brokers and members of groups skip in the metadata store, by path."""
    with unreadable.collecting() as found:
        snapshot.load(store)
        examine_groups(store)
    return found.known


def _token(info: RayInfo) -> Iterator[Finding]:
    """Who may get into the Ray cluster."""
    mode = os.environ.get("RAY_AUTH_MODE", "")
    if not info.auth_token_path:
        if info.is_local and mode != "token":
            yield Finding(
                "token", info.address, State.WARN, "Ray lets in everybody who reaches this machine",
                "bring the cluster up without RAY_AUTH_MODE=disabled",
            )  # fmt: skip
        elif info.is_local:
            yield Finding("token", info.address, State.OK, "Ray asks for the token that the environment names")
        return
    yield _token_file(info.auth_token_path)


def _token_file(path: str) -> Finding:
    again = "`raylog down` and `raylog up` make a new one"
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        empty = not Path(path).read_text().strip()
    except OSError as error:
        return Finding("token", path, State.FAIL, f"cannot be read: {error.strerror}", again)
    if empty:
        return Finding("token", path, State.FAIL, "is empty", again)
    if mode & 0o077:
        return Finding(
            "token", path, State.FAIL, f"others may read it (mode {mode:o})", f"`chmod 600 {path}`, then {again}"
        )
    return Finding("token", path, State.OK, "Ray asks for it, and only its owner can read it")


def findings_as_rows(findings: Sequence[Finding]) -> list[Mapping[str, Any]]:
    """For printing: the worst at the end, where people look."""
    order = {State.OK: 0, State.WARN: 1, State.FAIL: 2}
    return [
        {"state": str(f.state), "check": f.check, "subject": f.subject, "found": f.found, "advice": f.advice}
        for f in sorted(findings, key=lambda finding: order[finding.state])
    ]
