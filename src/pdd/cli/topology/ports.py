"""Resolving: every port 0 becomes a free one, and every link learns which endpoints are reached across it.

What is written for roles also carries the KV format (``formats``), which a node reads from nowhere else.
"""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Container, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from pdd.cli.topology.wiring import ports
from pdd.core.errors import ConfigError
from pdd.core.topology import LOOPBACK, EngineTable, LinkTable, NodeTable, Topology

_FIRST_PORT = 20_000
_END_PORT = 30_000
"""Below what kernels hand out to outgoing connections, so that no connection takes a port between choice and use."""
_ATTEMPTS = 200


class _Ports:
    """Stays bound to every port of a topology, so that none is chosen twice, but doesn't listen: that is its role's
    right.
    """

    def __init__(self, held: ExitStack, *, taken: Container[int] = ()) -> None:
        """``taken`` are never chosen, though nobody is bound to them."""
        self._held = held
        self._taken = taken
        self._random = random.SystemRandom()

    def fixed(self, host: str, port: int, path: str) -> int:
        """Raises ConfigError if something listens there already."""
        try:
            with _bind_shared(host, port) as probe:
                probe.listen(1)
            self._held.enter_context(_bind_shared(host, port))
        except OSError as error:
            raise ConfigError(
                f"{path} = {port}: can't listen on {host}:{port}: {error.strerror or error}; give another port, or 0 "
                "for any that is free"
            ) from error
        return port

    def free(self, host: str) -> int:
        for _ in range(_ATTEMPTS):
            port = self._random.randrange(_FIRST_PORT, _END_PORT)
            if port in self._taken:
                continue
            try:
                self._held.enter_context(_bind_alone(host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise ConfigError(f"host = {host!r}: can't listen there: {error.strerror or error}") from error
            return port
        raise ConfigError(f"found no free port on {host} between {_FIRST_PORT} and {_END_PORT}")


def _bind_shared(host: str, port: int) -> socket.socket:
    """As the servers do: a port whose old connections still linger is free, one that someone listens on is not."""
    with _closed_on_error(host) as holder:
        _let_share(holder)
        holder.bind((host, port))
        return holder


def _bind_alone(host: str, port: int) -> socket.socket:
    """Only where nobody is bound, be it without listening; from then on a server may."""
    with _closed_on_error(host) as holder:
        holder.bind((host, port))
        _let_share(holder)
        return holder


def _let_share(holder: socket.socket) -> None:
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


@contextmanager
def _closed_on_error(host: str) -> Generator[socket.socket]:
    holder = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        yield holder
    except OSError:
        holder.close()
        raise


def resolve(topology: Topology) -> Topology:
    """The topology with no port 0 left and every link's forwards filled in.

    Fixed ports stay as they are, whoever is bound to them: they may be another machine's.

    Raises:
        ConfigError: a port is 0 on a host that is none of this machine's.
    """
    with ExitStack() as held:
        return _with_free_ports(topology, _Ports(held, taken={port for _, _, port in ports(topology)}))


@contextmanager
def reserved(topology: Topology) -> Generator[Topology]:
    """Resolved, all ports free, and while the context lives no other deployment is given one; roles can listen on them.

    So a port is not lost between its choice and its use, nor while a role is started again.

    Raises:
        ConfigError: a fixed port is in use, or a host is none of this machine's.
    """
    with ExitStack() as held:
        chosen = _Ports(held)
        # Fixed ports first: a free choice must not take one of them.
        for path, host, port in ports(topology):
            if port:
                chosen.fixed(host, port, f"topology {topology.name!r}: {path}")
        yield _with_free_ports(topology, chosen)


def _with_free_ports(topology: Topology, chosen: _Ports) -> Topology:
    router = topology.router
    return msgspec.structs.replace(
        topology,
        nodes=tuple(msgspec.structs.replace(n, port=n.port or chosen.free(n.host)) for n in topology.nodes),
        engines=tuple(msgspec.structs.replace(e, port=e.port or chosen.free(e.host)) for e in topology.engines),
        router=msgspec.structs.replace(router, port=router.port or chosen.free(router.host)),
        links=tuple(_resolve_link(topology, link, chosen) for link in topology.links),
    )


def _resolve_link(topology: Topology, link: LinkTable, chosen: _Ports) -> LinkTable:
    names = [endpoint.name for endpoint in reached_across(topology, link)]
    forwards = {name: link.forwards.get(name) or chosen.free(LOOPBACK) for name in names}
    control = link.control_port or chosen.free(LOOPBACK)
    return msgspec.structs.replace(link, forwards=forwards, control_port=control)


def reached_across(topology: Topology, link: LinkTable) -> Iterator[NodeTable | EngineTable]:
    """Nodes reach each other in both directions; engines are reached by the router only."""
    for node in topology.nodes:
        if node.cluster in link.clusters:
            yield node
    if topology.router.cluster in link.clusters:
        for engine in topology.engines:
            if engine.cluster in link.clusters and engine.cluster != topology.router.cluster:
                yield engine


def write_resolved(topology: Topology, path: Path) -> None:
    """Writes what roles are started from; readable by its owner only, since it may hold API keys."""
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(topology), indent=2) + b"\n")


def read_resolved(path: Path) -> Topology:
    """Reads what ``write_resolved`` wrote.

    Raises:
        ConfigError: it is missing, or not a resolved topology. Whether it makes sense, ``check`` says.
    """
    try:
        topology = msgspec.json.decode(path.read_bytes(), type=Topology)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: not a resolved topology: {error}") from error
    return require_resolved(topology, str(path))


def require_resolved(topology: Topology, file: str) -> Topology:
    """A role can only run from a topology whose every port is fixed: others must find it.

    Raises:
        ConfigError: a port is 0, or a link lacks a forward.
    """
    for path, _, port in ports(topology):
        if port == 0:
            raise ConfigError(f"{file}: {path} = 0: a single role needs fixed ports; `pdd up` chooses free ones")
    for index, link in enumerate(topology.links):
        for endpoint in reached_across(topology, link):
            if endpoint.name not in link.forwards:
                raise ConfigError(
                    f"{file}: links[{index}].forwards.{endpoint.name}: this key is missing: the port on which "
                    f"link {link.name!r} accepts traffic for it; `pdd up` chooses a free one"
                )
    return topology
