"""What aiokafka's suite needs of the package docker: a container that is no container, but a raylog broker.

The broker runs already; the suite learns its address from the fixture ``unused_port``, which the plugin beside this
module replaces. Whatever the suite runs inside the container fails, save the script that makes certificates: raylog
has no TLS, and the tests that would use them are left out.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Container:
    """The broker, as far as the suite looks at its container."""

    def exec_run(self, command: Any, **_: Any) -> tuple[int, bytes]:
        """Exit code and output of a command inside."""
        if "gen-ssl-certs.sh" in str(command):
            return 0, b""
        return 1, b"there is no container: the broker is raylog"

    def stop(self) -> None:
        """Who started the broker stops it."""


class Client:
    """A docker client that runs what runs already."""

    images = SimpleNamespace(pull=lambda image: None)

    @property
    def containers(self) -> Client:
        return self

    def run(self, **_: Any) -> Container:
        return Container()

    def close(self) -> None:
        """Nothing is open."""


def from_env() -> Client:
    return Client()


models = SimpleNamespace(containers=SimpleNamespace(Container=Container))
