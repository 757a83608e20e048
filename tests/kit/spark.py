"""What tests with Spark share: their marks, and a Ray cluster of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raylog.broker import local_ray
from raylog.broker.cluster_file import RayInfo
from raylog.coordination.java import find_java
from raylog.coordination.ray_token import ray_token

SPARK_MARKS = [
    pytest.mark.system,
    pytest.mark.timeout(240),
    # pyspark 3.5 leaves its sockets to the garbage collector, and compares versions by distutils.
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning",
        "ignore::pytest.PytestUnraisableExceptionWarning",
        "ignore:distutils Version classes are deprecated:DeprecationWarning",
    ),
]


@contextmanager
def ray_with_java(directory: Path) -> Iterator[RayInfo]:
    """A Ray cluster of one node in ``directory``, with Java on its PATH; this process may connect to it."""
    environment = find_java().environment(os.environ)
    environment.pop("RAY_AUTH_MODE", None)
    head = local_ray.start(directory, environment)
    try:
        with ray_token(head.auth_token_path):
            yield head
    finally:
        local_ray.stop(head)
