"""Ctrl-C at a chosen line."""

from __future__ import annotations

import sys
from types import FrameType, ModuleType
from typing import Any


class Interrupt:
    """Raises KeyboardInterrupt in this thread at the nth line that code of these modules runs, once."""

    def __init__(self, nth: int, *modules: ModuleType) -> None:
        self._left = nth
        self._files = {module.__file__ for module in modules}

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self._files or self._left < 0:
            return None
        if event == "line":
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt
        return self._trace
