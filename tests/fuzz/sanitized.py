"""The compiled kernel under the address and undefined-behaviour sanitizers: what it may not do, whatever it is fed.

    python tests/fuzz/sanitized.py --seconds 60

Compiles the kernel anew with gcc's sanitizers, into a directory of its own; feeds it every known input of the target
``columns`` and then random mutations of them, checksums made right. A fault ends the process with the sanitizer's
report. The last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parent.parent / "packages/protocol"
FLAGS = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"


def build(work: Path) -> Path:
    """The directory to put first on Python's path."""
    sources = work / "protocol"
    shutil.copytree(PACKAGE, sources, ignore=shutil.ignore_patterns("*.so", "build", "tests", "__pycache__"))
    library = work / "library"
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build", "--build-lib", library],
        cwd=sources, env=os.environ | {"CFLAGS": FLAGS, "LDFLAGS": FLAGS}, check=True,
    )  # fmt: skip
    return library


def preloaded() -> str:
    """The sanitizers' libraries, which must be there before Python is."""
    found = [
        subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return " ".join(found)


def feed(seconds: float, seed: int) -> int:
    """Feed inputs for so long, the known ones first; how many there were."""
    sys.path.insert(0, str(HERE.parent))
    from fuzz.targets_client import CLIENT_TARGETS  # noqa: PLC0415 (only the child, which has the sanitizers, may)
    from kit.kernels import DECODERS, ENCODERS  # noqa: PLC0415
    from raylog.protocol.batches.compiled import KERNEL  # noqa: PLC0415

    assert KERNEL is not None
    assert "library" in str(KERNEL[0].__file__), "the kernel is not the one that was just built"
    for ways in (DECODERS, ENCODERS):
        del ways["source"]  # it checks bounds itself, slowly
    target = CLIENT_TARGETS["columns"]
    known = [*target.seeds(), *(path.read_bytes() for path in sorted((HERE / "corpus/columns").glob("*")))]
    for data in known:
        target.run(data)
    fed = len(known)
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data = bytearray(chance.choice(known))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data)) if data else 0
            match chance.randrange(4):
                case 0:
                    data[at : at + 1] = bytes([chance.randrange(256)])
                case 1:
                    del data[at : at + chance.randint(1, 8)]
                case 2:
                    data[at:at] = chance.choice([b"\xff" * 9 + b"\x01", b"\x01", b"\x80\x00", chance.randbytes(4)])
                case 3:
                    other = chance.choice(known)
                    data[at:] = other[min(at, len(other)) :]
        target.run(bytes(data))
        fed += 1
    return fed


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps({"inputs": feed(options.seconds, options.seed)}))
        return
    with tempfile.TemporaryDirectory(prefix="raylog-sanitized-") as work:
        environment = {
            "PYTHONPATH": str(build(Path(work))),
            "LD_PRELOAD": preloaded(),
            "PYTHONMALLOC": "malloc",  # so that what lies beside a buffer is guarded
            "ASAN_OPTIONS": "detect_leaks=0",
        }
        command = [sys.executable, __file__, "--child", "--seconds", str(options.seconds), "--seed", str(options.seed)]
        sys.exit(subprocess.run(command, env=os.environ | environment, check=False).returncode)


if __name__ == "__main__":
    main()
