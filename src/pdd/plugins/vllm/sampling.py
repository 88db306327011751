# pyright: basic, reportMissingImports=false
"""vLLM's ``--logits-processors pdd.plugins.vllm.sampling:PositionKeyedSampling``: seeded answers that survive a hand-off.

vLLM's own seeded generator starts anew with each request, so an answer that moves to another engine would go on with other
chance. Here the token is drawn by ``engine.noise``, whose noise belongs to the output position, and all other logits of the
row are taken away: whatever vLLM does afterwards (temperature, top-k, top-p, its own noise) can only choose that token.

vLLM has two model runners with an interface each, and takes one name for both (the second is the default on GPUs, the
first elsewhere). So the named class is of both kinds, and what is made of it is the one that the arguments belong to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.sample.logits_processor.interface import LogitsProcessor
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as SlotLogitsProcessor

from pdd.core.errors import InvalidRequest
from pdd.engine.noise import choose_token
from pdd.plugins.vllm.seeded_rows import SeededRequest, SeededRows, read_request

if TYPE_CHECKING:
    import torch
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
        for index, row in self._rows.current():
            _leave_one(logits[index], row.request, row.position)
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
        for row, (slot, length) in enumerate(zip(ctx.idx_mapping_np, ctx.seq_lens_upper_bound_np, strict=False)):
            request = self._slots.get(int(slot))
            if request is not None:
                _leave_one(logits[row], request, int(length) - request.num_prompt_tokens)
        return logits


def _leave_one(logits: torch.Tensor, request: SeededRequest, position: int) -> None:
    """Draws the row's token and takes all others away, in place. ``logits`` ``[vocab]``."""
    token = choose_token(logits.float().cpu().numpy(), request.sampling, position=position)
    logits.fill_(float("-inf"))
    logits[token] = 0.0
