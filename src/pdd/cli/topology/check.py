"""Whether a whole topology makes sense: what ``wiring`` checks, the model, and what engines and router make of both.

Each check raises at the first thing that is wrong, through ``refuse(path, right, value=...)``, which knows the file.
"""

from __future__ import annotations

import msgspec

from pdd.cli.topology.formats import kv_format_of
from pdd.cli.topology.ranges import Refuse
from pdd.cli.topology.wiring import Exposure, block_tokens_of, check_addresses, check_arena, check_roles, check_shape
from pdd.core.errors import ConfigError
from pdd.core.kv_format import abbreviate
from pdd.core.request import Role
from pdd.core.topology import EngineKind, EngineTable, Topology
from pdd.engine.catalog import ModelEntry, embedded_weights, model_of
from pdd.engine.models.sources import NoWeights
from pdd.sim.profile import ModelProfile, load_model

_VLLM_KEYS = ("cache_block_tokens", "tensor_parallel", "vllm_arguments")
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(EngineTable)}


def check_topology(topology: Topology, refuse: Refuse, exposure: Exposure) -> None:
    """Raises ConfigError at the first thing that can't work."""
    check_shape(topology, refuse)
    _check_front_door(topology, refuse)
    check_roles(topology, refuse, tuple(Role))
    check_addresses(topology, refuse, exposure)
    model = _check_model(topology, refuse)
    _check_kinds(topology, model, refuse)
    _check_formats(topology, model, refuse)
    _check_arenas(topology, model, refuse)
    _check_caches(topology, refuse)


def check_simulated_topology(topology: Topology, refuse: Refuse) -> None:
    """Raises ConfigError at the first thing that can't be simulated. Its hardware is whoever reads it to check.

    Nothing listens and nothing is allocated, so ports and hosts don't matter, and arenas only have to be large enough;
    and since same-datacenter deployments are simulated for comparison, relay decode may be missing.
    """
    check_shape(topology, refuse)
    _check_front_door(topology, refuse)
    check_roles(topology, refuse, (Role.PREFILL, Role.MAIN_DECODE))
    _check_simulated_kinds(topology, refuse)
    for index, node in enumerate(topology.nodes):
        if block_tokens_of(topology, node) != block_tokens_of(topology, topology.nodes[0]):
            raise refuse(f"nodes[{index}].block_tokens", "nodes of one deployment must agree", value=node.block_tokens)
    if topology.kv_format is not None:
        raise refuse("kv_format", "a simulated deployment's blocks are as large as its model's profile says")
    _check_arenas(topology, _check_profile(topology, refuse), refuse)
    _check_caches(topology, refuse)


def _check_front_door(topology: Topology, refuse: Refuse) -> None:
    """Who may call the router."""
    _check_tenants(topology, refuse)
    _check_callers(topology, refuse)


def _check_tenants(topology: Topology, refuse: Refuse) -> None:
    from pdd.router.api.tenants import Tenants

    try:
        Tenants(topology.router.tenants)
    except ConfigError as error:
        raise refuse("router.tenants", str(error).removeprefix("router.tenants: ")) from error


def _check_callers(topology: Topology, refuse: Refuse) -> None:
    from pdd.router.api.callers import read_host, read_origin

    router = topology.router
    for key, names, read in (
        ("origins", router.allowed_origins, read_origin),
        ("hosts", router.allowed_hosts, read_host),
    ):
        for index, name in enumerate(names):
            try:
                read(name)
            except ConfigError as error:
                raise refuse(f"router.allowed_{key}[{index}]", str(error)) from error


def _check_model(topology: Topology, refuse: Refuse) -> ModelEntry:
    try:
        model = model_of(topology)
    except ConfigError as error:
        raise refuse("model", str(error), value=topology.model) from error
    if topology.max_model_tokens > model.max_model_tokens:
        raise refuse(
            "max_model_tokens",
            f"model {model.name!r} takes at most {model.max_model_tokens} tokens",
            value=topology.max_model_tokens,
        )
    return model


def _check_profile(topology: Topology, refuse: Refuse) -> ModelProfile:
    try:
        return load_model(topology.model)
    except ConfigError as error:
        raise refuse("model", str(error), value=topology.model) from error


def _check_kinds(topology: Topology, model: ModelEntry, refuse: Refuse) -> None:
    first = topology.engines[0]
    for index, engine in enumerate(topology.engines):
        path = f"engines[{index}].kind"
        if engine.kind is EngineKind.MODELLED:
            raise refuse(path, "modelled engines only compute time: `pdd sim run` takes them", value=engine.kind.value)
        if engine.hardware is not None:
            raise refuse(f"engines[{index}].hardware", "only modelled engines have a hardware profile")
        if engine.kind is EngineKind.EMBEDDED:
            _check_embedded(model, path, refuse)
        elif engine.kind is EngineKind.VLLM and isinstance(model.weights, NoWeights):
            raise refuse(
                path, f'model {model.name!r} has no weights; it needs kind = "scripted"', value=engine.kind.value
            )
        if (engine.kind is EngineKind.SCRIPTED) is not (first.kind is EngineKind.SCRIPTED):
            raise refuse(
                path,
                f"engine {first.name!r} is {first.kind.value}; a script's KV means nothing to an engine with a model",
                value=engine.kind.value,
            )
        if engine.kind is not EngineKind.VLLM:
            _check_no_vllm_keys(f"engines[{index}]", engine, refuse)


def _check_no_vllm_keys(path: str, engine: EngineTable, refuse: Refuse) -> None:
    """Whoever sets one of them believes that vLLM runs."""
    for key in _VLLM_KEYS:
        if getattr(engine, key) != _DEFAULTS[key]:
            raise refuse(f"{path}.{key}", f"only vllm engines have this; {engine.name!r} is {engine.kind.value}")


def _check_embedded(model: ModelEntry, path: str, refuse: Refuse) -> None:
    try:
        embedded_weights(model)
    except ConfigError as error:
        raise refuse(path, str(error), value=EngineKind.EMBEDDED.value) from error


def _check_simulated_kinds(topology: Topology, refuse: Refuse) -> None:
    for index, engine in enumerate(topology.engines):
        if engine.kind is not EngineKind.MODELLED:
            raise refuse(f"engines[{index}].kind", 'a simulated engine has kind = "modelled"', value=engine.kind.value)
        if engine.hardware is None:
            raise refuse(f"engines[{index}].hardware", "a modelled engine needs a hardware profile, by name or path")


def _check_formats(topology: Topology, model: ModelEntry, refuse: Refuse) -> None:
    first = topology.nodes[0]
    expected = model.kv_format(block_tokens_of(topology, first))
    for index, node in enumerate(topology.nodes):
        found = model.kv_format(block_tokens_of(topology, node))
        if found.fingerprint != expected.fingerprint:
            raise refuse(
                f"nodes[{index}].block_tokens",
                f"its KV format is {abbreviate(found.description)!r}, but node {first.name!r} has "
                f"{abbreviate(expected.description)!r}; nodes of one deployment must agree",
                value=block_tokens_of(topology, node),
            )
    kv_format_of(topology, model, refuse)


def _check_arenas(topology: Topology, model: ModelEntry | ModelProfile, refuse: Refuse) -> None:
    for index, node in enumerate(topology.nodes):
        check_arena(topology, index, model.kv_format(block_tokens_of(topology, node)), refuse)


def _check_caches(topology: Topology, refuse: Refuse) -> None:
    for index, engine in enumerate(topology.engines):
        if engine.cache_tokens < topology.max_model_tokens:
            raise refuse(
                f"engines[{index}].cache_tokens",
                f"one request may have max_model_tokens = {topology.max_model_tokens} tokens; the cache must hold them",
                value=engine.cache_tokens,
            )
