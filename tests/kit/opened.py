"""What is opened in parts, and closed whole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["Opened"]


class Opened(ABC):
    """``with`` opens it; what was opened is closed at the end, and also where a part cannot be opened."""

    @abstractmethod
    def open(self) -> None:
        """Part by part."""

    @abstractmethod
    def close(self) -> None:
        """Whatever of it was opened."""

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
