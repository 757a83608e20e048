"""Spark on a Ray cluster of its own: it starts, computes and leaves nothing behind; without Java it is refused."""

from __future__ import annotations

import os
import signal
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext, StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from kit.forms import some
from kit.machine import scaled
from kit.spark import SPARK_MARKS, ray_with_java
from kit.spark_driver import driver_process
from kit.waiting import wait_until
from raylog.broker.launch import local_ray
from raylog.broker.launch.cluster_file import RayInfo
from raylog.coordination.host.processes import ProcessRef, running
from raylog.coordination.host.ray_token import ray_token
from raylog.spark import SparkNotStarted, session
from raylog.spark.sessions.jvm import release

pytestmark = SPARK_MARKS

START_S = 120.0
"""For a process with its session: 15 s alone, 50 s on a machine seven times over."""


@ray.remote(num_cpus=0)
class Lodger:
    """An actor with a name."""


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, no_spark: None) -> Iterator[RayInfo]:
    """A Ray cluster with Java."""
    with ray_with_java(tmp_path_factory.mktemp("ray")) as started:
        yield started


@pytest.fixture
def head_without_java(tmp_path: Path) -> Iterator[RayInfo]:
    """A Ray cluster whose PATH has a shell and nothing else."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "env"):
        (tools / name).symlink_to(f"/bin/{name}")
    environment = {**os.environ, "PATH": str(tools)}
    for name in ("JAVA_HOME", "RAY_AUTH_MODE"):
        environment.pop(name, None)
    started = local_ray.start(tmp_path, environment)
    with ray_token(started.auth_token_path):
        yield started
    local_ray.stop(started)


def jvms(head: RayInfo) -> set[ProcessRef]:
    """Java processes of the Ray cluster and of this process, which other tests' clients may be among."""
    session = local_ray.session_of(head)
    assert session is not None
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    ours = [*session.members(), *(process for process in running() if process.ref.pid in children)]
    return {process.ref for process in ours if process.name == "java"}


def left_behind(head: RayInfo) -> list[str]:
    """Directories that sessions on this cluster make, here and in Ray's."""
    places: list[Path] = []
    for cluster in Path(head.temp_dir).glob("session_2*"):  # of each time that Ray had to be started again
        name = cluster.name.removeprefix("session_")
        places += [*Path(tempfile.gettempdir()).glob(f"raylog-spark-{name}-*"), *cluster.glob("app-*")]
    return sorted(str(place) for place in places)


def actors(head: RayInfo) -> list[str]:
    with ray_token(head.auth_token_path):
        ray.init(address=head.address, log_to_driver=False)
    try:
        return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    finally:
        ray.shutdown()


def java_and_spark_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(("JAVA", "SPARK", "PYSPARK"))}


def hold(spark: SparkSession) -> Any:
    """What a session may hold at its end: cached frames and RDDs (which Spark drops when nobody has them), a stream."""
    spark.range(1000).persist(StorageLevel.MEMORY_AND_DISK).count()
    cached = spark.sparkContext.parallelize([1, 2]).cache()
    cached.count()
    spark.readStream.format("rate").load().writeStream.format("noop").start()
    return cached


def held(spark: SparkSession) -> tuple[int, int]:
    """Cached RDDs (a cached frame is one), streams."""
    return len(spark.sparkContext._jsc.getPersistentRDDs()), len(spark.streams.active)


def use(spark: SparkSession, head: RayInfo, before: set[ProcessRef]) -> None:
    assert spark.range(10).selectExpr("sum(id)").collect()[0][0] == 45
    assert len(jvms(head) - before) == 4, "driver, app master's gateway, app master, executor"
    scratch = Path(spark.sparkContext.getConf().get("spark.local.dir", ""))
    assert len([*scratch.glob("slf4j-*.log")]) == 1, "what RayDP writes in the driver lies in no other Ray's directory"
    with pytest.raises(SparkNotStarted, match="runs in this process already"), session():
        pass
    cached = hold(spark)
    assert held(spark) == (2, 1)
    release(spark)
    assert held(spark) == (0, 0)
    assert hold(spark) is not cached
    with pytest.raises(Py4JJavaError) as caught:
        spark.range(3).select(sf.raise_error(sf.lit("no such luck"))).collect()
    try:
        spark.sql("select no_such_column")
    except AnalysisException as error:
        raise error from caught.value


def assert_nothing_left(head: RayInfo, before: set[ProcessRef]) -> None:
    assert left_behind(head) == []
    assert actors(head) == []
    wait_until(lambda: not jvms(head) - before, 10, "the JVMs are gone", instead=lambda: jvms(head) - before)


FAILURES = {
    "app master": (
        {"spark.ray.raydp_app_master.extraJavaOptions": "-javaagent:/no/such.jar"},
        "Java gateway process exited",
    ),
    "driver's JVM": ({"spark.driver.extraJavaOptions": "-javaagent:/no/such.jar"}, "JAVA_GATEWAY_EXITED"),
    "SparkContext": ({"spark.serializer": "no.such.Serializer"}, "no.such.Serializer"),
    "executor": (
        {"spark.executor.extraJavaOptions": "-javaagent:/no/such.jar"},
        "0 of 1 Spark executors started within 5 s",
    ),
}
"""What keeps each part from starting, and what is told then."""


@pytest.mark.parametrize("part", some([*FAILURES], 4))
def test_a_start_that_fails_leaves_nothing_behind(head: RayInfo, part: str) -> None:
    configs, complaint = FAILURES[part]
    environment, before = java_and_spark_environment(), jvms(head)
    with (
        pytest.raises(Exception, match=complaint),
        session(address=head.address, memory="600m", configs=configs, timeout_s=5),
    ):
        pass
    assert not ray.is_initialized()
    assert SparkContext._gateway is None
    assert SparkContext._active_spark_context is None
    assert java_and_spark_environment() == environment
    assert_nothing_left(head, before)


def test_a_driver_that_is_interrupted_as_it_starts_leaves_nothing_behind(head: RayInfo, tmp_path: Path) -> None:
    before, log = jvms(head), tmp_path / "driver.log"
    with driver_process(head.address, log) as driver:
        wait_until(lambda: jvms(head) - before, START_S, "the app master starts", instead=log.read_text)
        driver.send_signal(signal.SIGINT)
        driver.wait(scaled(START_S))
    assert "KeyboardInterrupt" in log.read_text()
    assert_nothing_left(head, before)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("end", some([signal.SIGKILL, signal.SIGINT], 2))
def test_two_sessions_share_the_nodes_and_one_that_ends_makes_room(
    head: RayInfo, tmp_path: Path, end: signal.Signals
) -> None:
    """This process's session computes, and leaves nothing behind even after an exception. The other is that of a
    process, which is killed or interrupted."""
    environment, interrupted = java_and_spark_environment(), signal.getsignal(signal.SIGINT)
    before, log = jvms(head), tmp_path / "driver.log"
    with driver_process(head.address, log) as driver:
        wait_until(lambda: b"started" in log.read_bytes(), START_S, "the other session", instead=log.read_text)
        others, named, beside = left_behind(head), actors(head), jvms(head)
        assert len(others) == 2
        with (
            pytest.raises(AnalysisException, match="no_such_column") as caught,
            session(address=head.address, memory="600m") as spark,
        ):
            use(spark, head, beside)
        told = "".join(traceback.format_exception(caught.value))
        assert "no such luck" in told, "the JVM that errors ask for their text is gone"
        assert "str() failed" not in told
        assert not ray.is_initialized()
        assert java_and_spark_environment() == environment
        assert signal.getsignal(signal.SIGINT) is interrupted
        assert left_behind(head) == others
        assert actors(head) == named
        wait_until(lambda: not jvms(head) - beside, 10, "its JVMs are gone", instead=lambda: jvms(head) - beside)
        with (
            pytest.raises(SparkNotStarted, match=r"for 2 s the Ray cluster had CPU free for 1 of them .*1 of 2 CPU"),
            session(address=head.address, executors=2, memory="600m", timeout_s=2),
        ):
            pass
        driver.send_signal(end)
        driver.wait(scaled(START_S))
        if end is signal.SIGINT:
            assert "KeyboardInterrupt" in log.read_text()
            assert_nothing_left(head, before)
        with session(address=head.address, executors=2, memory="600m") as spark:
            assert spark.range(10).count() == 10
    assert_nothing_left(head, before)


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ({"executors": 10, "cores": 100}, r"10 executors of 100 CPUs .* has CPU for 0 of them .*ask for less"),
        ({"memory": "100000g"}, r"1 executors of 1 CPUs and 100000g .* has memory for 0 of them .*GiB of memory free"),
    ],
)  # fmt: skip
def test_too_small_nodes_are_told_at_once(head: RayInfo, wanted: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SparkNotStarted, match=complaint) as caught, session(address=head.address, **wanted):
        pass
    assert "\n" not in str(caught.value)
    assert left_behind(head) == []


def test_a_namespace_with_actors_in_it_is_refused(head: RayInfo) -> None:
    with ray_token(head.auth_token_path):  # what another test's cluster asked for may still be remembered
        ray.init(address=head.address, namespace="occupied", log_to_driver=False)
    try:
        lodger = Lodger.options(name="broker-0").remote()
        ray.get(lodger.__ray_ready__.remote())
        with pytest.raises(SparkNotStarted, match="namespace 'occupied' of this process holds named actors"), session():
            pass
        with (
            pytest.raises(SparkNotStarted, match=r"is connected to Ray at .*, not nowhere:1"),
            session(address="nowhere:1"),
        ):
            pass
        with (
            pytest.raises(SparkNotStarted, match="holds named actors"),
            session(address=ray.get_runtime_context().gcs_address),
        ):
            pass
        with pytest.raises(SparkNotStarted, match="holds named actors"), session(address=head.address):
            pass
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def test_a_ray_that_is_not_there_is_named() -> None:
    with pytest.raises(SparkNotStarted, match=r"no Ray cluster at 127.0.0.1:1"), session(address="127.0.0.1:1"):
        pass


def test_a_node_without_java_is_refused_and_lives_on(head_without_java: RayInfo) -> None:
    with (
        pytest.raises(SparkNotStarted, match=r"node \S+ has no `java` on the PATH") as caught,
        session(address=head_without_java.address),
    ):
        pass
    assert "\n" not in str(caught.value)
    assert left_behind(head_without_java) == []
    assert actors(head_without_java) == []
    assert local_ray.is_whole(head_without_java)
