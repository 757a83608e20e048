"""The record codec's ways between batches and columns, to hold one against the other."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import raylog.protocol.records
from raylog.client.column_batches import Encode, encode_by
from raylog.client.columns import Decode, decode_by
from raylog.client.numpy_batches import encode_by_numpy
from raylog.client.numpy_columns import decode_by_numpy
from raylog.protocol.compiled import KERNEL


def uncompiled(name: str) -> ModuleType:
    """The kernel's module ``name``, run as the Python source that it also is."""
    path = Path(raylog.protocol.records.__file__).with_name(f"{name}.py")
    spec = spec_from_file_location(f"uncompiled_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert not module.COMPILED
    return module


DECODERS: dict[str, Decode] = {"numpy": decode_by_numpy, "source": decode_by(uncompiled("decode_kernel"))}
"""What :func:`raylog.client.columns.decode_columns` may have behind it."""
ENCODERS: dict[str, Encode] = {"numpy": encode_by_numpy, "source": encode_by(uncompiled("encode_kernel"))}
"""What :func:`raylog.client.column_batches.encode_rows` may have behind it."""
if KERNEL is not None:
    DECODERS["compiled"] = decode_by(KERNEL[0])
    ENCODERS["compiled"] = encode_by(KERNEL[1])
