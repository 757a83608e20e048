"""Writes ``kafka_apis.json``: every API of a Kafka release, with the versions that its schemas mark stable.

    python tests/kit/kafka_apis.py kafka-clients-4.2.0.jar

The jar is org.apache.kafka:kafka-clients of that release, which holds the schemas as JSON with comments. The
file is committed, so that tests need no jar.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).with_suffix(".json")
SCHEMAS = "common/message/"
GONE = "none"


class KafkaApi(NamedTuple):
    """One API as a release has it."""

    key: int
    name: str
    versions: range
    """The stable ones; none for an API that was removed."""
    listeners: tuple[str, ...]
    """Who offers it: broker, controller."""


def load() -> dict[int, KafkaApi]:
    """The APIs by key."""
    rows = json.loads(DATA.read_text())["apis"]
    return {
        row["key"]: KafkaApi(
            row["key"],
            row["name"],
            range(row["min"], row["max"] + 1) if "min" in row else range(0),
            tuple(row["listeners"]),
        )
        for row in rows
    }


def extract(jar: Path) -> list[dict[str, Any]]:
    """A row per request schema, by key."""
    with zipfile.ZipFile(jar) as archive:
        names = [name for name in archive.namelist() if name.startswith(SCHEMAS) and name.endswith("Request.json")]
        rows = [_row(archive.read(name).decode()) for name in names]
    return sorted(rows, key=lambda row: row["key"])


def _row(text: str) -> dict[str, Any]:
    schema = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    row = {
        "key": schema["apiKey"],
        "name": schema["name"].removesuffix("Request"),
        "listeners": schema.get("listeners", []),
    }
    if schema["validVersions"] != GONE:
        low, _, high = schema["validVersions"].partition("-")
        row["min"], row["max"] = int(low), int(high or low) - bool(schema.get("latestVersionUnstable"))
    return row


if __name__ == "__main__":
    source = Path(sys.argv[1])
    apis = ",\n".join(json.dumps(row) for row in extract(source))
    DATA.write_text(f'{{"source": "{source.name}", "apis": [\n{apis}\n]}}\n')
