"""What is said of the settings of Java's clients and of librdkafka is true, of every one that Java's have."""

from __future__ import annotations

import re
import subprocess
from fnmatch import fnmatchcase

import confluent_kafka
import pytest

from kit.config_reference import CLIENTS
from kit.kafka_java import JVM, KAFKA_4, TIMEOUT_S
from kit.maven import SOURCES, jars, missing_programs
from raylog.client.config.kafka import KAFKA_SETTINGS, LIBRDKAFKA_NAMES, NOT_HERE, NOT_HERE_OF_LIBRDKAFKA

pytestmark = pytest.mark.conformance

TABLES = {client: table for client, _, table in CLIENTS}
ALL_OURS = {row.name for table in TABLES.values() for row in table}
OF_JAVA = {name for name in ALL_OURS if name in KAFKA_SETTINGS}


@pytest.fixture(scope="module")
def java() -> dict[tuple[str, str], str]:
    """The defaults, by client and name."""
    if missing := missing_programs():
        pytest.skip(f"needs {', '.join(missing)}")
    command = [*JVM, f"{jars(KAFKA_4)}/*", str(SOURCES / "Settings.java")]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT_S).stdout
    found = {}
    for line in told.splitlines():
        client, name, default = line.split("\t")
        found[client, name] = re.sub(r"(?:class )?org\.apache\.[a-z.]*\.([A-Z]\w*)", r"\1", default)
    return found


def test_every_setting_of_javas_clients_is_here_or_told_why_not(java: dict[tuple[str, str], str]) -> None:
    assert len(java) > 200
    for client, name in java:
        is_told = any(fnmatchcase(name, pattern) for pattern in NOT_HERE)
        assert name in TABLES[client] or is_told, f"{name} of the {client}"
    for pattern in NOT_HERE:
        assert any(fnmatchcase(name, pattern) for _, name in java), f"Java has no {pattern}"


def test_defaults_of_java_are_those_that_are_told(java: dict[tuple[str, str], str]) -> None:
    for client, table in TABLES.items():
        theirs = {row.name: java[client, row.name] for row in table if (client, row.name) in java}
        told = {row.name: KAFKA_SETTINGS[row.name].of(client) for row in table if row.name in KAFKA_SETTINGS}
        assert told == theirs
    assert KAFKA_SETTINGS.keys() == OF_JAVA


@pytest.mark.parametrize("name", [*LIBRDKAFKA_NAMES, *NOT_HERE_OF_LIBRDKAFKA])
def test_librdkafka_has_the_settings_that_are_told(name: str) -> None:
    refused = ""
    try:
        confluent_kafka.Consumer({"group.id": "g", name: "no such value"}).close()
    except (confluent_kafka.KafkaException, TypeError, ValueError) as error:
        refused = str(error)
    assert "No such configuration property" not in refused


def test_librdkafka_tells_of_a_setting_that_it_has_not() -> None:
    with pytest.raises(confluent_kafka.KafkaException, match="No such configuration property"):
        confluent_kafka.Consumer({"group.id": "g", "no.such.setting": "x"})


def test_other_names_are_of_settings_that_are_here() -> None:
    assert set(LIBRDKAFKA_NAMES.values()) <= ALL_OURS
    assert not ALL_OURS & (LIBRDKAFKA_NAMES.keys() | NOT_HERE_OF_LIBRDKAFKA.keys())
