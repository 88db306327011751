# pyright: basic, reportMissingImports=false
"""vLLM's ``--logits-processors pdd.plugins.vllm.sampling:PositionKeyedSampling``: seeded answers that survive a
hand-off.

vLLM's own seeded generator starts anew with each request, so an answer that moves to another engine would go on with
other chance. Here the token is drawn by ``engine.noise``, whose noise belongs to the output position, and all other
logits of the row are taken away: whatever vLLM does afterwards (temperature, top-k, top-p, its own noise) can only
choose that token.

vLLM has two model runners with an interface each, and takes one name for both (the second is the default on GPUs, the
first elsewhere). So the named class is of both kinds, and what is made of it is the one that the arguments belong to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.v1.sample.logits_processor.interface import LogitsProcessor
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as SlotLogitsProcessor

from pdd.core.errors import InvalidRequest
from pdd.engine.noise import choose_token
from pdd.plugins.vllm.drawing import Draw, draw_tokens
from pdd.plugins.vllm.seeded_rows import SeededRequest, SeededRows, read_request

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.v1.sample.logits_processor.interface import BatchUpdate
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext


class PositionKeyedSampling(LogitsProcessor, SlotLogitsProcessor):
    """The name for the command line. What is made of it is of one of the two classes below."""

    def __new__(cls, vllm_config: VllmConfig, *arguments: object) -> RowSampling | SlotSampling:
        """The first runner gives a device and whether memory is pinned; the second one the state of its requests."""
        if vllm_config.speculative_config is not None:
            raise ValueError("PDD's sampling knows no speculative decoding: leave out --speculative-config")
        return RowSampling() if len(arguments) == 2 else SlotSampling()

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuses at admission what would fail in the middle of a step, where it would take everybody down."""
        try:
            read_request(sampling_params)
        except InvalidRequest as error:
            raise ValueError(error.message) from error


class RowSampling(LogitsProcessor):
    """For the first runner, whose requests move from row to row; each change is told once, before it counts."""

    def __init__(self) -> None:
        self._rows = SeededRows()

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is not None:
            self._rows.update(batch_update)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        _leave_drawn(
            logits,
            {index: Draw(sampling=row.request.sampling, position=row.position) for index, row in self._rows.current()},
        )
        return logits


class SlotSampling(SlotLogitsProcessor):
    """For the second runner: a request keeps its slot, and each step says in which row which slot is.

    A slot whose request has gone is not told of: nobody asks for it until the next one has taken it.
    """

    def __init__(self) -> None:
        self._slots: dict[int, SeededRequest] = {}

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        request = read_request(sampling_params)
        if request is None:
            self._slots.pop(req_idx, None)
        else:
            self._slots[req_idx] = request
        return request is not None

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        # One row a request, and exact lengths on the host, since nothing is speculative.
        lengths = zip(ctx.idx_mapping_np, ctx.seq_lens_upper_bound_np, strict=False)
        _leave_drawn(
            logits,
            {
                row: Draw(sampling=request.sampling, position=int(length) - request.num_prompt_tokens)
                for row, (slot, length) in enumerate(lengths)
                if (request := self._slots.get(int(slot))) is not None
            },
        )
        return logits


def _leave_drawn(logits: torch.Tensor, draws: dict[int, Draw]) -> None:
    """Draws a token for each of these rows and takes all others away, in place. ``logits`` ``[rows, vocab]``."""
    if not draws:
        return
    rows = torch.tensor(list(draws)).to(logits.device, non_blocking=True)
    tokens = _draw(logits, rows, draws)
    logits[rows] = float("-inf")
    logits[rows, tokens] = 0.0


def _draw(logits: torch.Tensor, rows: torch.Tensor, draws: dict[int, Draw]) -> torch.Tensor:
    """In memory a row at a time is several times faster; elsewhere it would have to be fetched first."""
    if logits.device.type != "cpu":
        return draw_tokens(logits[rows], list(draws.values()))
    chosen = [
        choose_token(logits[row].float().numpy(), draw.sampling, position=draw.position) for row, draw in draws.items()
    ]
    return torch.tensor(chosen)
