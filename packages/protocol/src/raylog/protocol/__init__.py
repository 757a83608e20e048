"""Kafka's record batches, messages, errors and settings, without any I/O.

``batches`` and ``records``: record batches, as bytes and as rows. ``wire``: requests and responses. Files beside them:
``errors`` (every error and its Kafka code), ``ids``, ``settings``, ``texts`` and ``logs`` (what may be told),
``tables``. Every other package may call this one; it calls none. Begin with ``records``.
"""

import sys
from importlib import import_module


def _import_kio_alone() -> None:
    """Keep kio from importing hypothesis, for its own tests' sake, wherever that is installed.

    It costs a second of CPU in each process and leaves a directory `.hypothesis` where that runs. Processes which
    have hypothesis already (tests) are left alone.
    """
    if "hypothesis" not in sys.modules:
        sys.modules["hypothesis"] = None  # type: ignore[assignment]  # makes an import of it fail
        try:
            import_module("kio.static.primitive")
        finally:
            del sys.modules["hypothesis"]


_import_kio_alone()
