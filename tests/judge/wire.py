"""One connection to a broker: a request at a time, and what comes in its place where no answer comes."""

from __future__ import annotations

import itertools
import select
import socket
import struct
from typing import Any

from judge.bases import ask
from judge.steps import Step, Tree, encode
from raylog.protocol.errors import RaylogError
from raylog.protocol.wire.messages import decode_response

__all__ = ["ANSWER_S", "PATIENT_S", "PROBE", "Wire"]

ANSWER_S = 5.0
PATIENT_S = 60.0
"""For an answer that is known to come, however busy the machine is."""
API_VERSIONS, PRODUCE = 18, 0
PROBE = ask(API_VERSIONS, 0)


class Wire:
    """Behind a Produce, which may have no answer, goes a request that always has one."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._sock = socket.create_connection(address, ANSWER_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._numbers = itertools.count(1)
        self._sent = 0

    def close(self) -> None:
        self._sock.close()

    def answer_to(self, step: Step) -> Any:
        """The answer to a request that has one."""
        self.send(step, step.tree)
        answer = self.receive(step, PATIENT_S)
        assert not isinstance(answer, str), f"API {step.api}: {answer}"
        return answer

    def send(self, step: Step, tree: Tree) -> None:
        self._sent = next(self._numbers)
        frame = encode(step, tree, self._sent)
        if step.api == PRODUCE:
            frame += encode(PROBE, PROBE.tree, next(self._numbers))
        self._sock.sendall(frame)

    def has_answer(self, patience_s: float) -> bool:
        """Whether an answer, or the connection's end, is there, or comes in time."""
        return bool(select.select([self._sock], [], [], patience_s)[0])

    def receive(self, step: Step, patience_s: float = ANSWER_S) -> Any:
        """The answer as kio reads it, or what ``asker`` says is in its place."""
        self._sock.settimeout(patience_s)
        try:
            frame = self._frame()
            if int.from_bytes(frame[:4], "big") != self._sent:
                return "nothing"
            if step.api == PRODUCE:
                self._frame()  # of the probe
        except TimeoutError:
            return "waits"
        except OSError:
            return "closed"
        try:
            return decode_response(step.api, _version_of(step, frame), frame)[1]
        except (RaylogError, ValueError) as error:
            return f"unreadable: {error}"

    def _frame(self) -> bytes:
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            more = self._sock.recv(count - len(data))
            if not more:
                raise ConnectionResetError("the broker ended the connection")
            data += more
        return bytes(data)


def _version_of(step: Step, frame: bytes) -> int:
    """ApiVersions is answered at version 0 where its version is not known (KIP-511)."""
    return 0 if step.api == API_VERSIONS and frame[4:6] == b"\0\x23" else step.version
