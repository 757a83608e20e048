"""Is the compiled kernel of the record codec here? Without it everything works, more slowly (D12)."""

from __future__ import annotations

from types import ModuleType


def _compiled_modules() -> tuple[ModuleType, ModuleType] | None:
    try:
        from raylog.protocol.batches import decode_kernel, encode_kernel  # noqa: PLC0415 (their sources can't do without Cython)
    except ImportError:
        return None
    return (decode_kernel, encode_kernel) if decode_kernel.COMPILED and encode_kernel.COMPILED else None


KERNEL = _compiled_modules()
"""The modules ``decode_kernel`` and ``encode_kernel``; None where no compiler was when the package was built."""

RECORD_CODEC = "pure Python" if KERNEL is None else "compiled kernel"
"""What turns batches into columns and back, in the words of ``raylog --version``."""
