"""What simulated engines answer, and what the blocks of prompt and answer are called: written once, read by all
engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdd.core.blocks import TOKEN_BYTES, BlockChain, BlockHash, NamedTokens
from pdd.core.errors import LocalProtocolError
from pdd.core.ids import RequestId, Salt, TokenId
from pdd.core.kv_format import KvFormat
from pdd.core.request import Generation
from pdd.sim.workload.base import Run, SimRequest, expand


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One request's prompt and answer. ``hashes`` name the full blocks of both together.

    ``is_cut``: the answer would go on, but the client asked for no more of it.
    """

    prompt: NamedTokens
    answer: tuple[TokenId, ...]
    is_cut: bool
    hashes: tuple[BlockHash, ...]

    def rest_for(self, generation: Generation) -> tuple[TokenId, ...]:
        """What is still to be generated.

        Raises:
            LocalProtocolError: the known tokens are not the prompt and the beginning of the answer.
        """
        known = generation.known_tokens[generation.num_prompt_tokens :]
        if generation.num_prompt_tokens != len(self.prompt) or known != self.answer[: len(known)]:
            raise LocalProtocolError(f"request {generation.request_id} goes on after tokens that nobody generated")
        if len(known) >= len(self.answer):
            raise LocalProtocolError(f"request {generation.request_id} goes on after its end")
        return self.answer[len(known) :]


class Scripts:
    """The scripts of the requests that run."""

    def __init__(self, kv_format: KvFormat) -> None:
        self._kv_format = kv_format
        self._scripts: dict[RequestId, Script] = {}

    def write(self, request: SimRequest, salt: Salt) -> Script:
        """A request is sent. Forget it when it has ended."""
        chain = BlockChain(self._kv_format, salt)
        chain.append_packed(_packed(request.prompt))
        prompt = NamedTokens.named_by(chain, expand(request.prompt))
        chain.append_packed(_packed(request.answer))
        script = Script(
            prompt=prompt,
            answer=expand(request.answer)[: request.max_tokens],
            is_cut=request.num_answer_tokens > request.max_tokens,
            hashes=chain.hashes,
        )
        self._scripts[request.request_id] = script
        return script

    def forget(self, request: RequestId) -> None:
        """Nobody will ask for it any more."""
        del self._scripts[request]

    def __getitem__(self, request: RequestId) -> Script:
        """Raises LocalProtocolError if it does not run."""
        try:
            return self._scripts[request]
        except KeyError as error:
            raise LocalProtocolError(f"nobody sent a request {request}") from error


def _packed(runs: Sequence[Run]) -> bytes:
    return b"".join(token.to_bytes(TOKEN_BYTES, "little") * count for token, count in runs)
