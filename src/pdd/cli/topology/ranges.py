"""Which numbers a topology's keys may hold."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Protocol

from pdd.core.errors import ConfigError
from pdd.core.topology import KvFormatTable, RouterTable, Topology
from pdd.transport.emulate_control import MAX_DELAY_S

LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1000.0
"""Of a tenant: further apart, what the one is charged is lost in the rounding of what the other is."""


class Refuse(Protocol):
    """Makes the error about one key: the path in terms of ``pdd.core.topology``, and what would be right."""

    def __call__(self, path: str, right: str, *, value: object = None) -> ConfigError: ...


def check_ranges(topology: Topology, refuse: Refuse) -> None:
    """Raises ConfigError at the first number that is out of its range. What is not a number at all (nan) is."""
    for path, value, least in _lower_limits(topology):
        if not value >= least:
            raise refuse(path, f"it must be at least {least:g}", value=value)
    for path, value in _must_be_positive(topology):
        if not (value > 0 and isfinite(value)):
            raise refuse(path, "it must be more than 0, and finite", value=value)
    for path, value in _shares(topology):
        if not 0 <= value <= 1:
            raise refuse(path, "it must be from 0 to 1", value=value)
    for path, value in _weights(topology):
        if not LEAST_WEIGHT <= value <= MOST_WEIGHT:
            raise refuse(path, f"it must be from {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}", value=value)
    policy = topology.router.policy
    if not isfinite(policy.conversation_ttl_s):
        raise refuse("router.policy.conversation_ttl_s", "it must be finite", value=policy.conversation_ttl_s)
    threshold = policy.relay_threshold_s
    if not isfinite(threshold):
        raise refuse(
            "router.policy.relay_threshold_s", "it must be finite; a large number turns relays off", value=threshold
        )
    for path, value in _waits(topology):
        if not value <= MAX_DELAY_S:
            raise refuse(path, f"it must be at most {MAX_DELAY_S:g} s", value=value)


def _lower_limits(topology: Topology) -> Iterator[tuple[str, float, float]]:
    yield "block_tokens", topology.block_tokens, 1
    yield "max_model_tokens", topology.max_model_tokens, 2
    for index, node in enumerate(topology.nodes):
        yield f"nodes[{index}].arena_bytes", node.arena_bytes, 1
        if node.block_tokens is not None:
            yield f"nodes[{index}].block_tokens", node.block_tokens, 1
    for index, engine in enumerate(topology.engines):
        for key in ("cache_tokens", "max_batch", "prefill_chunk_tokens", "num_chips", "tensor_parallel"):
            yield f"engines[{index}].{key}", getattr(engine, key), 1
        if engine.cache_block_tokens is not None:
            yield f"engines[{index}].cache_block_tokens", engine.cache_block_tokens, 1
        yield f"engines[{index}].token_interval_s", engine.token_interval_s, 0
    for index, link in enumerate(topology.links):
        yield f"links[{index}].delay_s", link.delay_s, 0
        yield f"links[{index}].jitter_s", link.jitter_s, 0
    if topology.kv_format is not None:
        yield from _lower_limits_of_kv_format(topology.kv_format)
    yield from _lower_limits_of_router(topology.router)


def _lower_limits_of_kv_format(table: KvFormatTable) -> Iterator[tuple[str, float, float]]:
    yield "kv_format.block_tokens", table.block_tokens, 1
    yield "kv_format.layers", len(table.layers), 1
    for index, layers in enumerate(table.layers):
        path = f"kv_format.layers[{index}]"
        yield f"{path}.count", layers.count, 1
        yield f"{path}.tensors", len(layers.tensors), 1
        for which, tensor in enumerate(layers.tensors):
            for axis, size in enumerate(tensor.shape):
                yield f"{path}.tensors[{which}].shape[{axis}]", size, 1


def _lower_limits_of_router(router: RouterTable) -> Iterator[tuple[str, float, float]]:
    yield "router.max_answer_memory_tokens", router.max_answer_memory_tokens, 0
    yield "router.max_open_requests", router.max_open_requests, 1
    for key in ("relay_threshold_s", "catch_up_threshold_tokens", "max_catch_up_rounds", "conversation_ttl_s"):
        yield f"router.policy.{key}", getattr(router.policy, key), 0
    for key in ("checks_to_down", "checks_to_up", "breaker_failures"):
        yield f"router.health.{key}", getattr(router.health, key), 1
    yield "router.admission.max_queued_requests", router.admission.max_queued_requests, 0


def _must_be_positive(topology: Topology) -> Iterator[tuple[str, float]]:
    for index, engine in enumerate(topology.engines):
        yield f"engines[{index}].prefill_tokens_per_s", engine.prefill_tokens_per_s
    for index, link in enumerate(topology.links):
        yield f"links[{index}].rate_bits_per_s", link.rate_bits_per_s
    router = topology.router
    yield "router.keep_alive_s", router.keep_alive_s
    yield "router.policy.reroute_interval_s", router.policy.reroute_interval_s
    for key in ("interval_s", "timeout_s", "breaker_window_s", "breaker_open_s"):
        yield f"router.health.{key}", getattr(router.health, key)
    yield "router.admission.max_queue_s", router.admission.max_queue_s
    for key in router.sla.__struct_fields__:
        yield f"router.sla.{key}", getattr(router.sla, key)


def _shares(topology: Topology) -> Iterator[tuple[str, float]]:
    for key in ("relay_hit_rate", "one_shot_load", "filter_max_share"):
        yield f"router.policy.{key}", getattr(topology.router.policy, key)


def _weights(topology: Topology) -> Iterator[tuple[str, float]]:
    for index, tenant in enumerate(topology.router.tenants):
        yield f"router.tenants[{index}].weight", tenant.weight


def _waits(topology: Topology) -> Iterator[tuple[str, float]]:
    for index, engine in enumerate(topology.engines):
        yield f"engines[{index}].token_interval_s", engine.token_interval_s
    for index, link in enumerate(topology.links):
        yield f"links[{index}].delay_s", link.delay_s
        yield f"links[{index}].jitter_s", link.jitter_s
    yield "router.policy.reroute_interval_s", topology.router.policy.reroute_interval_s
    yield "router.health.interval_s", topology.router.health.interval_s
    yield "router.health.timeout_s", topology.router.health.timeout_s
