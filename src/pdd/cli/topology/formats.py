"""The KV format that a topology carries, held to the one that its model has on this machine."""

from __future__ import annotations

import msgspec

from pdd.cli.topology.ranges import Refuse
from pdd.cli.topology.source import TopologySource
from pdd.cli.topology.wiring import block_tokens_of
from pdd.core.kv_format import KvFormat, abbreviate
from pdd.core.topology import KvFormatTable, Topology
from pdd.engine.catalog import ModelEntry, model_of
from pdd.protocol.compatibility import describe_difference


def with_kv_format(topology: Topology) -> Topology:
    """The same topology, which carries the KV format of its model.

    Raises:
        ConfigError: it carries another already, or there is no such model.
    """
    refuse = TopologySource(file=f"topology {topology.name!r}").refuse
    kv_format = kv_format_of(topology, model_of(topology), refuse)
    return msgspec.structs.replace(topology, kv_format=KvFormatTable.of(kv_format))


def kv_format_of(topology: Topology, model: ModelEntry, refuse: Refuse) -> KvFormat:
    """The KV format of ``model``, one for the whole deployment.

    Raises:
        ConfigError: ``topology`` carries another.
    """
    expected = model.kv_format(block_tokens_of(topology, topology.nodes[0]))
    found = topology.kv_format.kv_format if topology.kv_format is not None else expected
    if found.fingerprint == expected.fingerprint:
        return expected
    difference = describe_difference(found.description, expected.description)
    raise refuse(
        "kv_format",
        f"it is {abbreviate(found.description)!r}, but model {topology.model!r} has "
        f"{abbreviate(expected.description)!r} here: they differ in {difference}; give every machine the same model, "
        "or leave this table out and let `pdd topology resolve` write it",
    )
