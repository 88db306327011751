"""Which topology a command runs: the one that was named, or the packaged one of the engine that was asked for."""

from __future__ import annotations

from pdd.cli.topology.file import DEFAULT_TOPOLOGY, load_topology
from pdd.cli.topology.wiring import Exposure
from pdd.core.errors import ConfigError
from pdd.core.topology import Topology

_PACKAGED = {"embedded": DEFAULT_TOPOLOGY, "vllm": "vllm", "mixed": "mixed"}


def choose_topology(engine: str | None, topology: str | None, *, exposure: Exposure = Exposure.LOOPBACK) -> Topology:
    """Loads and checks ``topology``, or what ``engine`` (one of ``options.ENGINE_CHOICES``) stands for.

    Raises:
        ConfigError: both are given, there is no such file, or something in it is wrong.
    """
    if topology is None:
        return load_topology(_PACKAGED[engine or "embedded"], exposure=exposure)
    if engine is not None:
        raise ConfigError(
            f"--engine {engine}: topology {topology!r} says itself which engines run; give one of the two"
        )
    return load_topology(topology, exposure=exposure)
