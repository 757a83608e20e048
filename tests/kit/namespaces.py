"""Network namespaces on one machine: nodes with addresses of their own, whose ways can be cut one by one.

A node is a namespace joined by a veth pair to a bridge. A cut drops what one node sends to one address (a blackhole
rule in that node), so each direction is cut on its own; what goes the other way still arrives.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess

from kit.opened import Opened

_numbers = itertools.count()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def available() -> bool:
    """Whether this process may make namespaces."""
    return os.geteuid() == 0 and subprocess.run(["ip", "netns"], capture_output=True, check=False).returncode == 0


class Network(Opened):
    """A bridge with two addresses, ``clients`` (from where this process connects) and ``services``; nodes by number."""

    def __init__(self) -> None:
        unique = os.getpid() * 16 + next(_numbers) % 16
        self._name = f"rl{unique % 0xFFFFFF:x}"
        self._prefix = f"10.{64 + unique % 128}.{unique // 128 % 256}"
        self.clients = f"{self._prefix}.254"
        self.services = f"{self._prefix}.253"
        self._nodes: list[int] = []
        self._cuts: list[tuple[int, str]] = []

    def open(self) -> None:
        _ip("link", "add", self._name, "type", "bridge")
        _ip("addr", "add", f"{self.clients}/24", "dev", self._name)
        _ip("addr", "add", f"{self.services}/24", "dev", self._name)
        _ip("link", "set", self._name, "up")

    def close(self) -> None:
        """Take everything away; it must be called after the processes inside have ended."""
        for number in self._nodes:  # a namespace without a name lives while anything of it does, its port with it
            for taken in (("link", "del", self._port(number)), ("netns", "del", self.name(number))):
                with contextlib.suppress(subprocess.CalledProcessError):
                    _ip(*taken)
        self._nodes.clear()
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._name)

    def name(self, number: int) -> str:
        """The namespace of a node."""
        return f"{self._name}-{number}"

    def _port(self, number: int) -> str:
        return f"{self._name}p{number}"

    def address(self, number: int) -> str:
        return f"{self._prefix}.{number + 1}"

    def add(self, number: int) -> None:
        """Make a node."""
        namespace, port = self.name(number), self._port(number)
        _ip("netns", "add", namespace)
        self._nodes.append(number)
        _ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("link", "set", port, "master", self._name, "up")
        _ip("-n", namespace, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "eth0", "up")
        _ip("-n", namespace, "link", "set", "lo", "up")

    def cut(self, number: int, address: str) -> None:
        """Drop what the node sends to ``address`` until :meth:`heal`."""
        _ip("-n", self.name(number), "rule", "add", "to", address, "pref", "10", "blackhole")
        self._cuts.append((number, address))

    def heal(self) -> None:
        """Take all cuts away."""
        while self._cuts:
            number, address = self._cuts.pop()
            _ip("-n", self.name(number), "rule", "del", "to", address, "pref", "10")
