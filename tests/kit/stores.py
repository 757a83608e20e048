"""What contract tests are given: a way to open clients of one tree, in memory or in ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable

from raylog.coordination.store import MetadataStore

OpenStore = Callable[[], MetadataStore]
