"""Messages between processes: requests and their answers, as values or bytes that nobody shares.

A request is lost, late, doubled or overtaken; so is its answer, except that whoever asked takes the first one only and
nothing after its time is over, as a client does that closes its connection. Ways can be cut in one direction. A process
that is dead refuses, if its machine runs and the way is open: that is how others notice (D9).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from .engine import Engine, Process, Thread

Answer = Callable[[Any], None]
LATENCIES = (0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 5, 12)
FAR = (10, 40, 120, 250)
SLOW = (30, 80, 200, 600, 1500)


class Server(Protocol):
    """A process that can be asked."""

    process: Process
    serving: Thread

    def serve(self, kind: str, request: Any, answer: Answer) -> None:
        """Handle a request, and call ``answer`` once, now or later."""


@dataclass
class Traffic:
    """How bad the network is at the moment; faults change it."""

    lost: float = 0.0
    doubled: float = 0.0
    slow: float = 0.0
    far: set[int] = field(default_factory=set)
    """Nodes to and from which everything is late."""
    cuts: set[tuple[int, int]] = field(default_factory=set)
    """Ways, from node to node, that nothing passes."""
    deaf: set[int] = field(default_factory=set)
    """Brokers that no controller's messages reach, but its own; all else does."""
    mute: set[int] = field(default_factory=set)
    """Brokers whose proposals reach no controller, but themselves."""


class Network:
    """Who is where. Nodes are numbers: brokers have their ids, clients are above 100."""

    def __init__(self, engine: Engine, traffic: Traffic) -> None:
        self._engine = engine
        self._traffic = traffic
        self.servers: dict[int, Server] = {}
        """The newest process at each node, dead or alive; none while the machine is down."""

    def is_open(self, source: int, target: int) -> bool:
        """Nothing comes between a process and itself."""
        return source == target or (source, target) not in self._traffic.cuts

    def _passes(self, source: int, target: int, kind: str) -> bool:
        traffic = self._traffic
        is_cut = (kind == "control" and target in traffic.deaf) or (kind == "propose" and source in traffic.mute)
        return self.is_open(source, target) and (source == target or not is_cut)

    def refuses(self, source: int, target: int) -> bool:
        """True when a connection from ``source`` is refused: the machine runs, and nobody listens there."""
        server = self.servers.get(target)
        is_open = self.is_open(source, target) and self.is_open(target, source)
        return is_open and server is not None and not server.process.alive

    def call(
        self, source: int, thread: Thread, target: int, kind: str, request: Any, timeout: int, done: Answer
    ) -> None:
        """Ask; ``done`` gets the answer, or None when there is none in time. It runs on ``thread``."""
        engine, traffic = self._engine, self._traffic
        open_ends = [done]

        def finish(answer: Any) -> None:
            if open_ends:
                open_ends.pop()(answer)

        def respond(answer: Any) -> None:
            if self.is_open(target, source) and not engine.chance(traffic.lost):
                engine.at(self._latency(target, source), thread, lambda: finish(answer))

        def arrive() -> None:
            if not self._passes(source, target, kind):
                return
            server = self.servers.get(target)
            if server is None:
                return
            if not server.process.alive:
                if self.is_open(target, source):
                    engine.at(self._latency(target, source), thread, lambda: finish(None))
                return
            engine.enter(server.serving, lambda: server.serve(kind, request, respond))

        for _ in range(2 if engine.chance(traffic.doubled) else 1):
            if not engine.chance(traffic.lost):
                engine.at(self._latency(source, target), WIRE, arrive)
        engine.at(timeout, thread, lambda: finish(None))

    def _latency(self, source: int, target: int) -> int:
        random, far = self._engine.random, self._traffic.far
        if far and (source in far or target in far):
            return random.choice(FAR)
        return random.choice(SLOW if self._engine.chance(self._traffic.slow) else LATENCIES)


WIRE = Thread(Process("wire"))
"""What is under way belongs to nobody."""
