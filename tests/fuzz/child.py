"""One target under atheris, in a process of its own: ``python tests/fuzz/child.py TARGET [libFuzzer's arguments]``.

libFuzzer never returns: it ends the process, with another code than 0 when it has found something.
"""

from __future__ import annotations

import shlex
import sys
from importlib import import_module
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent.parent))


def main() -> None:
    """What guides the search is instrumented while it is imported: so it is imported here."""
    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["raylog"]):
        target = import_module("fuzz.targets").TARGETS[name]
    again = shlex.join([sys.executable, str(Path(__file__).resolve()), name])  # a merge starts itself anew by a shell
    atheris.Setup([again, *options], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
