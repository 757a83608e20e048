"""The record codec's ways between batches and columns, to hold one against the other."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import raylog.protocol.batches
from raylog.client.batches.decode import Decode, decode_by
from raylog.client.batches.encode import Encode, encode_by
from raylog.client.batches.numpy_decode import decode_by_numpy
from raylog.client.batches.numpy_encode import encode_by_numpy
from raylog.protocol.batches.compiled import KERNEL


def uncompiled(name: str) -> ModuleType:
    """The kernel's module ``name``, run as the Python source that it also is."""
    path = Path(raylog.protocol.batches.__file__).with_name(f"{name}.py")
    spec = spec_from_file_location(f"uncompiled_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert not module.COMPILED
    return module


DECODERS: dict[str, Decode] = {"numpy": decode_by_numpy, "source": decode_by(uncompiled("decode_kernel"))}
"""What :func:`raylog.client.batches.decode.decode_columns` may have behind it."""
ENCODERS: dict[str, Encode] = {"numpy": encode_by_numpy, "source": encode_by(uncompiled("encode_kernel"))}
"""What :func:`raylog.client.batches.encode.encode_rows` may have behind it."""
if KERNEL is not None:
    DECODERS["compiled"] = decode_by(KERNEL[0])
    ENCODERS["compiled"] = encode_by(KERNEL[1])
