"""A leader whose follower is the test, over a socket: what each fetch tells, and who waits for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kit.node import BROKER, LISTENER, Node
from kit.partitions import NOW, batch
from kit.waiting import wait_until
from kit.wire import WireClient, fetch_request, produce_request
from raylog.broker.replicas.leader_connection import FETCH_VERSION, PeerConnection
from raylog.coordination.metadata.model import BrokerInfo, Endpoint, TopicState
from raylog.protocol.errors import ErrorCode, NetworkException
from raylog.protocol.ids import BrokerEpoch, BrokerId, LeaderEpoch, MonotonicMs, Offset, TimestampMs
from raylog.protocol.records import Record, decode_batches, encode_batch
from raylog.protocol.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from raylog.protocol.wire.produce import ProducedPartition, parse_produce_response

FOLLOWER = 2
EPOCH = 7
"""The follower's incarnation."""

WAIT_S = 10.0
LONG_MS = 10_000
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class Leader:
    """A node that leads ``t-0`` with this test as its follower."""

    def __init__(self, root: Path) -> None:
        self.node = Node(root, config={"min.insync.replicas": "2"})
        self.address = self.node.serve()
        endpoint = Endpoint(LISTENER, "127.0.0.1", 1)
        self.node.others.append(BrokerInfo(BrokerId(FOLLOWER), BrokerEpoch(EPOCH), (endpoint,), rack="rack-2"))
        self.topic: TopicState = self.node.create_topic("t", replicas=(BROKER, FOLLOWER))
        self.peers: list[PeerConnection] = []

    def peer(self) -> PeerConnection:
        """A new connection of the follower."""
        peer = PeerConnection("follower", timeout_ms=15_000, max_answer_bytes=1 << 20)
        peer.connect(*self.address)
        self.peers.append(peer)
        return peer

    def request(
        self, offset: int, *, wait_ms: int = 0, epoch: int = EPOCH, fetched_epoch: int = -1, **session: int
    ) -> FetchRequest:
        part = FetchPartition(0, offset, 1 << 20, 0, fetched_epoch, 0)
        topics = [FetchTopic("", self.topic.id, [part])]
        return FetchRequest(wait_ms, 1, topics, replica_id=FOLLOWER, replica_epoch=epoch, **session)

    def fetch(self, peer: PeerConnection, offset: int, **more: int) -> FetchedPartition[memoryview]:
        return only(peer.fetch(self.request(offset, **more)))

    @property
    def high_watermark(self) -> int:
        return self.node.partition("t").high_watermark


def only(response: FetchResponse[memoryview]) -> FetchedPartition[memoryview]:
    assert response.error_code == 0
    [topic] = response.topics
    [found] = topic.partitions
    return found


def values(found: FetchedPartition[memoryview]) -> list[bytes | None]:
    return [record.value for record in decode_batches(found.records or b"")]


def receive(client: WireClient) -> ProducedPartition:
    _, response = parse_produce_response(9, client.receive())
    return response.topics[0].partitions[0]


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    made = Leader(tmp_path)
    with made.node:
        yield made
        for peer in made.peers:
            peer.close()


@pytest.fixture
def client(leader: Leader) -> Iterator[WireClient]:
    with WireClient(leader.address) as connected:
        yield connected


def send(client: WireClient, *sent: bytes, acks: int = -1, timeout_ms: int = LONG_MS) -> None:
    """One request per value, all at once."""
    client.send(b"".join(produce_request("t", batch(value), acks=acks, timeout_ms=timeout_ms) for value in sent))


def test_acks_all_waits_for_the_follower_and_acks_1_does_not(leader: Leader, client: WireClient) -> None:
    peer = leader.peer()
    assert client.produce("t", batch(b"one"), acks=1).topics[0].partitions[0].error_code == 0
    assert leader.high_watermark == 0
    send(client, b"all")
    found = leader.fetch(peer, 0, wait_ms=LONG_MS)
    wait_until(lambda: leader.node.partition("t").log_end_offset == 2, WAIT_S, "both are appended")
    assert values(found)[0] == b"one"
    wait_until(lambda: leader.node.produces.waiting == 1, WAIT_S, "the one with acks=all waits")
    leader.fetch(peer, 2)
    assert receive(client)[:3] == (0, 0, 1)
    assert leader.high_watermark == 2
    assert leader.node.produces.waiting == 0


def test_what_follows_a_waiting_produce_is_taken_in_and_answered_in_order(leader: Leader, client: WireClient) -> None:
    requests = [produce_request("t", batch(b"%d" % n), acks=-1, timeout_ms=LONG_MS) for n in range(3)]
    client.send(b"".join([*requests, produce_request("t", batch(b"3"), acks=1)]))
    wait_until(lambda: leader.node.partition("t").log_end_offset == 4, WAIT_S, "all four are appended")
    peer = leader.peer()
    leader.fetch(peer, 2)
    assert [receive(client).base_offset for _ in range(2)] == [0, 1]
    leader.fetch(peer, 3)
    assert [receive(client).base_offset for _ in range(2)] == [2, 3]


def test_other_requests_wait_their_turn_behind_it(leader: Leader, client: WireClient) -> None:
    send(client, b"0")
    client.send(fetch_request(4, FetchRequest(0, 0, [FetchTopic("t", leader.topic.id, [FetchPartition(0, 0, 100)])])))
    wait_until(lambda: leader.node.produces.waiting == 1, WAIT_S, "the produce waits")
    leader.fetch(leader.peer(), 1)
    assert receive(client).base_offset == 0
    assert len(client.receive()) > 80, "the fetch sees what the produce has committed"


def test_too_few_in_sync_is_refused_before_anything_is_appended(leader: Leader, client: WireClient) -> None:
    leader.node.create_topic("t", replicas=(BROKER, FOLLOWER), isr=(BROKER,))
    send(client, b"refused")
    assert receive(client).error_code == ErrorCode.not_enough_replicas
    assert leader.node.partition("t").log_end_offset == 0
    assert client.produce("t", batch(b"one"), acks=1).topics[0].partitions[0].error_code == 0


def test_an_isr_that_shrinks_while_it_is_waited_for_is_told(leader: Leader, client: WireClient) -> None:
    send(client, b"waits")
    wait_until(lambda: leader.node.produces.waiting == 1, WAIT_S, "the produce waits")
    leader.node.create_topic("t", replicas=(BROKER, FOLLOWER), isr=(BROKER,))
    assert receive(client).error_code == ErrorCode.not_enough_replicas_after_append
    assert leader.high_watermark == 0, "below min.insync.replicas nothing is committed"


def test_a_leadership_that_ends_while_it_is_waited_for_is_told(leader: Leader, client: WireClient) -> None:
    send(client, b"waits")
    wait_until(lambda: leader.node.produces.waiting == 1, WAIT_S, "the produce waits")
    leader.node.create_topic("t", replicas=(BROKER, FOLLOWER), leader=FOLLOWER, leader_epoch=1)
    assert receive(client).error_code == ErrorCode.not_leader_or_follower


def test_a_later_epoch_of_the_same_leader_acknowledges_nothing_of_the_one_before(
    leader: Leader, client: WireClient
) -> None:
    send(client, b"waits")
    wait_until(lambda: leader.node.produces.waiting == 1, WAIT_S, "the produce waits")
    leader.node.create_topic("t", replicas=(BROKER, FOLLOWER), leader_epoch=1)
    assert receive(client).error_code == ErrorCode.not_leader_or_follower


def test_nothing_is_acknowledged_once_the_lease_has_lapsed(leader: Leader, client: WireClient) -> None:
    send(client, b"waits")
    wait_until(lambda: leader.node.produces.waiting == 1, WAIT_S, "the produce waits")
    leader.node.lease_held = False
    partition = leader.node.partition("t")
    partition.role.replica_fetched(
        BrokerId(FOLLOWER), BrokerEpoch(EPOCH), Offset(1), Offset(0), MonotonicMs(0), leader_epoch=LeaderEpoch(0)
    )
    assert leader.high_watermark == 1
    assert receive(client).error_code == ErrorCode.not_leader_or_follower


def test_a_follower_that_does_not_come_in_time(leader: Leader, client: WireClient) -> None:
    send(client, b"waits", timeout_ms=50)
    assert receive(client).error_code == ErrorCode.request_timed_out
    assert leader.node.produces.waiting == 0


def test_a_client_that_leaves_is_waited_for_no_longer(leader: Leader) -> None:
    with WireClient(leader.address) as leaving:
        send(leaving, b"waits", timeout_ms=60_000)
        wait_until(lambda: leader.node.produces.waiting == 1, WAIT_S, "the produce waits")
    wait_until(lambda: leader.node.produces.waiting == 0, WAIT_S, "nobody waits")


def test_a_follower_reads_beyond_the_high_watermark_and_is_woken_by_appends(leader: Leader, client: WireClient) -> None:
    peer = leader.peer()
    begun = peer.fetch(leader.request(0, session_epoch=0))
    assert begun.session_id > 0
    send(client, b"a", acks=1)
    session = {"session_id": begun.session_id, "session_epoch": 1}
    found = leader.fetch(peer, 0, wait_ms=LONG_MS, **session)
    assert (values(found), found.high_watermark) == ([b"a"], 0)


def test_a_fetch_that_comes_twice_changes_nothing(leader: Leader, client: WireClient) -> None:
    send(client, b"a", b"b", acks=1)
    peer, again = leader.peer(), leader.peer()
    wait_until(lambda: leader.node.partition("t").log_end_offset == 2, WAIT_S, "both are appended")
    leader.fetch(peer, 2)
    assert leader.high_watermark == 2
    assert values(leader.fetch(again, 1)) == [b"b"]
    assert leader.high_watermark == 2


def test_an_earlier_life_of_the_follower_is_refused_and_counts_for_nothing(leader: Leader, client: WireClient) -> None:
    send(client, b"a", acks=1)
    wait_until(lambda: leader.node.partition("t").log_end_offset == 1, WAIT_S, "it is appended")
    found = leader.fetch(leader.peer(), 1, epoch=EPOCH - 1)
    assert found.error_code == ErrorCode.stale_broker_epoch
    assert leader.high_watermark == 0


def test_a_broker_without_a_replica_is_refused(leader: Leader) -> None:
    request = leader.request(0)._replace(replica_id=9)
    assert only(leader.peer().fetch(request)).error_code == ErrorCode.not_leader_or_follower


def test_a_follower_that_diverged_is_told_where_and_gets_nothing(leader: Leader, client: WireClient) -> None:
    """Epoch 0 ends at 1 here; the follower has two records of it."""
    send(client, b"a", acks=1)
    assert receive(client).error_code == 0
    leader.node.create_topic("t", replicas=(BROKER, FOLLOWER), leader_epoch=2)
    send(client, b"b", acks=1)
    assert receive(client).base_offset == 1
    part = FetchPartition(0, 2, 1 << 20, 2, 0, 0)
    request = leader.request(0)._replace(topics=[FetchTopic("", leader.topic.id, [part])])
    found = only(leader.peer().fetch(request))
    assert (found.error_code, found.diverging_epoch, values(found)) == (0, (0, 1), [])
    assert leader.high_watermark == 0, "what differs does not count"


def test_a_follower_below_the_logs_start_is_told_where_it_begins(leader: Leader, client: WireClient) -> None:
    peer = leader.peer()
    send(client, b"a", b"b", acks=1)
    wait_until(lambda: leader.node.partition("t").log_end_offset == 2, WAIT_S, "both are appended")
    leader.fetch(peer, 2)
    leader.node.partition("t").delete_records(1)
    found = leader.fetch(peer, 0)
    assert (found.error_code, found.log_start_offset) == (ErrorCode.offset_out_of_range, 1)


def test_a_follower_that_stops_reading_holds_up_nobody(leader: Leader, client: WireClient) -> None:
    send(client, bytes(900_000), acks=1)
    assert receive(client).error_code == 0
    with socket.create_connection(leader.address) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(20):
            stuck.sendall(fetch_request(FETCH_VERSION, leader.request(0)))
        send(client, b"goes on", acks=1)
        assert receive(client).error_code == 0
        assert values(leader.fetch(leader.peer(), 1)) == [b"goes on"]


def test_a_throttled_follower_is_fed_slowly_until_it_is_in_sync(tmp_path: Path) -> None:
    with Node(tmp_path, config={"leader.replication.throttled.rate": "1"}) as node:
        node.others.append(BrokerInfo(BrokerId(FOLLOWER), BrokerEpoch(EPOCH), ()))
        config = {"leader.replication.throttled.replicas": f"0:{BROKER}"}
        topic = node.create_topic("t", replicas=(BROKER, FOLLOWER), isr=(BROKER,), config=config)
        address = node.serve()

        def fetch(offset: int) -> list[bytes | None]:
            part = FetchPartition(0, offset, 1 << 20, 0, -1, 0)
            request = FetchRequest(0, 1, [FetchTopic("", topic.id, [part])], replica_id=FOLLOWER, replica_epoch=EPOCH)
            with WireClient(address) as client:
                return values(only(client.fetch(FETCH_VERSION, request)))

        with WireClient(address) as client:
            for value in (b"a", b"b"):
                assert client.produce("t", batch(value)).topics[0].partitions[0].error_code == 0
        assert fetch(0) == [b"a", b"b"], "nobody knows how much comes before it has come"
        assert fetch(0) == [], "a byte a second: it has to wait for minutes now"
        node.create_topic("t", replicas=(BROKER, FOLLOWER), config=config)
        assert fetch(0) == [b"a", b"b"], "who is in sync is held back by nobody"


def test_a_leader_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        peer = PeerConnection("follower", timeout_ms=100, max_answer_bytes=1 << 20)
        peer.connect(*silent.getsockname())
        with pytest.raises(NetworkException, match="no answer"):
            peer.fetch(FetchRequest(0, 1, ()))
        assert not peer.is_connected


def test_consumer_is_sent_to_the_near_replica_that_has_its_offset(tmp_path: Path) -> None:
    """Elsewhere it would be told OFFSET_OUT_OF_RANGE, come back, and be sent there again."""
    with Node(tmp_path, config={"replica.selector.class": SELECTOR}) as node:
        for broker in (FOLLOWER, FOLLOWER + 1):
            node.others.append(BrokerInfo(BrokerId(broker), BrokerEpoch(EPOCH), (), rack="rack-2"))
        topic = node.create_topic("t", replicas=(BROKER, FOLLOWER, FOLLOWER + 1))
        address = node.serve()
        for value in (b"a", b"b", b"c"):
            node.partition("t").append(memoryview(bytearray(batch(value))), now_ms=NOW)

        def preferred(rack: str, offset: int = 0) -> Sequence[int]:
            part = FetchTopic("t", topic.id, [FetchPartition(0, offset, 100)])
            with WireClient(address) as client:
                found = only(client.fetch(11, FetchRequest(0, 0, [part], rack_id=rack)))
            return found.error_code, found.preferred_read_replica

        def has(follower: int, start: int, end: int) -> None:
            node.partition("t").role.replica_fetched(
                BrokerId(follower), BrokerEpoch(EPOCH), Offset(end), Offset(start), MonotonicMs(0),
                leader_epoch=LeaderEpoch(0),
            )  # fmt: skip

        assert preferred("rack-2") == (0, -1), "nothing is known of what it has"
        has(FOLLOWER, 1, 2)
        assert [preferred("rack-2", offset) for offset in (0, 1, 2, 3)] == [
            (0, -1), (0, FOLLOWER), (0, FOLLOWER), (0, -1)
        ]  # fmt: skip
        has(FOLLOWER + 1, 0, 3)
        assert preferred("rack-2", 1) == (0, FOLLOWER + 1), "it has more"
        assert preferred("rack-1", 1) == (0, -1)
        assert preferred("elsewhere", 1) == (0, -1)
        assert preferred("", 1) == (0, -1)
        node.create_topic("t", replicas=(BROKER, FOLLOWER, FOLLOWER + 1), isr=(BROKER,))
        assert preferred("rack-2", 1) == (0, -1), "who is not in sync may lack what the consumer has read"


def test_a_follower_serves_consumers_in_its_rack_below_its_high_watermark(tmp_path: Path) -> None:
    with Node(tmp_path, config={"replica.selector.class": SELECTOR}) as node:
        topic = node.create_topic("t", replicas=(BROKER, FOLLOWER), leader=FOLLOWER, leader_epoch=3)
        address = node.serve()
        [partition] = node.table.followed().values()
        records = b"".join(
            encode_batch([Record(value)], base_offset=offset, leader_epoch=3)
            for offset, value in enumerate((b"a", b"b"))
        )
        answer = FetchedPartition(0, 0, 1, 1, 0, memoryview(bytearray(records)))
        partition.role.fetched(answer, LeaderEpoch(3), TimestampMs(0))

        def fetch(
            offset: int, *, rack: str = "rack-1", epoch: int = -1, replica: int = -1
        ) -> FetchedPartition[memoryview]:
            part = FetchTopic("t", topic.id, [FetchPartition(0, offset, 1 << 20, epoch)])
            with WireClient(address) as client:
                return only(client.fetch(11, FetchRequest(0, 1, [part], rack_id=rack, replica_id=replica)))

        assert (partition.log_end_offset, partition.high_watermark) == (2, 1)
        assert values(fetch(0)) == [b"a"]
        assert values(fetch(0, epoch=3)) == [b"a"]
        assert fetch(0, epoch=2).error_code == ErrorCode.fenced_leader_epoch
        assert fetch(0, epoch=4).error_code == ErrorCode.unknown_leader_epoch
        assert fetch(1).error_code == 0
        assert fetch(9).error_code == ErrorCode.offset_not_available, "the leader may have it"
        assert fetch(0, rack="").error_code == ErrorCode.not_leader_or_follower, "it was not sent here"
        assert values(fetch(0, rack="", replica=-2)) == [b"a"], "kafka-replica-verification compares replicas"
