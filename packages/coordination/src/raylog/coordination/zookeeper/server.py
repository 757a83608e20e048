"""What the embedded ZooKeeper server is started with: class path, settings, command line (D7)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from raylog.coordination.host.java import JavaHome
from raylog.protocol.errors import RaylogError


class EmbeddedError(RaylogError):
    """The embedded ZooKeeper cannot run; one sentence."""


TICK_MS = 500
"""ZooKeeper's unit of time: sessions are checked once a tick and last two ticks at least."""

_JARS = (
    "zookeeper-*.jar",
    "slf4j-api-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "netty-*.jar",
    "commons-cli-*.jar",
    "audience-annotations-*.jar",
)

_ZOO_CFG = """\
# Written by raylog at each start; changes are lost.
tickTime={tick}
initLimit=10
syncLimit=5
maxSessionTimeout=1800000
dataDir={data}
clientPortAddress={host}
clientPort={port}
maxClientCnxns=0
admin.enableServer=false
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
{superuser}4lw.commands.whitelist=ruok,srvr
"""

_LOG4J = """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
"""


def class_path() -> str:
    """ZooKeeper's jars and what they need, out of those that pyspark brings (without importing pyspark)."""
    spec = find_spec("pyspark")
    places = spec.submodule_search_locations if spec else None
    jars = [jar for place in places or () for name in _JARS for jar in sorted(Path(place, "jars").glob(name))]
    if not any(jar.name.startswith("zookeeper-") for jar in jars):
        raise EmbeddedError("no ZooKeeper jars found: run `pip install 'pyspark>=3.5,<3.6'`, which brings them")
    return ":".join(str(jar) for jar in jars)


def write_settings(data_dir: Path, host: str, port: int, superuser: str) -> Path:
    """Write zoo.cfg and the log settings into ``data_dir``; answer zoo.cfg's path."""
    zoo_cfg = data_dir / "zoo.cfg"
    whose = f"DigestAuthenticationProvider.superDigest={superuser}\n" if superuser else ""
    zoo_cfg.write_text(_ZOO_CFG.format(tick=TICK_MS, data=data_dir / "data", host=host, port=port, superuser=whose))
    (data_dir / "log4j2.properties").write_text(_LOG4J.format(log=data_dir / "zookeeper.log"))
    return zoo_cfg


def command(java: JavaHome, data_dir: Path, host: str, port: int, superuser: str) -> list[str]:
    """The JVM to start. QuorumPeerMain purges old snapshots, which ZooKeeperServerMain does not.

    ``superuser``: the digest of the credentials to which ZooKeeper closes no node, whoever made it; "" for none.
    """
    return [
        str(java.executable),
        "-Xms16m",
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",  # a small server gains more from starting fast
        "-Dzookeeper.preAllocSize=4096",
        f"-Dlog4j2.configurationFile={data_dir / 'log4j2.properties'}",
        "-cp",
        class_path(),
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        str(write_settings(data_dir, host, port, superuser)),
    ]
