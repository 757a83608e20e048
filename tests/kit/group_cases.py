"""What is asked of Kafka and of raylog about groups, case by case: requests in order, each group of a case its own.

A text that begins with ``$`` stands for what only a run knows: ``$group`` (and ``$group.2``…) for names of the case's
own groups, ``$topic`` and ``$other`` for the ids of topics t and u, ``$nobody`` for an id that no topic has, ``$a`` for
the member id that client a was given last.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from raylog.protocol.wire import consumer_protocol

__all__ = ["CASES", "CHOSEN", "TOPICS", "Step"]

TOPICS = {"t": 2, "u": 1}
"""Their partitions, at either broker."""


class Step(NamedTuple):
    """One request."""

    api: str
    version: int
    request: dict[str, Any]
    client: str = "a"
    """Whose connection it is sent on."""
    waits: bool = False
    """Its answer comes after later requests of other clients: it is read before this client's next request, or at the
    end of the case.
    """
    until: str = ""
    """Ask again until the answer has this error code: that is when the broker has taken notice of another client."""


def join(client: str = "a", version: int = 9, *, topics: tuple[str, ...] = ("t",), **fields: Any) -> Step:
    """A first join, unless ``member_id`` is given."""
    waits = fields.pop("waits", False)
    subscription = consumer_protocol.encode_subscription(topics).decode("latin-1")
    request = {
        "group_id": "$group",
        "session_timeout": 10_000,
        "rebalance_timeout": 60_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription}],
        **fields,
    }
    return Step("JoinGroup", version, request, client, waits)


def again(client: str = "a", **fields: Any) -> Step:
    return join(client, **{"member_id": f"${client}", **fields})


def sync(client: str = "a", generation: int = 1, *members: str, waits: bool = False, **fields: Any) -> Step:
    """``members``: those that the leader assigns something to."""
    version = fields.pop("version", 5)
    request = {
        "group_id": "$group",
        "generation_id": generation,
        "member_id": f"${client}",
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": f"${name}", "assignment": f"share of {name}"} for name in members],
        **fields,
    }
    return Step("SyncGroup", version, request, client, waits)


def heartbeat(client: str = "a", generation: int = 1, *, until: str = "", **fields: Any) -> Step:
    request = {"group_id": "$group", "generation_id": generation, "member_id": f"${client}", **fields}
    return Step("Heartbeat", 4, request, client, until=until)


def leave(*members: dict[str, Any], client: str = "a", group: str = "$group") -> Step:
    return Step("LeaveGroup", 5, {"group_id": group, "members": list(members)}, client)


def leave_old(member: str, version: int = 2, group: str = "$group") -> Step:
    return Step("LeaveGroup", version, {"group_id": group, "member_id": member})


def commit(version: int = 9, *, topic: str = "t", partition: int = 0, offset: int = 5, **fields: Any) -> Step:
    """From outside of the group, unless ``generation`` and ``member_id`` are given."""
    generation = fields.pop("generation", -1)
    named = {"topic_id": topic} if version >= 10 else {"name": topic}
    part = {"partition_index": partition, "committed_offset": offset, "committed_metadata": fields.pop("metadata", "")}
    request = {
        "group_id": "$group",
        "generation_id_or_member_epoch": generation,
        "member_id": "",
        "topics": [{**named, "partitions": [part]}],
        **fields,
    }
    return Step("OffsetCommit", version, request)


def fetch(topics: list[dict[str, Any]] | None = None, version: int = 9, **fields: Any) -> Step:
    """Of one group, ``$group`` by default; of all its topics, unless some are given."""
    group = {"group_id": "$group", "topics": topics, **fields}
    if version >= 8:
        require_stable = group.pop("require_stable", False)
        return Step("OffsetFetch", version, {"groups": [group], "require_stable": require_stable})
    return Step("OffsetFetch", version, group)


def fetch_many(*groups: dict[str, Any], version: int = 9) -> Step:
    return Step("OffsetFetch", version, {"groups": list(groups)})


def forget(topic: str = "t", *partitions: int, group: str = "$group") -> Step:
    parts = [{"partition_index": index} for index in partitions or (0,)]
    return Step("OffsetDelete", 0, {"group_id": group, "topics": [{"name": topic, "partitions": parts}]})


def delete(*groups: str, version: int = 2) -> Step:
    return Step("DeleteGroups", version, {"groups_names": list(groups or ("$group",))})


def describe(*groups: str, version: int = 6) -> Step:
    return Step("DescribeGroups", version, {"groups": list(groups or ("$group",))})


def listed(version: int = 5, **fields: Any) -> Step:
    return Step("ListGroups", version, fields)


def of(member: str = "", instance: str | None = None) -> dict[str, Any]:
    return {"member_id": member, "group_instance_id": instance}


def asked(topic: str, *partitions: int) -> dict[str, Any]:
    return {"name": topic, "partition_indexes": list(partitions)}


STATIC = {"group_instance_id": "i"}
CONNECT = {"protocol_type": "connect", "protocols": [{"name": "range", "metadata": "any"}]}
ALONE = (join(), again(), sync("a", 1, "a"))
"""Client a is the only member, and has its part of generation 1."""
STATIC_ALONE = (join(**STATIC), sync("a", 1, "a", **STATIC))
EMPTY = (*ALONE, leave(of("$a")))
"""The group had a member, and has none."""
COMMITTED = (commit(),)
"""A group that only was committed for from outside."""
PAIR = (
    *ALONE,
    join("b"),
    again("b", waits=True),
    heartbeat(until="rebalance_in_progress"),
    again("a"),
    sync("b", 2, waits=True),
    sync("a", 2, "a", "b"),
)
"""Clients a, which leads, and b in generation 2."""

CASES: dict[str, tuple[Step, ...]] = {
    # --- commits
    "commit by a generation to an absent group": (commit(generation=1, member_id="m"),),
    "commit by a generation without a member to an absent group": (commit(generation=0),),
    "commit of an old client by a generation to an absent group": (
        commit(8, generation=1, member_id="m"),
        commit(2, generation=0),
        describe(),
    ),
    "commit by a generation and an instance to an absent group": (commit(generation=1, member_id="m", **STATIC),),
    "commit from outside to an absent group": (commit(), fetch(), describe(), listed()),
    "commit from outside that names a member to an absent group": (commit(member_id="m"), fetch()),
    "commit from outside that names an instance to an absent group": (commit(**STATIC), fetch()),
    "commit from outside to an empty group": (*EMPTY, commit(), fetch()),
    "commit from outside that names a member to an empty group": (*EMPTY, commit(member_id="m"), fetch()),
    "commit from outside that names an instance to an empty group": (*EMPTY, commit(member_id="m", **STATIC), fetch()),
    "commit by a generation to an empty group": (
        *EMPTY,
        commit(generation=1, member_id="$a"),
        commit(generation=2, member_id="$a"),
        commit(generation=2),
        commit(generation=2, member_id="m", **STATIC),
    ),
    "commit by a generation to a group that was only committed for": (
        *COMMITTED,
        commit(generation=0, member_id="m"),
        commit(generation=1, member_id="m"),
    ),
    "commit by a member": (*ALONE, commit(generation=1, member_id="$a"), fetch()),
    "commit of another generation": (
        *ALONE,
        commit(generation=2, member_id="$a"),
        commit(generation=0, member_id="$a"),
        commit(generation=-1, member_id="$a"),
    ),
    "commit by another member": (
        *ALONE,
        commit(generation=1, member_id="m"),
        commit(generation=1),
        commit(),
        commit(member_id="m"),
        commit(generation=1, member_id="$a", **STATIC),
        commit(**STATIC),
    ),
    "commit by a static member": (
        *STATIC_ALONE,
        commit(generation=1, member_id="$a", **STATIC),
        commit(generation=2, member_id="$a", **STATIC),
        commit(generation=1, member_id="m", **STATIC),
        commit(generation=1, member_id="", **STATIC),
        commit(generation=1, member_id="$a"),
        commit(generation=1, member_id="$a", group_instance_id="other"),
        commit(generation=-1, member_id="m", **STATIC),
    ),
    "commit before the assignment": (join(), again(), commit(generation=1, member_id="$a")),
    "commit while a rebalance is prepared": (
        *ALONE,
        join("b"),
        again("b", waits=True),
        heartbeat(until="rebalance_in_progress"),
        commit(generation=1, member_id="$a"),
        commit(generation=1, member_id="$b"),
        again("a"),
    ),
    "commit of a partition that there is not": (commit(partition=2), commit(topic="absent"), commit(partition=-1)),
    "commit by topic id": (
        commit(10, topic="$topic"),
        commit(10, topic="$nobody"),
        commit(10, topic="$topic", partition=7),
        fetch(),
    ),
    "commit of odd offsets": (commit(offset=-1), commit(offset=-2), fetch()),
    "commit of nothing": (
        Step("OffsetCommit", 9, {"group_id": "$group", "generation_id_or_member_epoch": -1, "topics": []}),
        describe(),
    ),
    "commit of nothing that there is by a stranger": (
        *ALONE,
        commit(topic="absent", generation=1, member_id="m"),
        commit(partition=9, generation=7, member_id="$a"),
        commit(10, topic="$nobody", generation=1, member_id="m"),
    ),
    "commit of a partition twice": (
        Step(
            "OffsetCommit",
            9,
            {
                "group_id": "$group",
                "generation_id_or_member_epoch": -1,
                "topics": [{"name": "t", "partitions": [{"committed_offset": 5}, {"committed_offset": 6}]}],
            },
        ),
        fetch(),
    ),
    "commit of text": (commit(metadata="what is known"), commit(partition=1, metadata=None), fetch()),
    "commit of too long a text": (commit(metadata="x" * 4097), commit(metadata="x" * 4096)),
    "commit to the group without a name": (
        commit(group_id=""),
        commit(group_id="", generation=1, member_id="m"),
        commit(2, group_id=""),
        fetch(group_id=""),
        fetch([asked("t", 0)], 1, group_id=""),
        forget("t", 0, group=""),
        delete(""),
    ),
    # --- JoinGroup
    "join with too short or too long a session": (
        join(session_timeout=5_999),
        join(session_timeout=1_800_001),
        join(session_timeout=0),
        describe(),
    ),
    "join without a protocol": (join(protocols=[]), join(protocol_type=""), join(version=3, protocols=[])),
    "join of an unknown member": (join(member_id="m"), describe(), *ALONE, join("b", member_id="m")),
    "join of an unknown static member": (
        join(member_id="m", **STATIC),
        describe(),
        *ALONE,
        join("b", member_id="m", **STATIC),
    ),
    "join that gets a member id first": (join(), describe(), describe(version=5), listed(), delete()),
    "join of an old client": (join(version=3), again(version=0), describe()),
    "join with another type of protocol": (*ALONE, join("b", **CONNECT), join("b", protocol_type="consumer2")),
    "join with no common protocol": (
        *ALONE,
        join("b", protocols=[{"name": "roundrobin", "metadata": ""}]),
        join("b", protocols=[]),
        join("b", member_id="m", protocols=[{"name": "roundrobin", "metadata": ""}]),
    ),
    "join again with other protocols": (
        *ALONE,
        again("a", protocols=[{"name": "roundrobin", "metadata": ""}]),
        again("a", protocols=[{"name": "roundrobin", "metadata": ""}, {"name": "range", "metadata": ""}]),
    ),
    "static member starts again with other protocols": (
        *STATIC_ALONE,
        join("b", protocols=[{"name": "roundrobin", "metadata": ""}], **STATIC),
    ),
    "join of another type in an empty group": (*EMPTY, join("b", **CONNECT), again("b", **CONNECT), describe()),
    "join in the group without a name": (join(group_id=""), join(group_id="", member_id="m"), join(0, group_id="")),
    "join of another member before the assignment": (
        join(),
        again(),
        sync("a", 1, member_id="m"),
        join("b", version=3, waits=True),
        heartbeat(until="rebalance_in_progress"),
        describe(),
        sync("a", 1, "a"),
        again(),
        describe(),
        sync("b", 2, waits=True),
        sync("a", 2, "a", "b"),
    ),
    "join of another member after the assignment": (
        *ALONE,
        join("b", version=3, waits=True),
        heartbeat(until="rebalance_in_progress"),
        describe(),
        again(),
        describe(),
        forget("t", 0),
        forget("u", 0),
        heartbeat("a", 2),
        commit(generation=1, member_id="$a"),
        commit(generation=2, member_id="$a"),
    ),
    "join again by the leader": (*ALONE, again("a"), sync("a", 2, "a")),
    "join again before the assignment": (join(), again(), again(), sync("a", 1, "a")),
    "join again by a follower that wants the same": (*PAIR, again("b"), sync("b", 2), heartbeat("a", 2)),
    "join again by a follower that wants other topics": (
        *PAIR,
        again("b", topics=("t", "u"), waits=True),
        heartbeat("a", 2, until="rebalance_in_progress"),
        again("a"),
        sync("b", 3, waits=True),
        sync("a", 3, "a", "b"),
    ),
    "join of a second member": PAIR,
    "join of an old client as second member": (
        *ALONE,
        join("b", version=3, waits=True),
        heartbeat(until="rebalance_in_progress"),
        again("a", version=4),
        sync("b", 2, waits=True),
        sync("a", 2, "a", "b"),
        describe(version=4),
    ),
    "join with a rebalance timeout of zero": (join(rebalance_timeout=0), again(rebalance_timeout=0)),
    # --- static members
    "static member starts again": (
        *STATIC_ALONE,
        join("b", **STATIC),
        heartbeat("a", 1, **STATIC),
        commit(generation=1, member_id="$a", **STATIC),
        sync("a", 1, "a", **STATIC),
        again("a", **STATIC),
        heartbeat("a", 1),
        heartbeat("b", 1, **STATIC),
        heartbeat("b", 1),
        sync("b", 1, **STATIC),
        commit(generation=1, member_id="$b", **STATIC),
        leave(of("$a", "i")),
        leave(of("$b", "i")),
    ),
    "static leader of an old client starts again": (
        *STATIC_ALONE,
        join("b", version=8, **STATIC),
        sync("b", 1, **STATIC),
    ),
    "static member starts again before the assignment": (
        join(**STATIC),
        join("b", **STATIC),
        heartbeat("a", 1, **STATIC),
        sync("b", 2, "b", **STATIC),
    ),
    "static member starts again while it joins": (
        *ALONE,
        join("b", waits=True, **STATIC),
        heartbeat(until="rebalance_in_progress"),
        join("c", waits=True, **STATIC),
        heartbeat("b", 1, member_id="m"),
        again("a"),
    ),
    "static member starts again while it syncs": (
        *ALONE,
        join("b", waits=True, **STATIC),
        heartbeat(until="rebalance_in_progress"),
        again("a"),
        sync("b", 2, waits=True, **STATIC),
        join("c", waits=True, **STATIC),
        heartbeat("b", 2, **STATIC),
        again("a"),
    ),
    "static member starts again with other topics": (
        *STATIC_ALONE,
        join("b", topics=("u",), **STATIC),
        sync("b", 2, "b", **STATIC),
    ),
    "static member that names no instance": (
        *STATIC_ALONE,
        heartbeat("a", 1),
        sync("a", 1),
        again("a"),
        leave(of("$a")),
    ),
    "static member of another name": (
        *STATIC_ALONE,
        heartbeat("a", 1, group_instance_id="other"),
        sync("a", 1, group_instance_id="other"),
        again("a", group_instance_id="other"),
        leave(of("$a", "other")),
    ),
    "static member of no member id": (
        *STATIC_ALONE,
        heartbeat("a", 1, member_id="", **STATIC),
        sync("a", 1, member_id="", **STATIC),
        leave(of("", "i")),
        describe(),
    ),
    "static member of another generation": (*STATIC_ALONE, heartbeat("a", 2, **STATIC), sync("a", 2, **STATIC)),
    "static member leaves by its instance": (*STATIC_ALONE, leave(of("", "i")), leave(of("", "i")), describe()),
    "static instance without a name": (join(group_instance_id=""),),
    # --- SyncGroup, Heartbeat
    "heartbeat in an absent group": (heartbeat(member_id="m"), heartbeat(member_id="", generation=-1), describe()),
    "heartbeat in an empty group": (*EMPTY, heartbeat("a", 1), heartbeat("a", 2)),
    "heartbeat in a group that was only committed for": (*COMMITTED, heartbeat(member_id="m", generation=0)),
    "heartbeat of another member or generation": (
        *ALONE,
        heartbeat("a", 2),
        heartbeat("a", 0),
        heartbeat("a", -1),
        heartbeat(member_id="m"),
        heartbeat(member_id=""),
        heartbeat("a", 1),
    ),
    "heartbeat before the assignment": (join(), again(), heartbeat(), sync("a", 1, "a"), heartbeat()),
    "heartbeat of a member that has only its id": (join(), heartbeat("a", 0), heartbeat("a", -1), heartbeat("a", 1)),
    "heartbeat in the group without a name": (heartbeat(group_id="", member_id="m"),),
    "sync in an absent group": (sync(member_id="m"), describe()),
    "sync in an empty group": (*EMPTY, sync("a", 1), sync("a", 2, "a")),
    "sync of another member or generation": (
        *ALONE,
        sync("a", 2, "a"),
        sync("a", 0),
        sync("a", 1, member_id="m"),
        sync("a", 1, member_id=""),
        sync("a", 1),
    ),
    "sync with another protocol": (
        join(),
        again(),
        sync("a", 1, "a", protocol_name="roundrobin"),
        sync("a", 1, "a", protocol_type="connect"),
        sync("a", 1, "a", protocol_name=None),
        sync("a", 1, "a", protocol_type=None),
        sync("a", 1, protocol_name=None, protocol_type=None),
        sync("a", 1, version=4),
        sync("a", 2, protocol_name="roundrobin"),
    ),
    "sync that leaves a member out or names a stranger": (
        join(),
        again(),
        sync("a", 1, "a", assignments=[{"member_id": "m", "assignment": "share"}]),
        describe(),
    ),
    "sync while a rebalance is prepared": (
        *ALONE,
        join("b"),
        again("b", waits=True),
        heartbeat(until="rebalance_in_progress"),
        sync("a", 1, "a"),
        again("a"),
    ),
    "sync that waits while the leader leaves": (
        *PAIR,
        again("b", topics=("u",), waits=True),
        heartbeat("a", 2, until="rebalance_in_progress"),
        again("a"),
        sync("b", 3, waits=True),
        leave(of("$a")),
        again("b", topics=("u",)),
    ),
    "sync in the group without a name": (sync(group_id="", member_id="m"),),
    # --- LeaveGroup
    "leave an absent group": (
        leave(of("m")),
        leave(of("m"), of("n", "i"), of("", "j")),
        leave(),
        leave_old("m"),
        leave_old("m", 0),
        leave_old(""),
        describe(),
    ),
    "leave an empty group": (*EMPTY, leave(of("$a")), leave_old("$a"), leave()),
    "leave a group that was only committed for": (*COMMITTED, leave(of("m")), leave_old("m")),
    "leave by an unknown member": (*ALONE, leave(of("m"), of("", "i"), of("")), leave_old("m"), leave()),
    "leave twice": (*ALONE, leave(of("$a"), of("$a")), describe()),
    "leave of one of two": (
        *PAIR,
        leave(of("$b"), client="b"),
        heartbeat("b", 2),
        heartbeat("a", 2),
        again("a"),
        sync("a", 3, "a"),
    ),
    "leave of the leader": (*PAIR, leave(of("$a")), heartbeat("b", 2), again("b"), sync("b", 3, "b")),
    "leave by an old client": (*ALONE, leave_old("$a"), leave_old("$a"), describe()),
    "leave by a member that has only its id": (join(), leave(of("$a")), again(), describe()),
    "leave by an old client that has only its id": (join(), leave_old("$a"), describe()),
    "leave by a static member that names no id": (
        *STATIC_ALONE,
        leave_old("$a"),
        describe(),
    ),
    "leave the group without a name": (leave(of("m"), group=""), leave_old("m", group="")),
    # --- OffsetDelete
    "forget offsets of an absent group": (forget(), forget("absent")),
    "forget offsets": (
        commit(),
        commit(partition=1),
        forget("t", 0, 0),
        forget("t", 0),
        forget("t", 2),
        forget("t", -1),
        forget("u", 0),
        forget("absent", 0),
        fetch(),
    ),
    "forget offsets of the topic that is read": (
        *ALONE,
        commit(generation=1, member_id="$a"),
        forget("t", 0),
        forget("t", 1),
        forget("t", 2),
        forget("u", 0),
        forget("absent", 0),
        fetch(),
    ),
    "forget offsets before the assignment": (join(), again(), forget("t", 0), forget("u", 0)),
    "forget offsets of a group of another protocol": (
        join(**CONNECT),
        again(**CONNECT),
        sync("a", 1, "a", protocol_type="connect"),
        commit(generation=1, member_id="$a"),
        forget("t", 0),
        forget("t", 5),
        forget("absent", 0),
        fetch(),
    ),
    "forget offsets of an empty group of another protocol": (
        join(**CONNECT),
        again(**CONNECT),
        sync("a", 1, "a", protocol_type="connect"),
        commit(generation=1, member_id="$a"),
        leave(of("$a")),
        forget("t", 0),
        fetch(),
    ),
    "forget no offsets": (*COMMITTED, Step("OffsetDelete", 0, {"group_id": "$group", "topics": []})),
    "forget offsets of a consumer that says no topics": (
        join(protocols=[{"name": "range", "metadata": "?"}]),
        again(protocols=[{"name": "range", "metadata": "?"}]),
        sync("a", 1, "a"),
        commit(generation=1, member_id="$a"),
        forget("t", 0),
    ),
    # --- DeleteGroups
    "delete an absent group": (delete(), delete("$group", "$group", version=0)),
    "delete a group with members": (*ALONE, delete(), heartbeat()),
    "delete an empty group": (*EMPTY, delete(), delete(), describe(), listed()),
    "delete a group twice at once": (*COMMITTED, delete("$group", "$group"), fetch()),
    "delete a group that has a member that has only its id": (join(), delete(), again()),
    "delete many groups": (*COMMITTED, delete("$group", "$group.2"), fetch()),
    "delete no group": (Step("DeleteGroups", 2, {"groups_names": []}),),
    # --- DescribeGroups, ListGroups
    "describe an absent group": tuple(describe(version=version) for version in (0, 4, 5, 6)),
    "describe the group without a name": (describe("", version=5), describe("", version=6)),
    "describe groups twice": (*COMMITTED, describe("$group", "$group"), describe("$group", "$group.2")),
    "describe no group": (Step("DescribeGroups", 6, {"groups": []}),),
    "describe a group of one": (*ALONE, describe(), describe(version=0), listed()),
    "describe a static member": (*STATIC_ALONE, describe(), describe(version=3)),
    "describe an empty group": (*EMPTY, describe(), listed(), listed(2)),
    "describe a deleted group": (*EMPTY, delete(), describe(version=5), describe(version=6)),
    "describe before the assignment": (join(), again(), describe(), listed()),
    "describe while a rebalance is prepared": (
        *ALONE,
        join("b"),
        again("b", waits=True),
        heartbeat(until="rebalance_in_progress"),
        describe(),
        listed(),
        again("a"),
    ),
    "describe a group of another protocol": (
        join(**CONNECT),
        again(**CONNECT),
        sync("a", 1, "a", protocol_type="connect"),
        describe(),
        listed(),
        leave(of("$a")),
        describe(),
        listed(),
    ),
    "describe with operations": (
        *COMMITTED,
        Step("DescribeGroups", 6, {"groups": ["$group", "$group.2"], "include_authorized_operations": True}),
    ),
    "list by states": (
        *ALONE,
        listed(states_filter=["Stable"]),
        listed(states_filter=["stable"]),
        listed(states_filter=["STABLE", "Empty"]),
        listed(states_filter=["Empty"]),
        listed(states_filter=["Dead"]),
        listed(states_filter=["nonsense"]),
        listed(states_filter=[""]),
        listed(states_filter=["Assigning", "Reconciling"]),
        listed(4, states_filter=["Stable"]),
        leave(of("$a")),
        listed(states_filter=["Empty"]),
    ),
    "list by types": (
        *ALONE,
        listed(types_filter=["classic"]),
        listed(types_filter=["Classic"]),
        listed(types_filter=["consumer"]),
        listed(types_filter=["share", "classic"]),
        listed(types_filter=["nonsense"]),
        listed(types_filter=["consumer", "nonsense"]),
        listed(types_filter=["classic", "nonsense"]),
        listed(types_filter=[""]),
        listed(types_filter=["classic"], states_filter=["Stable"]),
        listed(types_filter=["consumer"], states_filter=["Stable"]),
    ),
    "list a group that was only committed for": (*COMMITTED, listed(), listed(3), listed(0), describe()),
    # --- OffsetFetch
    "fetch offsets of an absent group": (
        fetch(),
        fetch([asked("t", 0)]),
        fetch([]),
        fetch(version=7),
        fetch([asked("t", 0), asked("absent", 0)], 7),
        fetch([asked("t", 0)], 1),
    ),
    "fetch offsets": (
        commit(),
        commit(topic="u", offset=0),
        fetch(),
        fetch([asked("t", 0, 1, 2, -1), asked("absent", 0), asked("u", 0)]),
        fetch([asked("t")]),
        fetch([]),
        fetch(require_stable=True),
        fetch(version=7, require_stable=True),
        fetch(version=5),
        fetch([asked("t", 0)], 1),
        fetch([asked("t", 0, 0)]),
        fetch([asked("t", 0), asked("t", 0)]),
        fetch([asked("t", 0), asked("t", 1)]),
    ),
    "fetch offsets by topic id": (
        commit(),
        fetch(version=10),
        fetch([{"topic_id": "$topic", "partition_indexes": [0, 1]}], 10),
        fetch([{"topic_id": "$nobody", "partition_indexes": [0]}], 10),
        fetch([{"topic_id": "$other", "partition_indexes": [0, 9]}], 10),
    ),
    "fetch offsets of many groups": (
        *COMMITTED,
        fetch_many(
            {"group_id": "$group", "topics": [asked("t", 0)]},
            {"group_id": "$group.2", "topics": [asked("t", 0)]},
            {"group_id": "$group.3", "topics": None},
        ),
    ),
    "fetch offsets of one group twice": (
        *COMMITTED,
        fetch_many(
            {"group_id": "$group", "topics": [asked("t", 0)]}, {"group_id": "$group", "topics": [asked("t", 0)]}
        ),
        fetch_many({"group_id": "$group", "topics": None}, {"group_id": "$group", "topics": [asked("t", 1)]}),
    ),
    "fetch offsets of no group": (fetch_many(),),
    "fetch offsets as a member": (
        *ALONE,
        fetch(member_id="$a", member_epoch=1),
        fetch(member_id="$a", member_epoch=7),
        fetch(member_id="m", member_epoch=1),
        fetch(member_id="m", member_epoch=-1),
    ),
}

CHOSEN: dict[str, str] = {
    "commit of odd offsets": "a negative offset cannot be told from none when it is fetched",
    "commit to the group without a name": "no node can have an empty name",
    "describe the group without a name": "no node can have an empty name",
    "static member starts again with other topics": "else nobody reads the new topics until another member comes",
    "static member starts again while it joins": "clients take no member id from an error",
    "describe groups twice": "a small request must not make a huge answer",
    "fetch offsets of one group twice": "a small request must not make a huge answer",
    "describe with operations": "groups have no settings that one might be allowed to see or alter",
}
"""Cases that raylog answers in another way on purpose, and why; docs/compatibility.md tells users."""
