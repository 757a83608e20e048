"""Search for bytes that break a reader, for so many executions or seconds, within bounded memory.

    python tests/fuzz/run.py                          all targets, 100,000 executions each
    python tests/fuzz/run.py batch handlers --executions 1000000
    python tests/fuzz/run.py --keep                   afterwards, minimise what was found into tests/fuzz/corpus
    python tests/fuzz/child.py batch FILE             feed one input, such as a finding

One target runs at a time, at the lowest priority, in a process of its own. What it meets on the way is kept in the work
directory, so that the next run goes on where this one ended. Each run adds a line to ``runs.jsonl`` there. The last
line printed is one JSON object; the exit code is 1 when something was found.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha1
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from fuzz.targets import TARGETS  # noqa: E402 (the path comes first)

CORPUS = HERE / "corpus"
CORPUS_BYTES = 48 << 10
"""How much of a target's corpus is committed at most, smallest inputs first."""

RSS_LIMIT_MB = 1024
INPUT_TIMEOUT_S = 20


@dataclass(frozen=True)
class Run:
    """What one run of one target came to."""

    target: str
    executions: int
    seconds: float
    peak_rss_mb: int
    findings: list[str]
    """Paths of inputs that broke something."""


def fill_work_directory(work: Path, name: str) -> Path:
    """The directory of the target's inputs, with its seeds and the committed corpus in it."""
    directory = work / name
    directory.mkdir(parents=True, exist_ok=True)
    for seed in TARGETS[name].seeds():
        (directory / sha1(seed).hexdigest()).write_bytes(seed)
    if (CORPUS / name).is_dir():
        shutil.copytree(CORPUS / name, directory, dirs_exist_ok=True)
    return directory


def child(name: str, *options: str | Path) -> list[str]:
    """The command that runs a target under atheris."""
    return [sys.executable, str(HERE / "child.py"), name, *map(str, options)]


def fuzz(name: str, work: Path, *, executions: int, seconds: int) -> Run:
    """Run one target; its log goes to ``NAME.log`` in the work directory."""
    inputs = fill_work_directory(work, name)
    found = work / "findings"
    found.mkdir(exist_ok=True)
    before = set(found.iterdir())
    options = [
        f"-runs={executions}",
        f"-max_total_time={seconds}",
        f"-max_len={TARGETS[name].max_len}",
        f"-rss_limit_mb={RSS_LIMIT_MB}",
        f"-timeout={INPUT_TIMEOUT_S}",
        f"-artifact_prefix={found / name}-",
        "-print_final_stats=1",
        "-reload=0",
    ]
    begun = time.monotonic()
    memory = Path("/dev/shm")  # a disk would be the slowest part; and libFuzzer ends without tidying up
    with (
        tempfile.TemporaryDirectory(prefix="raylog-fuzz-", dir=memory if memory.is_dir() else None) as scratch,
        (work / f"{name}.log").open("w") as log,
    ):
        environment = os.environ | {"TMPDIR": scratch}
        subprocess.run(
            child(name, *options, inputs), check=False, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
    text = (work / f"{name}.log").read_text(errors="replace")
    findings = sorted(str(path) for path in set(found.iterdir()) - before)
    done = _last_number(r"stat::number_of_executed_units: (\d+)", text) or _last_number(r"^#(\d+)\t", text)
    if "INITED" not in text and not findings:
        raise SystemExit(f"{name} did not start; its log ends:\n{text[-2000:]}")
    rss = max(_last_number(r"stat::peak_rss_mb:\s+(\d+)", text), _last_number(r"rss: (\d+)Mb", text))
    run = Run(name, done, round(time.monotonic() - begun, 1), rss, findings)
    with (work / "runs.jsonl").open("a") as runs:
        runs.write(json.dumps(asdict(run)) + "\n")
    return run


def _last_number(pattern: str, text: str) -> int:
    numbers = re.findall(pattern, text, re.MULTILINE)
    return int(numbers[-1]) if numbers else 0


def keep(name: str, work: Path) -> int:
    """Make the committed corpus anew: what reaches more than the seeds do. Answers its bytes."""
    merged = work / "merged" / name
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir(parents=True)
    seeds = {sha1(seed).hexdigest(): seed for seed in TARGETS[name].seeds()}
    for digest, seed in seeds.items():
        (merged / digest).write_bytes(seed)
    subprocess.run(child(name, "-merge=1", merged, work / name), check=True, capture_output=True)
    target = CORPUS / name
    shutil.rmtree(target, ignore_errors=True)
    kept = 0
    for path in sorted(merged.iterdir(), key=lambda path: path.stat().st_size):
        size = path.stat().st_size
        if path.name not in seeds and kept + size <= CORPUS_BYTES:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target / path.name)
            kept += size
    return kept


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of: {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--executions", type=int, default=100_000, help="at most, for each target")
    parser.add_argument("--seconds", type=int, default=0, help="at most, for each target; 0: no limit")
    parser.add_argument("--work", type=Path, default=Path(".raylog/fuzz"), help="where inputs, logs and findings go")
    parser.add_argument("--keep", action="store_true", help="minimise the inputs into the committed corpus")
    options = parser.parse_args(arguments)
    names = options.targets or list(TARGETS)
    if unknown := set(names) - TARGETS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(TARGETS)}")
    os.nice(19)
    options.work.mkdir(parents=True, exist_ok=True)
    runs = []
    for name in names:
        run = fuzz(name, options.work, executions=options.executions, seconds=options.seconds)
        runs.append(run)
        print(f"{name:20} {run.executions:>10,} executions {run.seconds:>8.1f} s {run.peak_rss_mb:>5} MB", flush=True)
        for path in run.findings:
            print(f"    found {path}: see {options.work / name}.log")
        if options.keep:
            print(f"    corpus of {keep(name, options.work):,} bytes")
    findings = [path for run in runs for path in run.findings]
    total = {
        "executions": sum(run.executions for run in runs),
        "seconds": round(sum(run.seconds for run in runs), 1),
        "peak_rss_mb": max(run.peak_rss_mb for run in runs),
        "findings": findings,
    }
    print(json.dumps(total))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
