"""Ctrl-C, or what a signal handler does, at a chosen line or at a chosen time."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable
from linecache import getline
from types import FrameType, FunctionType, ModuleType
from typing import Any, Self

AGAIN_S = 0.1


def _ctrl_c() -> None:
    raise KeyboardInterrupt


def _is_with(frame: FrameType) -> bool:
    return getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


class Interrupt:
    """Raises KeyboardInterrupt in this thread, or runs ``handler``, at the nth line that code of these modules runs,
    once.

    Not in functions of ``but``: Python runs signal handlers, and switches to other threads, where a function begins,
    where a loop goes round and behind a call, and so in no line of these. Nor in a line with ``with``, which is run
    again when the block is left: the interpreter's own locks are given back before Python looks for signals.
    """

    def __init__(
        self,
        nth: int,
        *modules: ModuleType,
        handler: Callable[[], object] = _ctrl_c,
        but: Iterable[FunctionType] = (),
    ) -> None:
        self._but = {function.__code__ for function in but}
        self._left = nth
        self._handler = handler
        self._files = {module.__file__ for module in modules}

    @property
    def reached(self) -> bool:
        """Whether there was an nth line."""
        return self._left < 0

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self._files or self.reached:
            return None
        if event == "line" and frame.f_code not in self._but and not _is_with(frame):
            self._left -= 1
            if self.reached:
                self._handler()
        return self._trace


class Strike:
    """Raises KeyboardInterrupt in the main thread once this process has computed for about so long: as Ctrl-C does,
    where Python runs signal handlers, and nowhere else.

    Again and again until the block ends: what a weak reference's callback or a ``__del__`` raises goes no further than
    ``sys.unraisablehook``, which does not hear of it.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s

    def __enter__(self) -> None:
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        self._before = signal.signal(signal.SIGPROF, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_PROF, self._after_s, AGAIN_S)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)
        sys.unraisablehook = self._hook

    def _unraisable(self, what: sys.UnraisableHookArgs) -> None:
        if what.exc_type is not KeyboardInterrupt:
            self._hook(what)


def struck(do: Callable[[], object], after_s: float) -> None:
    """Do it again and again, until an interrupt comes."""
    try:
        with Strike(after_s):
            while True:
                do()
    except KeyboardInterrupt:
        pass
