"""The token by which a driver gets into a Ray cluster that asks for one.

Ray has no argument for it: `ray.init` goes by RAY_AUTH_MODE, RAY_AUTH_TOKEN and RAY_AUTH_TOKEN_PATH, which it
reads once in a process, when it is imported or soon after.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

__all__ = ["ray_token"]


@contextmanager
def ray_token(path: str) -> Iterator[None]:
    """Connect to Ray within it: with the token in the file ``path``, or as the environment says when it is "".

    The connection lives on when the environment is as it was before. Not for a process that is connected.
    """
    before = {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")}
    if path:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=path)
        os.environ.pop("RAY_AUTH_TOKEN", None)  # would go before the file
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
