"""The product's long-lived threads without threads: the engine calls their steps, and some of these may fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raylog.coordination.loops import Loop, Loops
from raylog.protocol.errors import RaylogError

from .engine import Violation
from .local import StepFailed


class SimLoop(Loop):
    """Its steps are called by :meth:`turn`; what one leaves half done is mended as in a thread."""

    _runs = _turns = False

    def start(self) -> None:
        self._runs = True

    def join(self, timeout_s: float | None = None) -> None:
        """Told to stop, it does what is left; nothing more comes from a step that is under way."""
        while self._runs and not self._turns and self.turn():
            pass

    @property
    def was_started(self) -> bool:
        return self._runs

    @property
    def is_alive(self) -> bool:
        return self._runs

    def turn(self) -> bool:
        """One step; False after the last one."""
        self._turns = True
        try:
            self._owner._before_step(self.name)
            self._runs = self._step()
        except Exception as error:  # noqa: BLE001 (as in Loop)
            self._note(error)
            self._mend(error)
            self._runs = not self.stopping.is_set()
        finally:
            self._turns = False
        if not self._runs:
            self._owner.guarded(self.name, self._finish)
        return self._runs


class SimLoops(Loops):
    """Those of one process, by name."""

    kind = SimLoop

    def __init__(self, before_step: Callable[[str], None]) -> None:
        super().__init__(reports=Unheard(), before_step=before_step, now_s=lambda: 0.0)
        self.made: dict[str, SimLoop] = {}

    def loop(
        self,
        name: str,
        step: Callable[[], bool],
        *,
        vital: bool = True,
        mend: Callable[[Exception], None] = lambda error: None,
        finish: Callable[[], None] = lambda: None,
        last_pause_s: float = 0.0,
    ) -> SimLoop:
        self.made[name] = made = self.kind(self, name, step, vital, mend, finish, last_pause_s)
        return made


class Unheard:
    """The reports of loops. What nobody foresaw is a defect."""

    def failed(self, loop: str, error: BaseException, in_a_row: int) -> None:
        if not isinstance(error, StepFailed | RaylogError):
            raise Violation("a thread fails by what is foreseen only", f"{loop}: {error!r}") from error

    def recovered(self, *args: Any) -> None: ...

    def gone(self, *args: Any) -> None: ...
