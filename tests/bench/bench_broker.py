"""What the broker does with this machine, as ratios to the same machine's bare limits, taken in the same run.

``make bench``, or ``python tests/bench/bench_broker.py [--rounds N] [--megabytes N]``; the last line is one JSON
object. The broker, the bare servers and the load are three processes. For the small messages the load has a processor
to itself, because the kernel would else put a bare ping and its pong on one and a broker's threads on several, or the
other way round, as it happens; bulk runs where the kernel puts it. Rounds interleave what is compared, and medians
are reported, because other work on the machine comes and goes. The targets are in ``TARGETS``; the exit code is 1 when
one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median, quantiles

import load
import load_many
from served import Served

from raylog.protocol.records import Record, encode_batch

BATCH_BYTES = 64 * 1024
RATE = 5_000.0
E2E_RECORDS = 10_000
IDLE_CONNECTIONS = 500
LARGE_BATCH_BYTES = 1024 * 1024
ONE_RECORD_REQUESTS = 30_000
TAILING_CONSUMERS, TAILED_RECORDS = 100, 50
IDLE_TOPICS, IDLE_PARTITIONS, IDLE_FETCHES = 10, 100, 50

CPUS = sorted(os.sched_getaffinity(0))
ALL_CPUS, LOAD_CPUS, SERVER_CPUS = set(CPUS), set(CPUS[:1]), set(CPUS[1:] or CPUS)

TARGETS: dict[str, Callable[[float], bool]] = {
    "produce_64k_to_loopback": lambda value: value >= 0.30,
    "produce_64k_cpu_s_per_gb": lambda value: value <= 1.0,
    "fetch_to_sendfile": lambda value: value >= 0.70,
    "fetch_cpu_s_per_gb": lambda value: value <= 0.25,
    "e2e_p50_to_rtt": lambda value: value <= 5,
    "e2e_p99_minus_rtt_ms": lambda value: value <= 1,
    "idle_500_connections_mb": lambda value: value < 100,
    "fetch_1000_idle_partitions_session_us": lambda value: value <= 500,
}


def place(load_cpus: set[int], server_cpus: set[int], *servers: Served) -> None:
    """Which processors the load and the servers may use."""
    os.sched_setaffinity(0, load_cpus)
    for server in servers:
        server.run_on(server_cpus)


def measure(broker: Served, limits: Served, rounds: int, total: int) -> dict[str, float]:
    """Medians over all rounds, ratios taken round by round."""
    rows = []
    for number in range(rounds):
        row = (
            bulk(broker, limits, f"bulk-{number}", total)
            | small(broker, limits, f"small-{number}")
            | many(broker, limits, f"many-{number}", total)
        )
        row["produce_1m_ratio"] = row["produce_1m"] / row["loopback"]
        row["produce_ratio"] = row["produce"] / row["loopback"]
        row["fetch_ratio"] = row["fetch"] / row["sendfile"]
        row["e2e_ratio"] = row["e2e_p50"] / row["rtt_p50"]
        row["e2e_p99_extra"] = row["e2e_p99"] - row["rtt_p50"]
        rows.append(row)
        print(f"round {number + 1}: {json.dumps({name: float(f'{value:.4g}') for name, value in row.items()})}")
    return {name: median(row[name] for row in rows) for name in rows[0]}


def bulk(broker: Served, limits: Served, name: str, total: int) -> dict[str, float]:
    """Bytes per second, and the broker's CPU seconds per GB; the bare limits before and after what they bound."""
    place(ALL_CPUS, ALL_CPUS, broker, limits)
    batch, records = load.sized_batch(BATCH_BYTES)
    address = broker.address()
    with broker.topic(name) as topic:
        loopback = [load.loopback_send(limits.address("sink"), batch, total)]
        cpu_s = [broker.cpu_s()]
        produced = load.produce(address, topic, batch, records, total)
        cpu_s.append(broker.cpu_s())
        loopback.append(load.loopback_send(limits.address("sink"), batch, total))
        bare_cpu_s = limits.cpu_s()
        sendfile = [load.raw_sendfile(limits.address("sendfile"), total)]
        cpu_s.append(broker.cpu_s())
        fetched = load.fetch(address, topic, batch, records, total)
        cpu_s.append(broker.cpu_s())
        sendfile.append(load.raw_sendfile(limits.address("sendfile"), total))
        bare_cpu_s = (limits.cpu_s() - bare_cpu_s) / len(sendfile)
        found = load.verify(address, topic, batch, records)
        assert found == total // len(batch) * records, f"{found} records came back"
    return {
        "loopback": mean(loopback),
        "produce": produced,
        "produce_cpu": (cpu_s[1] - cpu_s[0]) / total * 1e9,
        "sendfile": mean(sendfile),
        "sendfile_cpu": bare_cpu_s / total * 1e9,
        "fetch": fetched,
        "fetch_cpu": (cpu_s[3] - cpu_s[2]) / total * 1e9,
    }


def small(broker: Served, limits: Served, name: str) -> dict[str, float]:
    """Bare round trips and end-to-end times of single records, in seconds."""
    place(LOAD_CPUS, SERVER_CPUS, broker, limits)
    trips = load.ping_pong(limits.address("echo"), E2E_RECORDS)
    with broker.topic(name) as topic:
        end_to_end = load.end_to_end(broker.address(), topic, RATE, E2E_RECORDS)
    assert len(end_to_end.times) == E2E_RECORDS
    percentiles = quantiles(end_to_end.times, n=100)
    return {
        "rtt_p50": median(trips),
        "rtt_p99": quantiles(trips, n=100)[98],
        "e2e_p50": percentiles[49],
        "e2e_p99": percentiles[98],
        "e2e_rate": end_to_end.rate,
    }


def many(broker: Served, limits: Served, name: str, total: int) -> dict[str, float]:
    """Large batches, small requests, many consumers of one partition, many partitions of one consumer."""
    place(ALL_CPUS, ALL_CPUS, broker, limits)
    address = broker.address()
    batch, records = load.sized_batch(LARGE_BATCH_BYTES)
    with broker.topic(f"{name}-large") as topic:
        large = load.produce(address, topic, batch, records, total)
    one = encode_batch([Record(bytes(100))])
    with broker.topic(f"{name}-one") as topic:
        requests = load.produce(address, topic, one, 1, len(one) * ONE_RECORD_REQUESTS) / len(one)
    with broker.topic(f"{name}-tail") as topic:
        tailing = load_many.tailing(address, topic, TAILING_CONSUMERS, TAILED_RECORDS)
    with ExitStack() as stack:
        topics = [stack.enter_context(broker.topic(f"{name}-idle-{n}", IDLE_PARTITIONS)) for n in range(IDLE_TOPICS)]
        full, incremental = (
            load_many.idle_fetches(address, topics, IDLE_PARTITIONS, IDLE_FETCHES, session=session)
            for session in (False, True)
        )
    return {
        "produce_1m": large,
        "requests": requests,
        "tail_first": median(tailing.first),
        "tail_middle": median(tailing.middle),
        "tail_last": median(tailing.last),
        "idle_full": full,
        "idle_incremental": incremental,
    }


def idle_connections(broker: Served) -> float:
    """Resident bytes that idle connections add, each after one 64 KB batch, a fetch of it and a while of silence."""
    batch, _ = load.sized_batch(BATCH_BYTES)
    frame, fetch = load.produce_frame("idle", batch), load.fetch_frame("idle", 0)
    buffer = memoryview(bytearray(2 * load.FETCH_BYTES))
    before = broker.tell()["rss"]
    with broker.topic("idle"), ExitStack() as stack:
        for _ in range(IDLE_CONNECTIONS):
            sock = stack.enter_context(load.connect(broker.address()))
            sock.sendall(frame)
            load.produced_offset(load.receive(sock, buffer))
            sock.sendall(fetch)
            load.fetched(load.receive(sock, buffer))
        time.sleep(3)
        return broker.tell()["rss"] - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=256, help="produced per round")
    options = parser.parse_args()
    total = options.megabytes * 1024 * 1024
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raylog-bench-")))
        (directory / "file").write_bytes(os.urandom(1024 * 1024) * options.megabytes)
        broker = Served("broker", str(directory / "broker"))
        stack.callback(broker.close)
        limits = Served("limits", str(directory / "file"))
        stack.callback(limits.close)
        idle = idle_connections(broker)
        figures = measure(broker, limits, options.rounds, total)
    result = {
        "produce_64k_to_loopback": round(figures["produce_ratio"], 3),
        "produce_64k_cpu_s_per_gb": round(figures["produce_cpu"], 3),
        "fetch_to_sendfile": round(figures["fetch_ratio"], 3),
        "fetch_cpu_s_per_gb": round(figures["fetch_cpu"], 3),
        "e2e_p50_to_rtt": round(figures["e2e_ratio"], 2),
        "e2e_p99_minus_rtt_ms": round(figures["e2e_p99_extra"] * 1e3, 3),
        "idle_500_connections_mb": round(idle / 1e6, 1),
        "produce_1m_to_loopback": round(figures["produce_1m_ratio"], 3),
        "produce_1m_mb_s": round(figures["produce_1m"] / 1e6),
        "one_record_requests_s": round(figures["requests"]),
        "tail_100_consumers_first_ms": round(figures["tail_first"] * 1e3, 2),
        "tail_100_consumers_middle_ms": round(figures["tail_middle"] * 1e3, 2),
        "tail_100_consumers_last_ms": round(figures["tail_last"] * 1e3, 2),
        "fetch_1000_idle_partitions_us": round(figures["idle_full"] * 1e6),
        "fetch_1000_idle_partitions_session_us": round(figures["idle_incremental"] * 1e6),
        "loopback_64k_mb_s": round(figures["loopback"] / 1e6),
        "produce_64k_mb_s": round(figures["produce"] / 1e6),
        "sendfile_mb_s": round(figures["sendfile"] / 1e6),
        "sendfile_cpu_s_per_gb": round(figures["sendfile_cpu"], 3),
        "fetch_mb_s": round(figures["fetch"] / 1e6),
        "rtt_p50_us": round(figures["rtt_p50"] * 1e6, 1),
        "e2e_p50_us": round(figures["e2e_p50"] * 1e6, 1),
        "e2e_p99_us": round(figures["e2e_p99"] * 1e6, 1),
        "e2e_records_s": round(figures["e2e_rate"]),
        "cpus": len(CPUS),
        "rounds": options.rounds,
    }
    missed = [name for name, holds in TARGETS.items() if not holds(result[name])]
    if missed:
        print(f"missed: {', '.join(missed)}")
    print(json.dumps(result))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
