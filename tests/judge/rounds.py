"""The life of a group over several rounds: members leave, restart, and come again, at every version that there is.

A leader goes only where at most one member is left, so that no hash table's order decides which of them leads.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from judge.bases import ask, committed, member, topic_id
from judge.steps import Ref, RefKind, Step, Tree
from raylog.broker.handlers import TABLE
from raylog.protocol.wire import consumer_protocol

__all__ = ["rounds_life"]

OFFSET_COMMIT, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE_GROUPS = 8, 11, 12, 13, 14, 15
GROUP = "l#"
CLIENTS = ("a", "b", "c", "d")
VERSIONS = {row.key: range(row.min_version, row.max_version + 1) for row in TABLE}
STATIC_FROM = {JOIN: 5, SYNC: 3, HEARTBEAT: 3, LEAVE: 3, OFFSET_COMMIT: 7}
"""The first versions that have an instance's id."""
ID_FIRST, SEVERAL_LEAVE = 4, 3
WAIT_MS = 30_000


def rounds_life(random: Random) -> Iterator[Step]:
    """Three or four rounds of dynamic and static members."""
    group = Rounds(random)
    for _ in range(random.choice([3, 4])):
        yield from group.leave()
        yield from group.join()
        yield from group.settle()
    yield committed(GROUP)._replace(client="z")


class Rounds:
    """What is known of the group without an answer: who is in it, the leader first."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._static = set(random.sample(CLIENTS, random.choice([0, 1, 1, 2])))
        self._present: list[str] = []
        self._gone: list[str] = []

    def leave(self) -> Iterator[Step]:
        """Some leave, alone or several at once, and say more afterwards; the others hear of it."""
        self._gone = []
        if not self._present:
            return
        leader, *others = self._present
        self._gone = self._random.sample(others, self._random.randint(0, len(others)))
        if len(others) - len(self._gone) <= 1 and self._random.random() < 0.5:
            self._gone.append(leader)
        self._random.shuffle(self._gone)
        self._present = [each for each in self._present if each not in self._gone]
        if len(self._gone) > 1 and self._random.random() < 0.5:
            yield self._ask(LEAVE, "z", SEVERAL_LEAVE, members=[self._identity(each) for each in self._gone])
        else:
            for client in self._gone:
                yield self._ask(LEAVE, client, members=[self._identity(client)], member_id=member(client))
        yield from (self._heartbeat(each) for each in self._some(self._gone))
        yield from (self._commit(each) for each in self._some(self._gone))
        yield from (self._heartbeat(each) for each in self._some(self._present))
        yield from (self._commit(each) for each in self._some(self._present))

    def join(self) -> Iterator[Step]:
        """Those that are in the group join again, some static ones as after a restart, and others with them."""
        absent = [each for each in CLIENTS if each not in self._present]
        least = 0 if self._present else 2
        comers = self._random.sample(absent, self._random.randint(min(least, len(absent)), len(absent)))
        versions = {client: self._version(JOIN, client) for client in (*self._present, *comers)}
        for client in comers:
            yield from self._comes(client, versions[client], alone=not self._present and client == comers[0])
        again = self._random.sample(self._present, len(self._present))
        for client in again:
            restarts = client in self._static and self._random.random() < 0.3
            yield self._join(client, versions[client], "" if restarts else member(client))
        if not self._present and len(comers) > 1:  # the first was alone in its generation
            yield self._join(comers[0], versions[comers[0]], member(comers[0]))
        self._present += comers

    def settle(self) -> Iterator[Step]:
        """The leader assigns, all learn their shares, and commit in this generation and in others."""
        if not self._present:
            return
        leader = self._present[0]
        shares = [{"member_id": member(each), "assignment": b"share of " + each.encode()} for each in self._present]
        for client in self._random.sample(self._present, len(self._present)):
            if self._random.random() < 0.1:
                continue
            assignments = shares if client == leader else []
            yield self._ask(
                SYNC, client, waits=True, generation_id=self._generation(client), member_id=member(client),
                group_instance_id=self._instance(client), protocol_type="consumer", protocol_name="range",
                assignments=assignments,
            )  # fmt: skip
        for client in self._some(CLIENTS):
            yield self._commit(client, self._random.choice([0, 0, -1, 1]))
        for client in self._some(CLIENTS):
            yield self._heartbeat(client, self._random.choice([0, 0, -1]))
        yield ask(DESCRIBE_GROUPS, self._random.choice(VERSIONS[DESCRIBE_GROUPS]), "z", groups=[GROUP])

    # --- requests

    def _comes(self, client: str, version: int, *, alone: bool) -> Iterator[Step]:
        """As a new process: a dynamic member of later versions is given an id first. One that is alone waits for
        nobody, however busy Kafka's timer is.
        """
        given_id = version >= ID_FIRST and client not in self._static
        yield self._join(client, version, "")._replace(waits=not (given_id or alone))
        if given_id:
            yield self._join(client, version, member(client))._replace(waits=not alone)

    def _join(self, client: str, version: int, member_id: Tree) -> Step:
        topics = self._random.choices([("t",), ("t", "u")], weights=[5, 1])[0]
        protocol = {"name": "range", "metadata": consumer_protocol.encode_subscription(topics)}
        return ask(
            JOIN, version, client, waits=True, group_id=GROUP, session_timeout=WAIT_MS, rebalance_timeout=WAIT_MS,
            member_id=member_id, group_instance_id=self._instance(client), protocol_type="consumer",
            protocols=[protocol],
        )  # fmt: skip

    def _heartbeat(self, client: str, plus: int = 0) -> Step:
        return self._ask(
            HEARTBEAT, client, generation_id=self._generation(client, plus), member_id=member(client),
            group_instance_id=self._instance(client),
        )  # fmt: skip

    def _commit(self, client: str, plus: int = 0) -> Step:
        part = {
            "partition_index": self._random.choice([0, 1]),
            "committed_offset": self._random.choice([1, 2, 3]),
            "committed_metadata": client,
        }
        return self._ask(
            OFFSET_COMMIT, client, generation_id_or_member_epoch=self._generation(client, plus),
            member_id=member(client), group_instance_id=self._instance(client),
            topics=[{"name": "t", "topic_id": topic_id("t"), "partitions": [part]}],
        )  # fmt: skip

    def _ask(self, api: int, client: str, first: int = 0, *, waits: bool = False, **values: Tree) -> Step:
        return ask(api, self._version(api, client, first), client, waits=waits, group_id=GROUP, **values)

    def _version(self, api: int, client: str, first: int = 0) -> int:
        """Any of those that have all that is to be said, and sometimes an older one."""
        if client in self._static and (api == JOIN or self._random.random() < 0.95):
            first = max(first, STATIC_FROM[api])
        return self._random.choice([each for each in VERSIONS[api] if each >= first])

    def _some(self, clients: list[str] | tuple[str, ...]) -> list[str]:
        return self._random.sample(clients, self._random.randint(0, min(2, len(clients))))

    def _identity(self, client: str) -> Tree:
        by_instance = client in self._static and self._random.random() < 0.5
        return {"member_id": "" if by_instance else member(client), "group_instance_id": self._instance(client)}

    def _instance(self, client: str) -> str | None:
        return f"i-{client}" if client in self._static else None

    def _generation(self, client: str, plus: int = 0) -> Ref:
        return Ref(RefKind.GENERATION, client, plus)
