"""Sequences under a seed: the life of a group, of a producer, of a fetch session, of a topic, of its settings.

Each is a list of steps that a generator chooses from what it knows of the steps before; what the broker answered it
does not know, so that the same seed asks the same of either broker. A step may be left out without harm: so the
shortest sequence that differs is found by leaving out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from judge import asked
from judge.bases import TIMEOUT_MS, TOPIC, ask, committed, config_of, ends, make, member, seen, topic_id
from judge.ends import what_is_left
from judge.rounds import rounds_life
from judge.steps import Batch, Ref, RefKind, Sequence, Step, Tree
from raylog.protocol.wire import consumer_protocol

__all__ = ["LIVES", "lives"]

STEPS = 24
NOWHERE = -1
PRODUCE, FETCH, METADATA, OFFSET_COMMIT, JOIN, HEARTBEAT, LEAVE, SYNC = 0, 1, 3, 8, 11, 12, 13, 14
DESCRIBE_GROUPS, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID, LEADER_EPOCH = 15, 19, 20, 21, 22, 23
DESCRIBE_CONFIGS, ALTER_CONFIGS, CREATE_PARTITIONS, DELETE_GROUPS, INCREMENTAL, OFFSET_DELETE = 32, 33, 37, 42, 44, 47
DESCRIBE_PRODUCERS, DESCRIBE_TOPIC_PARTITIONS, LIST_OFFSETS = 61, 75, 2
GROUP, NAME = "l#", "l#"
CLIENTS = ("a", "b", "c")


def lives(seed: int, count: int) -> Iterator[Sequence]:
    """``count`` sequences of each kind; of rounds, which are long, a third."""
    for name, life in LIVES.items():
        for number in range(count // 3 if life is rounds_life else count):
            random = Random(f"{name} {seed} {number}")
            yield Sequence(f"{name} {seed}.{number}", tuple(life(random)), is_life=True)


def _some(random: Random, actions: dict[Callable[[], list[Step]], int]) -> Iterator[Step]:
    """Steps of actions by their weights, about STEPS of them."""
    done = 0
    while done < STEPS:
        [action] = random.choices(list(actions), weights=list(actions.values()))
        steps = action()
        yield from steps
        done += len(steps)


def group_life(random: Random) -> Iterator[Step]:
    """Classic: dynamic and static members that join, sync, commit, leave and come again, with old generations."""
    static = {client: f"i-{client}" for client in CLIENTS if random.random() < 0.25}

    def who() -> str:
        return random.choice(CLIENTS)

    def id_of(client: str) -> Tree:
        return random.choices([member(client), "", "nobody", member(who())], weights=[16, 1, 1, 1])[0]

    def generation(client: str) -> Ref:
        return Ref(RefKind.GENERATION, client, random.choices([0, 1, -1], weights=[14, 1, 1])[0])

    def protocols() -> list[Tree]:
        names = random.choice([["range"], ["range"], ["range", "roundrobin"], ["roundrobin", "range"], ["sticky"]])
        topics = random.choice([("t",), ("t",), ("t", "u")])
        return [{"name": name, "metadata": consumer_protocol.encode_subscription(topics)} for name in names]

    def join() -> list[Step]:
        client = who()
        values: dict[str, Tree] = {
            "group_id": GROUP,
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "protocol_type": random.choices(["consumer", "connect"], weights=[20, 1])[0],
            "protocols": protocols(),
            "group_instance_id": static.get(client),
        }
        version = random.choice([3, 5, 9]) if client not in static else random.choice([5, 9])
        first = ask(JOIN, version, client, waits=True, **values, member_id=id_of(client))
        again = ask(JOIN, version, client, waits=True, **values, member_id=member(client))
        return [first] if random.random() < 0.2 else [first, again]

    def sync() -> list[Step]:
        client = who()
        shares = [{"member_id": member(each), "assignment": b"share of " + each.encode()} for each in CLIENTS]
        values: dict[str, Tree] = {
            "group_id": GROUP,
            "generation_id": generation(client),
            "member_id": id_of(client),
            "group_instance_id": static.get(client),
            "protocol_type": random.choices(["consumer", None, "connect"], weights=[10, 2, 1])[0],
            "protocol_name": random.choices(["range", None, "sticky"], weights=[10, 4, 1])[0],
            "assignments": random.choice([shares, shares[:1], []]),
        }
        return [ask(SYNC, 5, client, waits=True, **values)]

    def heartbeat() -> list[Step]:
        client = who()
        values = {"group_id": GROUP, "generation_id": generation(client), "member_id": id_of(client)}
        return [ask(HEARTBEAT, 4, client, **values, group_instance_id=static.get(client))]

    def commit() -> list[Step]:
        client = who()
        outside = random.random() < 0.25
        part = {
            "partition_index": random.choice([0, 1, 1, 9]),
            "committed_offset": random.choice([0, 1, 2, 100]),
            "committed_metadata": random.choice(["", "m", None]),
        }
        values: dict[str, Tree] = {
            "group_id": GROUP,
            "generation_id_or_member_epoch": NOWHERE if outside else generation(client),
            "member_id": "" if outside else id_of(client),
            "group_instance_id": None if outside else static.get(client),
            "topics": [{"name": random.choice(["t", "u", "absent"]), "partitions": [part]}],
        }
        return [ask(OFFSET_COMMIT, 8, client, **values)]

    def leave() -> list[Step]:
        client = who()
        if random.random() < 0.3 and client not in static:
            return [ask(LEAVE, 2, client, group_id=GROUP, member_id=id_of(client))]
        named = {"member_id": random.choice([member(client), ""]), "group_instance_id": static.get(client)}
        return [ask(LEAVE, 5, client, group_id=GROUP, members=[named])]

    def look() -> list[Step]:
        return [random.choice([ask(DESCRIBE_GROUPS, 5, groups=[GROUP]), committed(GROUP)])]

    def delete() -> list[Step]:
        part = [{"name": "t", "partitions": [{"partition_index": random.choice([0, 1])}]}]
        forget = ask(OFFSET_DELETE, 0, group_id=GROUP, topics=part)
        return [random.choice([ask(DELETE_GROUPS, 2, groups_names=[GROUP]), forget, forget])]

    yield from _some(random, {join: 6, sync: 6, heartbeat: 4, commit: 5, leave: 2, look: 3, delete: 1})
    yield ask(DESCRIBE_GROUPS, 5, "z", groups=[GROUP])
    yield committed(GROUP)._replace(client="z")


def producer_life(random: Random) -> Iterator[Step]:
    """Idempotent: sequences in order, again, with gaps, of other epochs; ids renewed; the log trimmed meanwhile."""
    yield make(NAME, 2)
    sequences = {(client, partition): 0 for client in CLIENTS for partition in (0, 1)}

    def init() -> list[Step]:
        client = random.choice(CLIENTS)
        for partition in (0, 1):
            sequences[client, partition] = 0
        return [ask(INIT_PRODUCER_ID, 4, client, transactional_id=None, transaction_timeout=60_000, producer_id=-1,
                    producer_epoch=-1)]  # fmt: skip

    def produce() -> list[Step]:
        client, partition = random.choice(CLIENTS), random.choice([0, 0, 0, 1])
        next_ = sequences[client, partition]
        sequence = random.choices(
            [next_, max(0, next_ - 1), 0, next_ + 1, max(0, next_ - 7), 2**31 - 1], weights=[14, 3, 1, 1, 1, 1]
        )[0]
        count = random.choice([1, 1, 2, 3])
        if sequence == next_:
            sequences[client, partition] += count
        batch = Batch(
            random.choices([client, ""], weights=[10, 1])[0],
            sequence,
            count,
            random.choices([0, 1, -1], weights=[16, 1, 1])[0],
            random.random() < 0.03,
        )
        data = [{"name": NAME, "partition_data": [{"index": partition, "records": batch}]}]
        return [ask(PRODUCE, 9, client, acks=random.choice([-1, 1]), timeout=TIMEOUT_MS, topic_data=data)]

    def trim() -> list[Step]:
        parts = [{"partition_index": 0, "offset": random.choice([-1, 0, 1, 2, 3])}]
        return [ask(DELETE_RECORDS, 2, topics=[{"name": NAME, "partitions": parts}], timeout=TIMEOUT_MS)]

    def look() -> list[Step]:
        described = ask(DESCRIBE_PRODUCERS, 0, topics=[{"name": NAME, "partition_indexes": [0, 1]}])
        return [random.choice([described, ends(NAME), ends(NAME, -2), _fetch(NAME, 0), _fetch(NAME, 1)])]

    yield from init()
    yield from _some(random, {init: 1, produce: 12, trim: 1, look: 3})
    yield _fetch(NAME, 0)
    yield _fetch(NAME, 1)
    yield from what_is_left(NAME)


def _fetch(name: str, partition: int, offset: int = 0) -> Step:
    """All that is there, by offsets, as an old client does."""
    return ask(FETCH, 11, "z", **_no_session(), topics=[{"topic": name, "partitions": [_asked(partition, offset)]}])


def _no_session() -> dict[str, Tree]:
    return {
        "replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0, "session_id": 0,
        "session_epoch": -1, "rack_id": "",
    }  # fmt: skip


def _asked(partition: int, offset: int, epoch: int = -1) -> Tree:
    return {
        "partition": partition, "current_leader_epoch": epoch, "fetch_offset": offset, "last_fetched_epoch": -1,
        "log_start_offset": -1, "partition_max_bytes": 1 << 20,
    }  # fmt: skip


def session_life(random: Random) -> Iterator[Step]:
    """Fetch sessions (KIP-227): partitions added, moved on and forgotten, epochs in order and not, ends, evictions."""
    yield from _some(random, {_session(random, ("t", "u", "absent"), (0, 0, 1, 3, 4, 99)): 1})


def changes_life(random: Random) -> Iterator[Step]:
    """Fetch sessions, often at its end, over a topic that is written, trimmed, deleted and made anew meanwhile."""
    yield make(NAME, 2)

    def remake() -> list[Step]:
        return [_deleted(), make(NAME, random.choice([1, 2]))]

    fetch = _session(random, (NAME, "t"), (0, 1, 2, 2, 4, 4, 6))
    yield from _some(random, {fetch: 10, lambda: [_written(random)]: 4, lambda: [_trimmed(random)]: 3, remake: 1})


def _session(random: Random, names: tuple[str, ...], offsets: tuple[int, ...]) -> Callable[[], list[Step]]:
    epochs = dict.fromkeys(CLIENTS, 0)

    def fetch() -> list[Step]:
        client = random.choice(CLIENTS)
        version = random.choice([9, 11, 12, 12])
        epoch = random.choices(
            [epochs[client], 0, -1, epochs[client] + 1, max(1, epochs[client] - 1)], weights=[12, 2, 1, 1, 1]
        )[0]
        epochs[client] = 1 if epoch == 0 else 0 if epoch == -1 else epochs[client] + (epoch == epochs[client])
        topics = [
            {
                "topic": name,
                "partitions": [
                    _asked(partition, random.choice(offsets), random.choice([-1, -1, 0, 9]))
                    for partition in random.sample([0, 1], random.choice([1, 2]))
                ],
            }
            for name in random.sample(names, random.choice([0, 1, 1, 2]))
        ]
        forgotten = [
            {"topic": name, "partitions": [random.choice([0, 1, 9])]}
            for name in random.sample(names, random.choice([0, 0, 0, 1]))
        ]
        values = {
            **_no_session(),
            "session_id": random.choices([Ref(RefKind.SESSION_ID, client), 0, 12345], weights=[14, 2, 1])[0]
            if epoch
            else 0,
            "session_epoch": epoch,
            "topics": topics,
            "forgotten_topics_data": forgotten,
            "isolation_level": random.choice([0, 0, 1]),
        }
        return [ask(FETCH, version, client, **values)]

    return fetch


def _deleted() -> Step:
    return ask(DELETE_TOPICS, 5, settles=True, topic_names=[NAME], timeout=TIMEOUT_MS)


def _written(random: Random) -> Step:
    data = [{"name": NAME, "partition_data": [{"index": random.choice([0, 0, 1, 4]), "records": Batch("", 0, 2)}]}]
    return ask(PRODUCE, random.choice([7, 9]), acks=-1, timeout=TIMEOUT_MS, topic_data=data)


def _trimmed(random: Random) -> Step:
    parts = [{"partition_index": random.choice([0, 1]), "offset": random.choice([-1, 0, 1, 2, 9])}]
    return ask(DELETE_RECORDS, 2, topics=[{"name": NAME, "partitions": parts}], timeout=TIMEOUT_MS)


def topic_life(random: Random) -> Iterator[Step]:
    """Made, grown, configured, written, trimmed, deleted, made anew."""

    def create() -> list[Step]:
        more: dict[str, Tree] = random.choice(
            [
                {},
                {"configs": [{"name": "retention.ms", "value": "1000000"}]},
                {
                    "configs": [
                        {"name": "segment.bytes", "value": "1048576"},
                        {"name": "cleanup.policy", "value": "compact"},
                    ]
                },
                {"configs": [{"name": "nonsense", "value": "1"}]},
                {"num_partitions": -1, "replication_factor": -1},
                {"replication_factor": 2},
                {
                    "num_partitions": -1,
                    "replication_factor": -1,
                    "assignments": [{"partition_index": 0, "broker_ids": [random.choice([0, 7])]}],
                },
            ]
        )
        step = make(NAME, random.choice([1, 2, 3]), **more)
        step.tree["validate_only"] = random.random() < 0.1
        return [_tried(make("c#", **more)), make(NAME, 2)] if asked.is_not_built(step) else [step]

    def delete() -> list[Step]:
        if random.random() < 0.5:
            return [_deleted()]
        by_id = {"name": None, "topic_id": topic_id(NAME)}
        return [ask(DELETE_TOPICS, 6, settles=True, topics=[by_id], timeout=TIMEOUT_MS)]

    def grow() -> list[Step]:
        wanted = {"name": NAME, "count": random.choice([1, 2, 3, 4, 5]), "assignments": None}
        validate = random.random() < 0.2
        return [ask(CREATE_PARTITIONS, 3, settles=True, topics=[wanted], timeout=TIMEOUT_MS, validate_only=validate)]

    def write() -> list[Step]:
        return [_written(random)]

    def trim() -> list[Step]:
        return [_trimmed(random)]

    def look() -> list[Step]:
        epochs = [
            {"partition": 0, "current_leader_epoch": random.choice([-1, 0, 3]), "leader_epoch": random.choice([0, 1])}
        ]
        return [
            random.choice(
                [
                    seen(NAME),
                    ends(NAME),
                    ends(NAME, -2),
                    ends(NAME, -3),
                    _fetch(NAME, 0),
                    config_of(NAME, "retention.ms", "cleanup.policy"),
                    ask(LEADER_EPOCH, 4, replica_id=-1, topics=[{"topic": NAME, "partitions": epochs}]),
                    ask(METADATA, 12, topics=[{"name": None, "topic_id": topic_id(NAME)}]),
                    ask(DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": NAME}], response_partition_limit=2),
                ]
            )
        ]

    yield from create()
    yield from _some(
        random,
        {create: 3, delete: 2, grow: 2, write: 5, trim: 2, look: 8, lambda: [_settings(random)]: 2},
    )
    yield from what_is_left(NAME)


VALUES: dict[str, list[str | None]] = {
    "retention.ms": ["-1", "0", "60000", "-2", "x", "", None, "9223372036854775808", " 5 ", "1e3"],
    "retention.bytes": ["-1", "1000", "-7"],
    "cleanup.policy": ["delete", "compact", "compact,delete", "delete, compact", "nonsense", ""],
    "compression.type": ["producer", "zstd", "ZSTD", "brotli"],
    "min.insync.replicas": ["1", "2", "0", "1.5"],
    "segment.bytes": ["1048576", "14", "13", "2147483648"],
    "max.message.bytes": ["0", "1000", "-1"],
    "message.timestamp.type": ["CreateTime", "LogAppendTime", "logappendtime"],
    "unclean.leader.election.enable": ["true", "TRUE", "yes", "false"],
    "min.cleanable.dirty.ratio": ["0.5", "1.5", "-0.1", "nan"],
    "leader.replication.throttled.replicas": ["0:0", "*", "0:0,1:0", "x", ""],
    "nonsense": ["1"],
    "Retention.Ms": ["1"],
}


def _settings(random: Random) -> Step:
    """A change of a topic's settings, of either API."""
    names = random.sample(list(VALUES), random.choice([1, 1, 2]))
    incremental = random.random() < 0.75
    configs = [
        {
            "name": name,
            "value": random.choice(VALUES[name]),
            **(
                {"config_operation": random.choices([0, 1, 2, 3, 4], weights=[8, 2, 2, 2, 1])[0]} if incremental else {}
            ),
        }
        for name in names
    ]
    resource = {"resource_type": TOPIC, "resource_name": NAME, "configs": configs}
    validate = random.random() < 0.1
    api, version = (INCREMENTAL, 1) if incremental else (ALTER_CONFIGS, 2)
    step = ask(api, version, settles=True, resources=[resource], validate_only=validate)
    return _tried(step) if asked.is_not_built(step) or asked.small_segment_or_empty_item(step) else step


def _tried(step: Step) -> Step:
    """It changes nothing: one broker would do it, the other would not, and they had different topics from then on."""
    return step._replace(tree={**step.tree, "validate_only": True})


def settings_life(random: Random) -> Iterator[Step]:
    """Settings of a topic, set, appended to, taken from, taken away, by both APIs."""
    yield make(NAME)
    names = list(VALUES)

    def look() -> list[Step]:
        return [config_of(NAME, *random.sample(names, 3))]

    yield from _some(random, {lambda: [_settings(random)]: 3, look: 2})
    yield config_of(NAME, *names)


LIVES: dict[str, Callable[[Random], Iterator[Step]]] = {
    "group": group_life,
    "rounds": rounds_life,
    "producer": producer_life,
    "session": session_life,
    "changes": changes_life,
    "topic": topic_life,
    "settings": settings_life,
}
