"""Ctrl-C, or what a signal handler does, at a chosen line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType, FunctionType, ModuleType
from typing import Any


def _ctrl_c() -> None:
    raise KeyboardInterrupt


class Interrupt:
    """Raises KeyboardInterrupt in this thread, or runs ``handler``, at the nth line that code of these modules runs,
    once.

    Not in functions of ``but``: Python runs signal handlers, and switches to other threads, where a function begins,
    where a loop goes round and behind a call, and so in no line of these.
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

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self._files or self._left < 0:
            return None
        if event == "line" and frame.f_code not in self._but:
            self._left -= 1
            if self._left < 0:
                self._handler()
        return self._trace
