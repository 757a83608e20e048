"""What a client for asyncio refuses because it would wait for ever: another event loop than its own."""

from __future__ import annotations

import asyncio

from raylog.protocol.errors import RaylogError


class LoopGuard:
    """Knows the loop that a client was made in. Its sockets are watched there: in any other loop nothing comes."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.loop = asyncio.get_running_loop()

    def check(self) -> None:
        """Raises RaylogError in another loop."""
        if asyncio.get_running_loop() is not self.loop:
            raise RaylogError(
                f"this {self._what} was made in another event loop; make one in each (asyncio.run makes a new loop)"
            )
