"""Where a broker listens and what it tells clients; ports are chosen once and kept."""

from __future__ import annotations

import errno
import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from raylog.broker.config import ADVERTISED_LISTENERS, LISTENERS
from raylog.broker.handlers.context import Ports
from raylog.broker.net.server import Listener, SocketServer
from raylog.coordination.host.free_ports import FREE_PORTS
from raylog.coordination.host.loops import Loops
from raylog.coordination.metadata.model import Endpoint
from raylog.protocol.errors import InvalidConfig, RaylogError
from raylog.protocol.settings import Settings
from raylog.protocol.texts import host_port

__all__ = ["WILDCARDS", "bind", "check_listeners", "endpoints", "format_listener", "parse_listeners"]

TRIES = 50
WILDCARDS = ("", "0.0.0.0", "::")
"""Hosts that stand for all of a machine's addresses."""
NOT_BUILT = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Kafka's security protocols that a listener of that name would have to speak."""

_LISTENER = re.compile(r"(?P<name>[A-Za-z0-9_]+)://\[?(?P<host>[^\]/]*?)\]?:(?P<port>\d{1,5})")


class AddressInUse(RaylogError):
    """Another process listens where this broker should."""


def parse_listeners(texts: Sequence[str], setting: str = LISTENERS.name) -> list[Listener]:
    """Listeners from ``NAME://host:port`` each. Raises InvalidConfig, naming ``setting``."""
    listeners = []
    for text in texts:
        match = _LISTENER.fullmatch(text)
        if match is None or int(match["port"]) > 65535:
            raise InvalidConfig(f"{setting}={text!r} must be NAME://host:port, such as PLAINTEXT://127.0.0.1:9092")
        name = match["name"].upper()
        if name in NOT_BUILT:
            raise InvalidConfig(f"{setting}={text!r}: {name} is not available: listeners speak PLAINTEXT only")
        listeners.append(Listener(name, match["host"], int(match["port"])))
    names = [listener.name for listener in listeners]
    if not names or len(set(names)) != len(names):
        raise InvalidConfig(f"{setting} must name at least one listener, and each name once")
    return listeners


def format_listener(listener: Listener) -> str:
    """``NAME://host:port``, as :func:`parse_listeners` reads it."""
    return f"{listener.name}://{host_port(listener.host, listener.port)}"


def bind(settings: Settings, ports: Ports, ports_file: Path, loops: Loops) -> SocketServer:
    """A server bound to the listeners in ``settings``, not accepting yet.

    A port 0 becomes the port of the last time, which ``ports_file`` keeps, or at first a free one. Raises
    InvalidConfig, AddressInUse.
    """
    texts = settings[LISTENERS]
    wanted = parse_listeners(texts)
    saved = _load_ports(ports_file)
    for _ in range(TRIES):
        listeners = [_with_port(listener, saved) for listener in wanted]
        server = SocketServer(listeners, ports, settings, loops)
        try:
            bound = server.bind()
        except OSError as error:
            chosen = any(want.port == 0 and want.name not in saved for want in wanted)
            if error.errno == errno.EADDRINUSE and chosen:
                continue
            raise _refused(listeners, error) from error
        _save_ports(ports_file, {listener.name: listener.port for listener in bound})
        return server
    raise AddressInUse(f"found no free port from {FREE_PORTS.start} to {FREE_PORTS.stop - 1}")


def check_listeners(settings: Settings) -> None:
    """Raises InvalidConfig when `listeners` and `advertised.listeners` cannot be used together, before any is bound."""
    texts = settings[LISTENERS]
    _advertised(settings, parse_listeners(texts))


def endpoints(settings: Settings, bound: Sequence[Listener], host: str) -> tuple[Endpoint, ...]:
    """What clients are told for each listener: its row of `advertised.listeners`, else where it listens.

    ``host`` is this node's own address, told where a listener takes connections at all addresses. An advertised host
    or port that is left out (port 0) is the listener's.
    """
    advertised = _advertised(settings, bound)
    told = []
    for listener in bound:
        wanted = advertised.get(listener.name, listener)
        own_host = host if listener.host in WILDCARDS else listener.host
        told.append(
            Endpoint(
                listener.name, wanted.host if wanted.host not in WILDCARDS else own_host, wanted.port or listener.port
            )
        )
    return tuple(told)


def _advertised(settings: Settings, listening: Sequence[Listener]) -> Mapping[str, Listener]:
    """`advertised.listeners` by name. Raises InvalidConfig."""
    texts = settings[ADVERTISED_LISTENERS]
    if not texts:
        return {}
    told = {told.name: told for told in parse_listeners(texts, ADVERTISED_LISTENERS.name)}
    unknown = sorted(set(told) - {listener.name for listener in listening})
    if unknown:
        raise InvalidConfig(f"{ADVERTISED_LISTENERS.name} names {unknown[0]}, which is not among the listeners")
    for listener in told.values():
        if listener.host in WILDCARDS[1:]:
            raise InvalidConfig(
                f"{ADVERTISED_LISTENERS.name}={format_listener(listener)!r}: nobody can connect to {listener.host}; "
                "name an address that clients reach, or leave the host out for the node's own"
            )
    return told


def _with_port(listener: Listener, saved: Mapping[str, int]) -> Listener:
    if listener.port:
        return listener
    port = saved.get(listener.name) or random.choice(FREE_PORTS)
    return Listener(listener.name, listener.host, port)


def _refused(listeners: Sequence[Listener], error: OSError) -> RaylogError:
    where = ", ".join(host_port(listener.host, listener.port) for listener in listeners)
    if error.errno == errno.EADDRINUSE:
        return AddressInUse(f"cannot listen on {where}: the address is in use; end what uses it or set listeners")
    return InvalidConfig(
        f"cannot listen on {where}: {error.strerror or error}; set listeners to an address of this node"
    )


def _load_ports(path: Path) -> dict[str, int]:
    try:
        return {str(name): int(port) for name, port in json.loads(path.read_text()).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, AttributeError) as error:
        raise RaylogError(f"{path} is damaged ({error}): restore it or delete it to choose new ports") from error


def _save_ports(path: Path, ports: Mapping[str, int]) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(ports) + "\n")
    temporary.replace(path)
