"""Does a script to three brokers, and tells what came out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from judge.three.client import Again, Client, Cluster
from judge.three.script import (
    BROKERS,
    Act,
    Elect,
    Grow,
    Kill,
    Make,
    Reassign,
    Records,
    Renew,
    Start,
    Trim,
    Write,
    script,
)
from judge.told import Known, told
from raylog.protocol.ids import TimestampMs
from raylog.protocol.records import Codec, Record, encode_batch

__all__ = ["Outcome", "run"]

Outcome = dict[str, Any]
"""``acknowledged``: of each act that writes or trims the offsets that were answered; ``readable``: of each partition
where it begins and ends, and its batches; both as plain values."""
Partition = tuple[str, int]
FETCH, LIST_OFFSETS, CREATE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 1, 2, 19, 21, 22
CREATE_PARTITIONS, ELECT_LEADERS, REASSIGN, LIST_REASSIGNMENTS = 37, 43, 45, 46
EARLIEST, LATEST = -2, -1
TIMEOUT = timedelta(seconds=5)
NOW = 1_700_000_000_000
CONFIG = {"min.insync.replicas": "2", "retention.ms": "-1"}


def run(seed: int, cluster: Cluster) -> tuple[Outcome, dict[str, int]]:
    """What came out under this seed, and what was tried again on the way."""
    with Client(cluster) as client:
        running = _Run(seed, cluster, client)
        for number, act in enumerate(script(seed)):
            try:
                running.do(number, act)
            except Exception as error:
                error.add_note(f"in act {number} under seed {seed}: {act}")
                error.add_note(running.state())
                raise
        try:
            readable = running.read_everywhere()
        except Exception as error:
            error.add_note(f"when all is read under seed {seed}\n{running.state()}")
            raise
        return {"acknowledged": running.acknowledged, "readable": readable}, dict(client.met)


def _text(part: Any) -> str:
    return f"led by {part.leader_id} in epoch {part.leader_epoch}, replicas {part.replica_nodes}, ISR {part.isr_nodes}"


class _Run:
    def __init__(self, seed: int, cluster: Cluster, client: Client) -> None:
        self.acknowledged: dict[str, Any] = {}
        self._seed = seed
        self._cluster = cluster
        self._client = client
        self._down: int | None = None
        self._producers: dict[str, tuple[int, int]] = {}
        self._known = Known({})
        self._replicas: dict[Partition, tuple[int, ...]] = {}

    def do(self, number: int, act: Act) -> None:
        client = self._client
        match act:
            case Make(topic, assignments):
                client.until(f"{topic} is made", lambda: self._make(topic, assignments))
                self._replicas |= {(topic, partition): each for partition, each in enumerate(assignments)}
            case Grow(topic, count, replicas):
                client.until(f"{topic} grows", lambda: self._grow(topic, count, replicas))
                self._replicas[topic, count - 1] = replicas
            case Renew(producer):
                client.until("a producer id", lambda: self._renew(producer))
            case Write():
                self._write(number, act)
            case Elect(topic, partition):
                client.until("an election", lambda: self._elect([(topic, partition)]))
            case Reassign(topic, partition, replicas, waits):
                self._reassign({(topic, partition): replicas}, waits=waits)
            case Trim(topic, partition, offset):
                low = client.until("records are deleted", lambda: self._trim(topic, partition, offset))
                self.acknowledged[f"{number} trim {topic}-{partition}"] = low
            case Kill(topic, partition):
                self._wait_in_sync()
                self._kill(client.until("a leader", lambda: client.leader(self._name(topic), partition)))
            case Start():
                assert self._down is not None
                self._cluster.start(self._down)
                self._cluster.wait_serving(self._down)
                self._down = None

    def state(self) -> str:
        """What each broker tells of the partitions now, for people."""
        lines = [f"asked for {self._replicas}, down is {self._down}"]
        for broker_id in self._running():
            try:
                for (topic, partition), part in self._told_by(broker_id).items():
                    lines.append(f"broker {broker_id}: {topic}-{partition} {_text(part)}")
                moves = self._client.ask(broker_id, LIST_REASSIGNMENTS, 0, topics=None, timeout=TIMEOUT).topics
                lines.append(f"broker {broker_id}: reassigns {moves}")
            except Again as again:
                lines.append(f"broker {broker_id}: {again}")
        return "\n".join(lines)

    def _running(self) -> list[int]:
        return [broker_id for broker_id in BROKERS if broker_id != self._down]

    def _told_by(self, broker_id: int) -> dict[Partition, Any]:
        """Each partition of the script that this broker's metadata know."""
        topics = {topic for topic, _ in self._replicas}
        told_of = {topic: self._client.partitions(self._name(topic), broker_id) for topic in topics}
        return {(topic, n): told_of[topic][n] for topic, n in self._replicas if n in told_of[topic]}

    def _all_tell(self, wanted: Iterable[Partition], why: str, is_so: Callable[[Partition, Any], bool]) -> None:
        """Until it is so by the metadata of every broker that runs: one alone may tell what was."""
        for broker_id in self._running():
            parts = self._told_by(broker_id)
            for at in wanted:
                if at not in parts:
                    self._client.again(why, f"at broker {broker_id}: {at} is not there")
                if not is_so(at, parts[at]):
                    self._client.again(why, f"at broker {broker_id}: {at} {_text(parts[at])}")

    def _name(self, topic: str) -> str:
        return f"three-{self._seed}-{topic}"

    def _kill(self, broker_id: int) -> None:
        self._cluster.kill(broker_id)
        self._down = broker_id

    # --- topics

    def _make(self, topic: str, assignments: tuple[tuple[int, ...], ...]) -> None:
        wanted = {
            "name": self._name(topic),
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": n, "broker_ids": each} for n, each in enumerate(assignments)],
            "configs": [{"name": name, "value": value} for name, value in CONFIG.items()],
        }
        [made] = self._client.ask_controller(CREATE_TOPICS, 7, topics=[wanted], timeout=TIMEOUT).topics
        self._client.check(made.error_code, fine=[ErrorCode.topic_already_exists])

    def _grow(self, topic: str, count: int, replicas: tuple[int, ...]) -> None:
        wanted = {"name": self._name(topic), "count": count, "assignments": [{"broker_ids": replicas}]}
        [grown] = self._client.ask_controller(CREATE_PARTITIONS, 3, topics=[wanted], timeout=TIMEOUT).results
        if grown.error_code is ErrorCode.invalid_partitions:  # where it had been done, but that was not answered
            assert len(self._client.partitions(self._name(topic))) == count
            return
        self._client.check(grown.error_code)

    def _elect(self, partitions: list[Partition]) -> None:
        by_topic = [{"topic": self._name(topic), "partitions": [partition]} for topic, partition in partitions]
        answer = self._client.ask_controller(
            ELECT_LEADERS, 2, election_type=0, topic_partitions=by_topic, timeout=TIMEOUT
        )
        self._client.check(answer.error_code)
        fine = [ErrorCode.election_not_needed, *([ErrorCode.preferred_leader_not_available] * (self._down is not None))]
        for topic in answer.replica_election_results:
            for part in topic.partition_result:
                self._client.check(part.error_code, fine=fine)

    def _reassign(self, wanted: dict[Partition, tuple[int, ...]], *, waits: bool) -> None:
        """A replica that is being removed is gone first: Kafka removes it even if the next reassignment names it
        (it takes out nothing of ``removingReplicas`` where the new list removes nothing)."""
        self._client.until("replicas that were left out are removed", lambda: self._are_removed(wanted))
        self._client.until("a reassignment", lambda: self._ask_reassign(wanted))
        self._replicas |= wanted
        if waits:
            self._client.until("a reassignment is done", lambda: self._is_reassigned(wanted))

    def _are_removed(self, wanted: Iterable[Partition]) -> None:
        """While one is being removed, it stands behind those that were asked for."""
        self._all_tell(wanted, "more replicas", lambda at, part: set(part.replica_nodes) == set(self._replicas[at]))

    def _ask_reassign(self, wanted: dict[Partition, tuple[int, ...]]) -> None:
        topics = [
            {"name": self._name(topic), "partitions": [{"partition_index": partition, "replicas": replicas}]}
            for (topic, partition), replicas in wanted.items()
        ]
        answer = self._client.ask_controller(REASSIGN, 0, topics=topics, timeout=TIMEOUT)
        self._client.check(answer.error_code)
        for topic in answer.responses:
            for part in topic.partitions:
                self._client.check(part.error_code)

    def _is_reassigned(self, wanted: dict[Partition, tuple[int, ...]]) -> None:
        listed = self._client.ask_controller(LIST_REASSIGNMENTS, 0, topics=None, timeout=TIMEOUT)
        self._client.check(listed.error_code)
        if listed.topics:
            self._client.again("a reassignment goes on", listed.topics)
        self._all_tell(wanted, "other replicas", lambda at, part: part.replica_nodes == wanted[at])

    def _wait_in_sync(self) -> None:
        self._client.until("all replicas are in sync", self._are_in_sync)

    def _are_in_sync(self) -> None:
        def is_in_sync(at: Partition, part: Any) -> bool:
            wanted = set(self._replicas[at])
            return part.leader_id >= 0 and set(part.replica_nodes) == set(part.isr_nodes) == wanted

        self._all_tell(self._replicas, "not in sync", is_in_sync)

    # --- records

    def _renew(self, producer: str) -> None:
        given = self._client.ask_any(
            INIT_PRODUCER_ID, 4, transaction_timeout=TIMEOUT, producer_id=-1, producer_epoch=-1
        )
        self._client.check(given.error_code)
        self._known.learn(producer, given)
        self._producers[producer] = given.producer_id, given.producer_epoch

    def _write(self, number: int, act: Write) -> None:
        sent: Callable[[int], None] = lambda _: None  # noqa: E731
        if act.kills:
            self._wait_in_sync()
            sent = self._kill
        batches = [self._bytes(number, act.producer, batch) for batch in act.batches]
        name = self._name(act.topic)
        found = [self._client.produce(name, act.partition, batches, sent)]
        if act.again:
            found.append(self._client.produce(name, act.partition, batches))
        self.acknowledged[f"{number} {act.producer} {act.topic}-{act.partition}"] = found

    def _bytes(self, number: int, producer: str, batch: Records) -> bytes:
        producer_id, epoch = self._producers[producer]
        records = [
            Record(
                b"%d of act %d " % (n, number) * (1 + number % 7) if (n + number) % 5 else None,
                key=b"key %d" % n if (n + number) % 3 else None,
                headers=[("act", b"%d" % number)] if number % 4 == 0 else (),
                timestamp=TimestampMs(NOW + number * 1000 - n),
            )
            for n in range(batch.sequence, batch.sequence + batch.count)
        ]
        return encode_batch(
            records,
            codec=Codec.from_name(batch.codec),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=batch.sequence,
        )

    def _trim(self, topic: str, partition: int, offset: int) -> int:
        """A new leader learns a moment later how far the others are."""
        name = self._name(topic)
        wanted = [{"name": name, "partitions": [{"partition_index": partition, "offset": offset}]}]
        leader = self._client.leader(name, partition)
        [answer] = self._client.ask(leader, DELETE_RECORDS, 2, topics=wanted, timeout=TIMEOUT).topics
        [part] = answer.partitions
        self._client.check(part.error_code, passing=[ErrorCode.offset_out_of_range])
        low: int = part.low_watermark
        return low

    # --- what can be read

    def read_everywhere(self) -> dict[str, Any]:
        """Of each partition, and asserted to be the same at each of its replicas when it leads."""
        found: dict[str, Any] = {}
        for turn in range(len(BROKERS)):
            self._let_lead({at: replicas[turn:] + replicas[:turn] for at, replicas in self._replicas.items()})
            read = {f"{topic}-{partition}": self._read(topic, partition) for topic, partition in self._replicas}
            found = found or read
            for name, partition in read.items():
                assert partition == found[name], f"{name} is another at another replica: {partition} {found[name]}"
        return found

    def _let_lead(self, orders: dict[Partition, tuple[int, ...]]) -> None:
        before = dict(self._replicas)
        self._reassign(orders, waits=True)
        self._replicas = before  # the first order is where the turns begin
        self._wait_in_sync()
        self._client.until("an election", lambda: self._elect(list(orders)))
        self._client.until("leaders lead", lambda: self._lead({at: replicas[0] for at, replicas in orders.items()}))

    def _lead(self, leaders: dict[Partition, int]) -> None:
        for (topic, partition), leader in leaders.items():
            if self._client.leader(self._name(topic), partition) != leader:
                self._client.again("another leads")

    def _read(self, topic: str, partition: int) -> dict[str, Any]:
        at = self._name(topic), partition
        start, end = (
            self._client.until(f"offsets of {at}", lambda wanted=wanted: self._offset(*at, wanted))
            for wanted in (EARLIEST, LATEST)
        )
        return {"start": start, "end": end, "batches": list(self._batches(*at, start, end))}

    def _offset(self, topic: str, partition: int, timestamp: int) -> int:
        part = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": -1}
        leader = self._client.leader(topic, partition)
        asked = [{"name": topic, "partitions": [part]}]
        [answer] = self._client.ask(leader, LIST_OFFSETS, 7, replica_id=-1, topics=asked).topics
        self._client.check(answer.partitions[0].error_code)
        offset: int = answer.partitions[0].offset
        return offset

    def _batches(self, topic: str, partition: int, offset: int, end: int) -> Iterator[Any]:
        """All from there on, without the epoch of the leader that took a batch, which is the cluster's own."""
        while offset < end:
            records = self._client.until("records", lambda at=offset: self._fetch(topic, partition, at))
            for batch in told(records, 0, self._known, "records"):
                assert batch["crc"] == "right"
                offset = batch["base_offset"] + batch["last_offset_delta"] + 1
                yield {name: value for name, value in batch.items() if name not in ("leader_epoch", "crc")}

    def _fetch(self, topic: str, partition: int, offset: int) -> Any:
        part = {
            "partition": partition, "current_leader_epoch": -1, "fetch_offset": offset, "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }  # fmt: skip
        answer = self._client.ask(
            self._client.leader(topic, partition), FETCH, 11, replica_id=-1, max_bytes=1 << 20, session_epoch=-1,
            topics=[{"topic": topic, "partitions": [part]}],
        )  # fmt: skip
        [found] = answer.responses[0].partitions
        self._client.check(found.error_code)
        if not found.records:
            self._client.again("no records yet")
        return found.records
