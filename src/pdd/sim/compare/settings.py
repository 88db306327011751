"""Where policies are told apart: worlds and requests in which one rule, or another in its place, makes a difference.

All are the packaged topology `apart` under conversations of agents, five turns or so each; each says what is different
about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from pdd.core.topology import Topology
from pdd.core.units import Bytes
from pdd.sim.compare.rivals import Setting
from pdd.sim.compare.systems import with_line_rate
from pdd.sim.workload.conversations import ConversationSpec, Lengths, generate
from pdd.sim.workload.load import find_spec

TOPOLOGY = "apart"
_TURNS_EACH = 5
"""As many users as let each take so many turns: caches, homes and ratchets show only over turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A setting before its extent is known."""

    name: str
    rivals: tuple[str, ...]
    topology: Topology
    spec: ConversationSpec
    requests_per_s: float


def make_settings(apart: Topology, *, num_seeds: int, num_requests: int) -> list[Setting]:
    """All settings, with seeds from 1 on. ``apart`` is the packaged topology of that name."""
    return [
        Setting(
            name=place.name,
            rivals=place.rivals,
            topology=place.topology,
            workloads=[generate(_sized(place, num_requests), seed=seed) for seed in range(1, num_seeds + 1)],
        )
        for place in _places(apart)
    ]


def _sized(place: _Place, num_requests: int) -> ConversationSpec:
    return replace(
        place.spec,
        arrivals=replace(place.spec.arrivals, requests_per_s=place.requests_per_s),
        num_requests=num_requests,
        num_conversations=max(1, num_requests // _TURNS_EACH),
    )


def _places(apart: Topology) -> Sequence[_Place]:
    agents, singular = _spec("agents"), _spec("agents-singular")
    return (
        _Place(
            name="agents: the line three quarters full",
            rivals=("nobody relays", "by hit rate", "relays end at RLD", "relays after 2 s", "least loaded"),
            topology=apart,
            spec=agents,
            requests_per_s=4.0,
        ),
        _Place(
            name="fast: four times the line, where nobody has to wait",
            rivals=("by hit rate",),
            topology=with_line_rate(apart, 40e9),
            spec=agents,
            requests_per_s=4.0,
        ),
        _Place(
            name="forgetful: main decode's nodes forget what prefill's remember",
            rivals=("by hit rate",),
            topology=_with_main_arenas(apart, Bytes(28 * 2**30)),
            spec=agents,
            requests_per_s=2.0,
        ),
        _Place(
            name="long: a tenth of the line and long answers, so relays are long",
            rivals=("always one-shot", "always catch-up"),
            topology=with_line_rate(apart, 1e9),
            spec=replace(agents, answers=Lengths(mean=1500, spread=0.7, least=64, most=4096)),
            requests_per_s=0.4,
        ),
        _Place(
            name="singular: the line full, 3.5 % read 55 K tokens anew and promise to say 128 at most",
            rivals=("with filter", "filter cuts at once"),
            topology=apart,
            spec=_with_promise(singular, 128),
            requests_per_s=5.0,
        ),
    )


def _spec(name: str) -> ConversationSpec:
    spec = find_spec(name)
    assert spec is not None, name
    return spec


def _with_main_arenas(topology: Topology, arena: Bytes) -> Topology:
    """Every node outside of the router's cluster has so much memory."""
    own = topology.router.cluster
    nodes = (
        node if node.cluster == own else msgspec.structs.replace(node, arena_bytes=arena) for node in topology.nodes
    )
    return msgspec.structs.replace(topology, nodes=tuple(nodes))


def _with_promise(spec: ConversationSpec, max_tokens: int) -> ConversationSpec:
    """Singular requests state how little they will say."""
    assert spec.singular is not None
    answers = replace(spec.singular.answers, most=max_tokens)
    return replace(spec, singular=replace(spec.singular, answers=answers, max_tokens=max_tokens))
