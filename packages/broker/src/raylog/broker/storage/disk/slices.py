"""A part of a file on its way to a socket."""

from __future__ import annotations

from raylog.broker.storage.disk.files import File
from raylog.protocol.ids import FilePosition

__all__ = ["FileSlice"]


class FileSlice:
    """Bytes ``position … position + length`` of a file, for sendfile; holds the file open until released.

    Whoever gets a slice must call :meth:`release` exactly once, also on failure; the rest is idempotent.
    """

    __slots__ = ("file", "length", "position")

    def __init__(self, file: File, position: FilePosition, length: int) -> None:
        """Takes over one hold on ``file``: the caller has called ``file.acquire()``."""
        self.file = file
        self.position = position
        self.length = length

    def __len__(self) -> int:
        return self.length

    def fileno(self) -> int:
        """The descriptor to send from."""
        return self.file.fileno()

    def read(self) -> bytes:
        """A copy of the bytes; shorter only if the file was truncated meanwhile. Does not release."""
        return self.file.pread(self.length, self.position)

    def release(self) -> None:
        """Give the file back."""
        self.file.release()

    def __repr__(self) -> str:
        return f"FileSlice({self.file.path.name}, {self.position}+{self.length})"
