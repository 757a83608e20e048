"""The simulated network itself."""

from __future__ import annotations

from .engine import Engine
from .network import Network, Traffic


def test_no_cut_comes_between_a_process_and_itself() -> None:
    network = Network(Engine(1), Traffic(cuts={(2, 2), (2, 3)}))
    assert network.is_open(2, 2)
    assert not network.is_open(2, 3)
