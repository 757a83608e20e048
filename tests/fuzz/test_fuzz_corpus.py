"""What fuzzing found so far, again: every seed, the minimised corpus, all past crashers; in little time and memory."""

from __future__ import annotations

import logging
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from fuzz.run import main
from fuzz.targets import TARGETS
from fuzz.targets_broker import forget_broker

HERE = Path(__file__).parent
LONGEST_S = 5.0
"""For one input, on a machine that has other work, too."""

MORE_MB = 200
"""How much the process may grow over all inputs of one target."""


def inputs(name: str) -> Iterator[tuple[str, bytes]]:
    """Where each input of the target is from, and its bytes."""
    for number, seed in enumerate(TARGETS[name].seeds()):
        yield f"seed {number}", seed
    for kind in ("corpus", "crashers"):
        for path in sorted((HERE / kind / name).glob("*")):
            yield str(path.relative_to(HERE)), path.read_bytes()


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    """Targets keep a broker from input to input and quieten the log; tests after them must not notice."""
    log = logging.getLogger("raylog")
    before = log.level, log.propagate
    yield
    forget_broker()
    log.setLevel(before[0])
    log.propagate = before[1]


@pytest.mark.parametrize("name", TARGETS)
def test_no_known_input_breaks_its_reader(name: str) -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for where, data in inputs(name):
        begun = time.process_time()
        try:
            TARGETS[name].run(data)
        except Exception as error:
            raise AssertionError(f"{name} breaks at {where}: {error!r}") from error
        assert time.process_time() - begun < LONGEST_S, where
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) >> 10 < MORE_MB


def test_the_corpus_is_small_and_belongs_to_targets() -> None:
    found = [path for kind in ("corpus", "crashers") for path in (HERE / kind).glob("*/*")]
    assert {path.parent.name for path in found} <= TARGETS.keys()
    assert sum(path.stat().st_size for path in found) < 1 << 20


@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not to be had here")
def test_the_runner_counts_executions_and_keeps_what_it_meets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = subprocess.run(
        [sys.executable, HERE / "run.py", "records", "--executions", "3000", "--work", tmp_path],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert '"executions": 3000' in run.stdout.splitlines()[-1]
    assert len(list((tmp_path / "records").iterdir())) > len(list(TARGETS["records"].seeds()))
    with pytest.raises(SystemExit):
        main(["no-such-target"])
    assert "unknown: no-such-target" in capsys.readouterr().err
