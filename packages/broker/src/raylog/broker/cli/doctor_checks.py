"""What `raylog doctor` makes of what it found: facts in, findings out; nothing is asked here.

Each function judges one kind of fact and answers :class:`Finding` values, in words for people. The limits are
those below which things have been seen to go wrong, not settings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from raylog.broker.cli.doctor_facts import Disk, NodeFacts
from raylog.broker.net.listeners import WILDCARDS
from raylog.coordination.store.unreadable import advice_for

__all__ = ["Finding", "State", "brokers", "clock", "node", "shared_addresses", "told_addresses", "unreadable", "worst"]

MIB, GIB = 2**20, 2**30
FEW_FILES = 10_000
"""Below this a busy broker runs out: each connection is a file, each segment three."""
NEARLY_ALL = 0.9
SKEW_WARN_MS, SKEW_FAIL_MS = 500, 60_000
"""Clocks this far apart mislead who compares timestamps; a minute apart, retention and lookups by time go wrong."""
LOOPBACK = ("127.", "localhost", "::1")


class State(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str
    """What kind of thing: java, disk, listener, …"""
    subject: str
    """Which one: a node, a broker, a directory."""
    state: State
    found: str
    advice: str = ""
    """What to do about it; empty when all is well."""


def worst(findings: Iterable[Finding]) -> State:
    """The state that decides the exit code."""
    states = {finding.state for finding in findings}
    return next((state for state in (State.FAIL, State.WARN) if state in states), State.OK)


# --- a node ---


def node(name: str, facts: NodeFacts, *, needs_java: bool, here_version: str) -> Iterator[Finding]:
    """A machine that has, or may get, brokers."""
    yield _java(name, facts, needs_java)
    for path, disk in facts.disks.items():
        yield _disk(f"{path} on {name}", disk)
    yield _file_limit(name, facts.file_limit)
    if facts.version != here_version:
        yield Finding(
            "version", name, State.WARN, f"raylog {facts.version}, but {here_version} where doctor runs",
            "install the same raylog on every node",
        )  # fmt: skip
    for path, error in facts.taken_ports.items():
        yield Finding(
            "port", path, State.FAIL, error, "end what listens there: the broker keeps its port and waits for it"
        )


def _java(name: str, facts: NodeFacts, needs_java: bool) -> Finding:
    if facts.java_error:
        state = State.FAIL if needs_java else State.WARN
        advice = "install it" if needs_java else "install it if Spark is to run there"
        return Finding("java", name, state, facts.java_error, advice)
    if facts.is_ray_worker and not facts.java_on_path:
        return Finding(
            "java", name, State.WARN, f"{facts.java} is there, but Ray was started without java on its PATH",
            "start Ray there with it on the PATH (infra/ray shows how): Spark's first Java worker would end the raylet",
        )  # fmt: skip
    return Finding("java", name, State.OK, facts.java)


def _disk(subject: str, disk: Disk) -> Finding:
    found = f"{disk.free / GIB:.1f} GiB of {disk.total / GIB:.1f} GiB free"
    share = disk.free / disk.total if disk.total else 0.0
    if disk.free < 100 * MIB:
        advice = "free some space now: a log directory whose disk is full goes offline"
        return Finding("disk", subject, State.FAIL, found, advice)
    if disk.free < GIB or share < 0.05:
        return Finding(
            "disk", subject, State.WARN, found, "free some space, or set retention.bytes or retention.ms lower"
        )
    return Finding("disk", subject, State.OK, found)


def _file_limit(name: str, limit: int) -> Finding:
    if limit < FEW_FILES:
        return Finding(
            "file limit", name, State.WARN, f"{limit} open files a process",
            f"raise the hard limit to {FEW_FILES} or more (ulimit -Hn) before Ray starts",
        )  # fmt: skip
    return Finding("file limit", name, State.OK, f"{limit} open files a process")


# --- the metadata store ---


def unreadable(nodes: Mapping[str, str]) -> Iterator[Finding]:
    """Nodes that cannot be understood, and what is wrong with each."""
    for path, what in sorted(nodes.items()):
        yield Finding("metadata", path, State.WARN, what, advice_for(path, what))
    if not nodes:
        yield Finding("metadata", "all nodes", State.OK, "can be read")


# --- brokers ---


def brokers(answers: Mapping[int, Mapping[str, Any]], open_files: Mapping[int, tuple[int, int]]) -> Iterator[Finding]:
    """What each broker says of itself (Broker.describe with its state), and its open files and their limit."""
    for broker_id, answer in sorted(answers.items()):
        name = f"broker {broker_id}"
        if answer["state"] != "serving":
            yield Finding(
                "broker", name, State.FAIL, f"{answer['state']}: {answer['trouble'] or 'it says no more'}",
                "see broker.log in its directory",
            )  # fmt: skip
            continue
        yield _serving(name, answer)
        for path, reason in answer["offline_log_dirs"].items():
            yield Finding("log dir", name, State.FAIL, f"{path}: {reason}", "repair the disk, then restart the broker")
        for thread, reason in answer["failing_threads"].items():
            yield Finding(
                "thread", name, State.FAIL, f"{thread} fails: {reason}",
                "see broker.log; mend what the reason names, or restart the broker",
            )  # fmt: skip
        for tp, reason in answer["damaged"].items():
            yield Finding(
                "replica", name, State.FAIL, f"{tp} is damaged: {reason}",
                "it mends itself once another replica is in sync and leads; if none has it, what is damaged is lost",
            )  # fmt: skip
        for tp, reason in answer["failed_partitions"].items():
            yield Finding(
                "replica", name, State.FAIL, f"{tp} is neither led nor followed as the controller decided: {reason}",
                "it is tried again every second, or once another disk is there; see broker.log",
            )  # fmt: skip
        for directory in answer["missing_log_dirs"]:
            yield Finding(
                "log dir", name, State.FAIL, f"the directory with id {directory} is gone since its last start",
                "put it back and restart the broker; if its disk is lost, what only it held is lost",
            )  # fmt: skip
        if broker_id in open_files:
            yield _open_files(name, *open_files[broker_id])


def _serving(name: str, answer: Mapping[str, Any]) -> Finding:
    if not answer["lease_held"]:
        found = f"it refuses to serve: {answer['trouble'] or 'the controller has not told it what it leads'}"
        return Finding("broker", name, State.FAIL, found, "see what is said of ZooKeeper, and its broker.log")
    role = ", controller" if answer["controller_id"] == answer["id"] else ""
    return Finding(
        "broker", name, State.OK, f"serves {answer['partitions']} partitions as process {answer['pid']}{role}"
    )


def _open_files(name: str, used: int, limit: int) -> Finding:
    found = f"{used} of {limit} files open"
    if used > NEARLY_ALL * limit:
        advice = "raise the limit, close idle clients, or spread partitions over more brokers"
        return Finding("open files", name, State.FAIL, found, advice)
    return Finding("open files", name, State.OK, found)


# --- addresses ---


def told_addresses(
    answers: Mapping[int, Mapping[str, Any]], reached: Mapping[tuple[str, str], str], *, is_local: bool
) -> Iterator[Finding]:
    """What clients are told, and whether it leads there.

    ``reached``: by the name of the place that tried and the address, what went wrong, or nothing.
    """
    for broker_id, answer in sorted(answers.items()):
        for listener, address in answer.get("listeners", {}).items():
            yield _told(f"broker {broker_id} {listener}", address, answer["listening"][listener], reached, is_local)


def _told(subject: str, address: str, bound: str, reached: Mapping[tuple[str, str], str], is_local: bool) -> Finding:
    tried = {place: error for (place, at), error in reached.items() if at == address}
    failed = {place: error for place, error in tried.items() if error}
    found = f"clients are told {address}; reached from {', '.join(sorted(tried)) or 'nowhere: not tried'}"
    if failed:
        where = "; ".join(f"from {place}: {error}" for place, error in sorted(failed.items()))
        return Finding(
            "listener", subject, State.FAIL, f"clients are told {address}, which does not lead there: {where}",
            "set advertised.listeners to an address that clients and brokers reach, or open the way to it",
        )  # fmt: skip
    host, _, _ = bound.rpartition(":")
    is_loopback = address.lstrip("[").startswith(LOOPBACK)
    if host.strip("[]") in WILDCARDS and is_loopback:
        return Finding(
            "listener", subject, State.WARN, f"{found}; it listens at all, but that one is the machine's own",
            "set advertised.listeners to the machine's name or address if others are to connect",
        )  # fmt: skip
    if not is_local and is_loopback:
        return Finding(
            "listener", subject, State.WARN, f"{found}; on other machines that address leads nowhere",
            "set listeners or advertised.listeners to the node's address",
        )  # fmt: skip
    return Finding("listener", subject, State.OK, found)


def shared_addresses(answers: Mapping[int, Mapping[str, Any]]) -> Iterator[Finding]:
    """Addresses that stand for more than one broker: a client of one would end at the other."""
    owners: dict[str, list[int]] = defaultdict(list)
    for broker_id, answer in sorted(answers.items()):
        for address in set(answer.get("listeners", {}).values()):
            owners[address].append(broker_id)
    for address, ids in sorted(owners.items()):
        if len(ids) > 1:
            yield Finding(
                "listener", f"brokers {', '.join(map(str, ids))}", State.FAIL, f"all tell clients {address}",
                "give each an advertised.listeners of its own",
            )  # fmt: skip


# --- clocks ---


def clock(subject: str, skew_ms: int) -> Finding:
    """How far another clock is from this machine's, at least."""
    found = "agrees with this machine's" if not skew_ms else f"{abs(skew_ms)} ms {'ahead' if skew_ms > 0 else 'behind'}"
    if abs(skew_ms) < SKEW_WARN_MS:
        return Finding("clock", subject, State.OK, found)
    state = State.FAIL if abs(skew_ms) >= SKEW_FAIL_MS else State.WARN
    return Finding("clock", subject, state, found, "let both follow the same time server (NTP)")
