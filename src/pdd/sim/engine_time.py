"""How long an engine's steps take: the roofline of its chips under what the model asks of them. Pure arithmetic.

A step computes the next token of every running decode and a chunk of some prefills. It takes as long as its FLOPs or
its bytes, whichever are slower, and an overhead. Weights are read once a step, KV once a sequence. Chips that work as
one add up; what they lose to each other is in the overhead per layer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from pdd.core.errors import ConfigError
from pdd.core.units import Bytes, Seconds
from pdd.sim.profile import HardwareProfile, ModelProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """``num_tokens`` of a prefill, computed in one step after ``num_context`` tokens before them."""

    num_tokens: int
    num_context: int

    @property
    def num_pairs(self) -> int:
        """(query token, context token): each attends to all before it and to itself."""
        return self.num_tokens * self.num_context + self.num_tokens * (self.num_tokens + 1) // 2


class StepTimes:
    """The times of one engine: ``num_chips`` of ``hardware`` that work as one on ``model``.

    Raises:
        ConfigError: weights and ``cache_tokens`` tokens of KV don't fit its memory.
    """

    def __init__(
        self, model: ModelProfile, hardware: HardwareProfile, *, num_chips: int, cache_tokens: int, name: str
    ) -> None:
        self._model = model
        self._flops = num_chips * hardware.flops_per_s.of(model.dtype) * hardware.compute_efficiency
        self._bandwidth = num_chips * hardware.memory_bytes_per_s * hardware.memory_efficiency
        self._host = num_chips * hardware.host_bytes_per_s
        self._overhead = hardware.step_overhead_s + model.num_layers * hardware.layer_overhead_s
        self._token_flops = 2.0 * model.active_params + model.fixed_attention_flops
        weights = model.dense_weight_bytes + model.expert_weight_bytes
        needed = weights + cache_tokens * model.kv_bytes_per_token
        if needed > num_chips * hardware.memory_bytes:
            raise ConfigError(
                f"engine {name}: {model.name}'s weights ({weights / 1e9:.0f} GB) and a cache of {cache_tokens} tokens "
                f"({(needed - weights) / 1e9:.0f} GB) don't fit {num_chips} x {hardware.name} "
                f"({num_chips * hardware.memory_bytes / 1e9:.0f} GB); {ceil(needed / hardware.memory_bytes)} would hold them"
            )

    def load(self, num_bytes: Bytes) -> Seconds:
        """Copying KV from the node's memory."""
        return Seconds(num_bytes / self._host)

    def mixed_step(self, chunks: Iterable[Chunk], *, num_decodes: int, num_context: int) -> Seconds:
        """A step with prefill in it. ``num_context`` is the sum over the decodes, each one's newest token included."""
        model = self._model
        num_tokens, num_pairs, num_read = num_decodes, 0, num_context
        for chunk in chunks:
            num_tokens += chunk.num_tokens
            num_pairs += chunk.num_pairs
            num_read += chunk.num_tokens + chunk.num_context
        flops = num_tokens * self._token_flops
        flops += num_pairs * model.prefill_attention_flops + num_context * model.decode_attention_flops
        num_bytes = model.weight_bytes_read(num_tokens) + num_read * model.kv_bytes_per_token
        return Seconds(max(flops / self._flops, num_bytes / self._bandwidth) + self._overhead)

    def decode_steps(self, num_steps: int, *, num_decodes: int, num_context: int) -> Seconds:
        """``num_steps`` steps in a row of the same decodes, whose contexts grow by a token each step.

        The same as the sum of the single steps: FLOPs and bytes both grow linearly, so one may overtake the other once.
        """
        model = self._model
        compute = (num_decodes * self._token_flops + num_context * model.decode_attention_flops) / self._flops
        compute_growth = num_decodes * model.decode_attention_flops / self._flops
        memory = (model.weight_bytes_read(num_decodes) + num_context * model.kv_bytes_per_token) / self._bandwidth
        memory_growth = num_decodes * model.kv_bytes_per_token / self._bandwidth
        total = _sum_of_larger(num_steps, (compute, compute_growth), (memory, memory_growth))
        return Seconds(total + num_steps * self._overhead)


_Line = tuple[float, float]
"""A value at step 0, and by how much it grows each step."""


def _sum_of_larger(num_steps: int, one: _Line, other: _Line) -> float:
    """The sum over steps 0, 1, ... of whichever line is higher there."""
    low, high = (one, other) if one[0] <= other[0] else (other, one)
    if low[1] <= high[1]:
        return _sum(high, 0, num_steps)
    crossing = min(num_steps, ceil((high[0] - low[0]) / (low[1] - high[1])))
    return _sum(high, 0, crossing) + _sum(low, crossing, num_steps)


def _sum(line: _Line, begin: int, end: int) -> float:
    num_steps = end - begin
    return num_steps * (line[0] + line[1] * (begin + end - 1) / 2.0)
