"""What the embedded engine computes per second of one core, beside the same model computed the usual way.

Times are the computing thread's own processor time: on a machine that others use too, wall time would measure them.
"""

from __future__ import annotations

import os
from time import thread_time
from typing import TYPE_CHECKING

from pdd.core.ids import RequestId, Salt, TokenId
from pdd.core.request import GREEDY, Generation
from pdd.engine.catalog import find_model
from pdd.engine.embedded.environment import TORCH_ENVIRONMENT

for _name, _value in TORCH_ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)  # before torch comes in: its own engine processes run so too

import torch  # noqa: E402

from benchmarks.plain_llama import PlainLlama  # noqa: E402
from benchmarks.report import Result, Row, row  # noqa: E402
from pdd.engine.embedded.core import CoreSettings, EngineCore, load_model  # noqa: E402
from pdd.policy.batching import BatchingLimits  # noqa: E402

if TYPE_CHECKING:
    from pdd.engine.embedded.model import LlamaModel

_MODEL = find_model("smollm2-135m-instruct")
_PREFILL_TOKENS, _CONTEXT_TOKENS, _DECODE_STEPS, _CHUNK_TOKENS = 512, 128, 16, 128
_BATCHES = (1, 4, 8, 16)
_SETTINGS = CoreSettings(
    model=_MODEL,
    block_tokens=16,
    cache_tokens=16384,
    max_model_tokens=2048,
    limits=BatchingLimits(max_batch=max(_BATCHES), prefill_chunk_tokens=_CHUNK_TOKENS),
    max_unread_tokens=10_000,
)


def run(repetitions: int) -> Result:
    """Exact and plain side by side, every batch size in every repetition; one short discarded round warms up."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        model, plain = load_model(_SETTINGS), PlainLlama(_MODEL)
        _measure(model, plain, batches=(1,))
        rounds = [_measure(model, plain, batches=_BATCHES) for _ in range(repetitions)]
    exact = {batch: [r.exact[batch] for r in rounds] for batch in _BATCHES}
    usual = {batch: [r.plain[batch] for r in rounds] for batch in _BATCHES}
    prefill, usual_prefill = [r.exact_prefill for r in rounds], [r.plain_prefill for r in rounds]
    rows = [
        row("prefill", "tokens/s", prefill),
        row("prefill over the usual way", "ratio", _ratios(prefill, usual_prefill)),
    ]
    for batch in _BATCHES:
        rows.extend(_decode_rows(batch, exact, usual))
    title = f"{_MODEL.name} in float32, one thread; prefill of {_PREFILL_TOKENS}, decode after {_CONTEXT_TOKENS}"
    return Result(name="engine", title=title, rows=tuple(rows))


def _decode_rows(batch: int, exact: dict[int, list[float]], usual: dict[int, list[float]]) -> list[Row]:
    return [
        row(f"decode, batch {batch}", "tokens/s", exact[batch]),
        row(f"decode, batch {batch} over batch 1", "ratio", _ratios(exact[batch], exact[1])),
        row(f"decode, batch {batch} over the usual way", "ratio", _ratios(exact[batch], usual[batch])),
    ]


def _ratios(above: list[float], below: list[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


class _Round:
    """One repetition's rates in tokens per second; decode by batch size."""

    def __init__(self) -> None:
        self.exact_prefill = self.plain_prefill = 0.0
        self.exact: dict[int, float] = {}
        self.plain: dict[int, float] = {}


def _measure(model: LlamaModel, plain: PlainLlama, *, batches: tuple[int, ...]) -> _Round:
    figures = _Round()
    figures.exact_prefill, _ = _time_exact(model, 1, _PREFILL_TOKENS)
    figures.plain_prefill, _ = _time_plain(plain, 1, _PREFILL_TOKENS)
    for batch in batches:
        _, figures.exact[batch] = _time_exact(model, batch, _CONTEXT_TOKENS)
        _, figures.plain[batch] = _time_plain(plain, batch, _CONTEXT_TOKENS)
    return figures


def _time_exact(model: LlamaModel, batch: int, num_tokens: int) -> tuple[float, float]:
    """A new core each time: its cache must not know the prompts."""
    core = EngineCore(_SETTINGS, model, None)
    for index in range(batch):
        core.add(core.make_sequence(_generation(_prompt(index, num_tokens))))
    began = thread_time()
    begun: set[int] = set()
    while len(begun) < batch:
        begun.update(id(drawn.sequence) for drawn in core.step())
    prefilled = thread_time()
    num_drawn = sum(len(core.step()) for _ in range(_DECODE_STEPS))
    took = thread_time() - prefilled
    core.close()
    return batch * num_tokens / (prefilled - began), num_drawn / took


def _time_plain(plain: PlainLlama, batch: int, num_tokens: int) -> tuple[float, float]:
    tokens = torch.tensor([_prompt(index, num_tokens) for index in range(batch)])
    plain.reset(batch, num_tokens + _DECODE_STEPS)
    began = thread_time()
    logits = torch.empty(0)
    for chunk in tokens.split(_CHUNK_TOKENS, 1):
        logits = plain.forward(chunk)
    prefilled = thread_time()
    for _ in range(_DECODE_STEPS):
        logits = plain.forward(logits.argmax(-1, keepdim=True))
    return batch * num_tokens / (prefilled - began), batch * _DECODE_STEPS / (thread_time() - prefilled)


def _prompt(index: int, num_tokens: int) -> tuple[TokenId, ...]:
    return tuple((index * 7919 + position * 104729 + 13) % _MODEL.vocab_size for position in range(num_tokens))


def _generation(prompt: tuple[TokenId, ...]) -> Generation:
    return Generation(
        request_id=RequestId("benchmark"),
        attempt=0,
        known_tokens=prompt,
        num_prompt_tokens=len(prompt),
        max_tokens=200,  # the first ones decode while the last ones prefill
        stop_token_ids=frozenset(),
        sampling=GREEDY,
        salt=Salt(""),
    )
