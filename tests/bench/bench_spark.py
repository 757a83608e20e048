"""Spark and Ray Data: how fast a topic's records come in, against the readers that others wrote.

``python tests/bench/bench_spark.py [--records N] [--rounds N]``; the last line is one JSON object. One topic of six
partitions on a broker in a process of its own; Spark by RayDP with one executor of one core. Rounds interleave what is
compared, and medians count. Every reading is checked: how many records, and the sums of what their columns hold.

* Spark: Spark's own Kafka connector, ``raylog.spark.read``, and a bare ``mapInArrow`` that hands out batches of the
  same shape from memory; all columns, and values alone.
* Ray Data: ``ray.data.read_kafka`` and ``raylog.client.data.read``, all columns, one CPU for tasks.
* The codec to columns, by ``bench_codec``: the kernel, and without it.

The targets are in ``TARGETS``; the exit code is 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import ray
from bench_codec import columns_figures
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from ray.data import DataContext, Dataset
from served import Served

from kit.kafka_connector import connector_jars
from kit.spark import ray_with_java
from raylog.broker.launch import local_ray
from raylog.client import Producer, data
from raylog.coordination.host.own_session import OwnSession
from raylog.spark import read, session

TOPIC = "records"
PARTITIONS = 6
KEY_BYTES, VALUE_BYTES = 8, 92
FILLER = b" some words that are the same in every record, as they are in texts of people"
FIRST_MS = 1_700_000_000_000
CHUNK = 300_000
"""Records that are made and sent at once; as many for each partition."""
MOST_S = 600
"""For one reading of all records."""
BARE_ROWS = 32_768
"""Of a batch of the bare mapInArrow."""

Tally = Mapping[str, int]
"""How many rows, and the sums by column."""

TARGETS: Mapping[str, float] = {
    "spark_all_columns_to_connector": 2,
    "spark_value_only_to_connector": 3,
    "ray_data_to_read_kafka": 10,
    "kernel_decode_m_per_s": 20,
    "python_decode_m_per_s": 1,
}

SUMS: Mapping[str, str] = {
    "key": "sum(length(key))",
    "value": "sum(length(value))",
    "topic": "sum(length(topic))",
    "partition": "sum(partition)",
    "offset": "sum(offset)",
    "timestamp": "sum(unix_millis(timestamp))",
    "timestampType": "sum(timestampType)",
}
"""What is summed of each of Spark's columns."""


def digits(numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Each number as eight digits."""
    return (numbers[:, None] // 10 ** np.arange(7, -1, -1) % 10 + ord("0")).astype(np.uint8)


def fixed(rows: NDArray[np.uint8]) -> pa.Array:
    """Equally long rows of bytes."""
    count, size = rows.shape
    edges = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(edges), pa.py_buffer(rows.tobytes())])


def records(first: int, count: int) -> dict[str, Any]:
    """Columns of records of 100 bytes, key and value together; the value begins and ends with the record's number."""
    numbers = np.arange(first, first + count)
    shown = digits(numbers)
    values = np.tile(np.frombuffer(FILLER.center(VALUE_BYTES), np.uint8), (count, 1))
    values[:, :8] = values[:, -8:] = shown
    return {
        "values": fixed(values),
        "keys": fixed(shown[:, ::-1]),
        "partition": pa.array(numbers % PARTITIONS),
        "timestamps": pa.array(FIRST_MS + numbers),
    }


def fill(servers: str, count: int) -> None:
    """Records 0 to ``count`` into the topic, in turn into its partitions, in batches of 64 KB."""
    with Producer(servers, batch_size=65_536) as producer:
        sent = [
            producer.send_batch(TOPIC, **records(first, min(CHUNK, count - first))) for first in range(0, count, CHUNK)
        ]
        producer.flush(300)
    assert sum(run.record_count for delivery in sent for run in delivery.result(0)) == count


def expected(count: int) -> dict[str, int]:
    """What SUMS must give for ``count`` records, a multiple of PARTITIONS."""
    each = count // PARTITIONS
    return {
        "key": count * KEY_BYTES,
        "value": count * VALUE_BYTES,
        "topic": count * len(TOPIC),
        "partition": each * sum(range(PARTITIONS)),
        "offset": PARTITIONS * each * (each - 1) // 2,
        "timestamp": count * FIRST_MS + count * (count - 1) // 2,
        "timestampType": 0,
    }


@contextmanager
def ended_within(seconds: int, what: str) -> Iterator[None]:
    """Raises TimeoutError, in the main thread, when that takes longer."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"{what}: not read within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Rates:
    """Records a second by name, one of each per round; and what their tasks cost."""

    def __init__(self, count: int, cpu_s: Callable[[], float]) -> None:
        """``cpu_s``: seconds of CPU that the processes of executors and workers have had."""
        self.count = count
        self._cpu_s = cpu_s
        self._found: dict[str, list[float]] = {}
        self._costs: dict[str, list[float]] = {}

    def measure(
        self, name: str, run: Callable[[], Mapping[str, int]], wanted: Mapping[str, int], *, keep: bool
    ) -> None:
        """Run it, check that it answers what is ``wanted``, and note its rate when that is to be kept."""
        begun, cpu_s = time.perf_counter(), self._cpu_s()
        with ended_within(MOST_S, f"{name}: {self.count} records"):
            found = run()
        spent = time.perf_counter() - begun
        cost = self._cpu_s() - cpu_s
        assert wanted.items() <= found.items(), f"{name}: {found} instead of {wanted}"
        if not keep:
            return
        print(f"{name}: {self.count / spent / 1e6:.2f} M records/s", flush=True)
        self._found.setdefault(name, []).append(self.count / spent)
        self._costs.setdefault(name, []).append(cost / self.count * 1e6)

    def __getitem__(self, name: str) -> float:
        return median(self._found[name])

    def show(self) -> None:
        for name, rates in self._found.items():
            each = ", ".join(f"{rate / 1e6:.2f}" for rate in rates)
            cost = median(self._costs[name])
            print(f"{name:<32} {self[name] / 1e6:6.2f} M records/s, {cost:6.2f} us of CPU each ({each})")


def session_cpu_s(session: OwnSession) -> float:
    """Seconds of CPU of all processes of a Unix session, and of their children that have ended."""
    total = 0.0
    for member in session.members():
        try:
            total += sum(psutil.Process(member.ref.pid).cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


# --- Spark ------------------------------------------------------------------------------------------------------


def by_connector(spark: SparkSession, servers: str, columns: Sequence[str]) -> DataFrame:
    options = {"kafka.bootstrap.servers": servers, "subscribe": TOPIC}
    return spark.read.format("kafka").options(**options).load().select(*columns)


def by_raylog(spark: SparkSession, servers: str, columns: Sequence[str]) -> DataFrame:
    return read(spark, subscribe=TOPIC, bootstrap_servers=servers, columns=columns)


def bare(spark: SparkSession, schema: StructType, count: int) -> DataFrame:
    """``count`` rows of the shape of what is read, in as many Spark partitions, from the workers' memory."""
    ids = spark.range(0, PARTITIONS, 1, numPartitions=PARTITIONS)
    return ids.mapInArrow(partial(bare_batches, count // PARTITIONS, schema.names), schema)


def bare_batches(count: int, columns: Sequence[str], ids: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    made = records(0, BARE_ROWS)
    zeros = pa.array(np.zeros(BARE_ROWS, np.int32))
    arrays = {
        "key": made["keys"],
        "value": made["values"],
        "topic": pa.repeat(pa.scalar(TOPIC), BARE_ROWS),
        "partition": zeros,
        "offset": pa.array(np.arange(BARE_ROWS)),
        "timestamp": (made["timestamps"]).cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
        "timestampType": zeros,
    }
    batch = pa.RecordBatch.from_pydict({column: arrays[column] for column in columns})
    for rows in ids:
        for _ in range(rows.num_rows):
            for first in range(0, count, BARE_ROWS):
                yield batch.slice(0, min(BARE_ROWS, count - first))


def sums(frame: DataFrame) -> dict[str, int]:
    """The checked action: the rows, and what SUMS says of each column."""
    [row] = frame.selectExpr("count(*) as rows", *(f"{SUMS[name]} as {name}" for name in frame.columns)).collect()
    found: dict[str, int] = row.asDict()
    return found


def measure_spark(spark: SparkSession, servers: str, rates: Rates, rounds: int) -> None:
    """All readers, both shapes, a round to warm up first."""
    wanted = expected(rates.count)
    shapes = {"all columns": [*SUMS], "value only": ["value"]}
    for measured in [False] + [True] * rounds:
        for shape, columns in shapes.items():
            whole = {"rows": rates.count} | {name: wanted[name] for name in columns}
            theirs, ours = by_connector(spark, servers, columns), by_raylog(spark, servers, columns)
            nothing = bare(spark, ours.schema, rates.count)
            for reader, frame in {"connector": theirs, "raylog": ours}.items():
                rates.measure(f"{reader}, {shape}", partial(sums, frame), whole, keep=measured)
            sizes = {name: whole[name] for name in ("rows", "key", "value", "topic") if name in whole}
            rates.measure(f"bare mapInArrow, {shape}", partial(sums, nothing), sizes, keep=measured)


# --- Ray Data ---------------------------------------------------------------------------------------------------


def tally(table: pa.Table) -> pa.Table:
    """The rows of a batch and the sums that SUMS names, as one row."""
    sizes = {name: pc.sum(pc.binary_length(table[name])) for name in ("key", "value", "topic")}
    numbers = {name: pc.sum(table[name].cast(pa.int64())) for name in ("partition", "offset", "timestamp")}
    found = {name: scalar.as_py() for name, scalar in (sizes | numbers).items()}
    return pa.Table.from_pylist([{"rows": len(table), **found}])


def tallied(dataset: Dataset, **resources: int) -> dict[str, int]:
    """Reads all of a dataset and tallies it."""
    rows = dataset.map_batches(tally, batch_format="pyarrow", batch_size=None, **resources).take_all()
    return {name: sum(row[name] for row in rows) for name in rows[0]}


def measure_ray_data(servers: str, rates: Rates, rounds: int) -> None:
    """Both readers with one CPU for tasks, a round to warm up first.

    Our tasks tally what they read. Ray Data does not let read_kafka's do so; with one CPU its reading and its tallying
    tasks can wait for each other without end, so one of the latter runs beside it.
    """
    context = DataContext.get_current()
    context.execution_options.resource_limits = context.execution_options.resource_limits.copy(cpu=1)
    context.enable_progress_bars = False
    wanted = {"rows": rates.count} | expected(rates.count)
    del wanted["timestampType"]
    readers: dict[str, Callable[[], dict[str, int]]] = {
        "ray.data.read_kafka": lambda: tallied(
            ray.data.read_kafka(TOPIC, bootstrap_servers=servers), num_cpus=0, concurrency=1
        ),
        "raylog.client.data.read": lambda: tallied(data.read(TOPIC, bootstrap_servers=servers)),
    }
    for measured in [False] + [True] * rounds:
        for name, reader in readers.items():
            rates.measure(name, reader, wanted, keep=measured)


# --- all of it --------------------------------------------------------------------------------------------------


def measure_all(count: int, rounds: int) -> Rates:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="raylog-bench-")))
        for name in ("broker", "ray"):
            (root / name).mkdir()
        broker = stack.enter_context(Served("broker", str(root / "broker")))
        servers = f"{broker.facts['host']}:{broker.facts['port']}"
        broker.tell(f"create {TOPIC} {PARTITIONS}")
        fill(servers, count)
        head = stack.enter_context(ray_with_java(root / "ray"))
        rates = Rates(count, partial(session_cpu_s, local_ray.session_of(head)))
        with session(address=head.address, memory="2g", configs={"spark.jars": connector_jars()}) as spark:
            measure_spark(spark, servers, rates, rounds)
        with ray.init(address=head.address, log_to_driver=False):
            measure_ray_data(servers, rates, rounds)
    return rates


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--records", type=int, default=5_000_000)
    options.add_argument("--rounds", type=int, default=3)
    asked = options.parse_args()
    rates = measure_all(asked.records // PARTITIONS * PARTITIONS, asked.rounds)
    rates.show()
    figures = {
        "spark_all_columns_to_connector": rates["raylog, all columns"] / rates["connector, all columns"],
        "spark_value_only_to_connector": rates["raylog, value only"] / rates["connector, value only"],
        "spark_all_columns_to_bare": rates["raylog, all columns"] / rates["bare mapInArrow, all columns"],
        "spark_value_only_to_bare": rates["raylog, value only"] / rates["bare mapInArrow, value only"],
        "ray_data_to_read_kafka": rates["raylog.client.data.read"] / rates["ray.data.read_kafka"],
        **columns_figures(),
    }
    missed = [name for name, least in TARGETS.items() if figures[name] < least]
    print(json.dumps({name: float(f"{value:.4g}") for name, value in figures.items()} | {"missed": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
