"""The wheel of raylog-protocol: with the compiled kernel where a compiler is, and whole without it where none is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from kit.commands import RAYLOG
from kit.machine import scaled

PACKAGE = Path(__file__).parent.parent.parent / "packages/protocol"
ROUND_TRIP = """
from raylog.client.batches.encode import binary, encode_rows, header_column, integers
from raylog.client.batches.column_schema import Rows
from raylog.client.batches.decode import SCHEMA, body_of, decode_columns
from raylog.protocol.batches.compiled import KERNEL, RECORD_CODEC
from raylog.protocol.ids import TopicPartition
from raylog.protocol.records import batch_headers, frame_batch

names = [f"value {number}".encode() for number in range(1000)]
rows = Rows(
    binary(None, 1000, "keys"), binary(names, 1000, "values"), integers(range(1000), "timestamps"),
    header_column([[("name", None)]] * 1000),
)
data = b"".join(
    frame_batch(each.body, each.record_count, each.base_timestamp, each.max_timestamp)
    for each in encode_rows(rows, lambda part, sizes: None, lambda size: 0, 10_000)
)
batches = [(header, body_of(data, pos, header)) for pos, header in batch_headers(data)]
table = decode_columns(TopicPartition("t", 0), batches, SCHEMA, from_offset=0)
assert table.column("value").to_pylist() == names
assert table.column("headers").to_pylist() == [[{"key": "name", "value": None}]] * 1000
print(RECORD_CODEC, *(module.__file__ for module in KERNEL or ()))
"""


def build(sources: Path, into: Path, **environment: str) -> Path:
    """The unpacked wheel of the package in ``sources``, built without the network."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run(
        [*command, "--disable-pip-version-check", "--wheel-dir", into, sources],
        check=True, capture_output=True, text=True, timeout=scaled(150), env=os.environ | environment,
    )  # fmt: skip
    [wheel] = into.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(into / "unpacked")
    return into / "unpacked"


def run(unpacked: Path, *command: str | Path) -> str:
    """What the command prints when it finds the unpacked wheel first."""
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=scaled(60), env=environment
    ).stdout.strip()


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """As a fresh checkout has them."""
    copy = tmp_path / "protocol"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("*.so", "build", "*.egg-info", "tests", "__pycache__"))
    return copy


@pytest.mark.system
@pytest.mark.timeout(400)
def test_a_wheel_carries_the_kernel_and_one_made_without_a_compiler_works_all_the_same(
    sources: Path, tmp_path: Path
) -> None:
    compiled = build(sources, tmp_path / "compiled", CFLAGS="-O0")
    codec, *modules = run(compiled, sys.executable, "-c", ROUND_TRIP).split(" /")
    assert codec == "compiled kernel"
    assert [Path("/" + module).is_relative_to(compiled) for module in modules] == [True, True]

    for made in [*sources.glob("build/lib*"), *sources.glob("build/temp*")]:
        shutil.rmtree(made)
    plain = build(sources, tmp_path / "plain", CC="false")
    assert list(plain.glob("raylog/protocol/batches/*_kernel.py"))
    assert not [path for path in plain.glob("**/*") if path.suffix in {".so", ".c", ".pyd"}]
    assert run(plain, sys.executable, "-c", ROUND_TRIP) == "pure Python"
    assert run(plain, RAYLOG, "--version").endswith("(record codec: pure Python)")
