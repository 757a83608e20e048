"""What the tests of groups of Kafka clients share: brokers that coordinate them, over one store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kit.group_brokers import Brokers
from raylog.broker.groups.coordinator import GroupCoordinator


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    """None is started yet."""
    brokers = Brokers()
    yield brokers
    brokers.stop()


@pytest.fixture
def one(brokers: Brokers) -> GroupCoordinator:
    """Of broker 1, which is started."""
    return brokers.start(1)
