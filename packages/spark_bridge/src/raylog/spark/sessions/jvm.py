"""The driver's JVM: its settings, its environment, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from raylog.protocol.logs import Logger

JVM_GONE_TIMEOUT_S = 30.0

OPENED_PACKAGES = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
"""What Spark 3.5 opens for itself on Java 17 (its JavaModuleOptions)."""

LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.ui.name = org.apache.spark.util.Utils
logger.ui.level = error
"""
"""The driver's log4j2: Spark's own, without the two warnings of every start on which nobody can act."""

log = Logger(__name__)


def spark_configs(scratch: str, address: str, overrides: Mapping[str, str]) -> dict[str, str]:
    """Spark's settings for every session, under the user's ``overrides``; Java options add up.

    ``address`` is the driver's, as the Ray cluster knows its node.
    """
    java = f"-XX:-UsePerfData -Djava.io.tmpdir={scratch}"
    # What RayDP's agent writes in the driver would go to /tmp/ray/session_latest: another Ray's, or one that is gone,
    # without which the JVM does not start.
    in_driver = f"-Dray.logging.dir={scratch}"
    opened = " ".join(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED_PACKAGES)
    log4j = Path(scratch) / "log4j2.properties"
    log4j.write_text(LOGGING)
    configs = {
        "spark.log4j.config.file.name": str(log4j),
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.local.dir": scratch,
        "spark.ray.raydp_spark_master.actor.resource.CPU": "0",
        "spark.sql.streaming.stopTimeout": "30s",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        **overrides,
    }
    for key, options in (
        ("spark.driver.extraJavaOptions", f"{java} {in_driver}"),
        ("spark.executor.extraJavaOptions", java),
        ("spark.ray.raydp_app_master.extraJavaOptions", f"{opened} {java}"),
    ):
        configs[key] = f"{options} {overrides.get(key, '')}".strip()
    return configs


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables; in the end put back what was there, also what pyspark sets, and who gets SIGINT."""
    names = [*values, "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"]
    interrupted = signal.getsignal(signal.SIGINT)
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is not None:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)
        if threading.current_thread() is threading.main_thread():  # elsewhere pyspark leaves it alone
            signal.signal(signal.SIGINT, interrupted)


def keep_texts(kind: object, error: BaseException | None, trace: object) -> None:
    """Let the errors that leave a session tell their text when its JVM, which they ask for it, is gone.

    An exit callback for ``ExitStack.push``; also for what the error was raised from.
    """
    waiting, seen = [error], set[int]()
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        waiting += [found.__cause__, found.__context__]
        if isinstance(found, CapturedException | Py4JJavaError):
            with suppress(Exception):  # the JVM died by itself
                found.__class__ = _with_text(type(found), str(found))


def _with_text(kind: type[Exception], text: str) -> type[Exception]:
    """``kind`` again, but that its errors say ``text``."""
    return type(kind.__name__, (kind,), {"__str__": lambda _: text, "__module__": kind.__module__})


def release(spark: SparkSession) -> None:
    """Stop the session's streaming queries and drop its cached frames, so that nothing of them outlives it."""
    try:
        for query in spark.streams.active:
            query.stop()
        spark.catalog.clearCache()
        for rdd in spark.sparkContext._jsc.getPersistentRDDs().values():
            rdd.unpersist()
    except (Py4JError, PySparkException, OSError) as error:  # the JVM is gone, and all of it with it
        log.warning("Spark's driver could not release what it holds: %s", error)


def end_jvm(timeout_s: float = JVM_GONE_TIMEOUT_S) -> None:
    """End the JVM of this process, which pyspark keeps for a next SparkContext that RayDP could not use.

    After ``timeout_s`` it is killed.
    """
    context = SparkContext._active_spark_context
    if context is not None:  # of a session that failed after Spark had started
        context.stop()
    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()  # the JVM ends itself when its standard input does
    try:
        process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
