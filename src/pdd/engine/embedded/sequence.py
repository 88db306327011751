"""One request inside the engine, and the stream on which its tokens leave."""

from __future__ import annotations

import asyncio

from pdd.core.blocks import BlockChain, BlockHash
from pdd.core.errors import PddError
from pdd.core.ids import TokenId
from pdd.core.kv_format import KvFormat
from pdd.core.request import FinishReason, Generation, TokenSpan
from pdd.engine.node_link import OfferedBlocks


class TokenStream:
    """Tokens on their way to one reader. Lives on the event loop's thread; what has piled up is read as one span.

    It holds at most what its request may generate: the compute thread pauses a sequence whose reader lags behind.
    """

    __slots__ = ("_arrived", "_error", "_finish_reason", "_pending", "_position")

    def __init__(self, first_position: int) -> None:
        self._position = first_position
        self._pending: list[TokenId] = []
        self._finish_reason: FinishReason | None = None
        self._error: PddError | None = None
        self._arrived = asyncio.Event()

    def push(self, token: TokenId, finish_reason: FinishReason | None) -> None:
        self._pending.append(token)
        self._finish_reason = finish_reason
        self._arrived.set()

    def fail(self, error: PddError) -> None:
        """Ends the stream; what was pushed before is still read first."""
        self._error = error
        self._arrived.set()

    async def take(self) -> TokenSpan:
        """Waits for tokens. Raises the error that the stream failed with."""
        await self._arrived.wait()
        if not self._pending and self._error is not None:
            raise self._error
        span = TokenSpan(first_position=self._position, tokens=tuple(self._pending), finish_reason=self._finish_reason)
        self._position = span.end_position
        self._pending.clear()
        if self._error is None:
            self._arrived.clear()
        return span


class EngineSequence:
    """What the compute thread knows of one request. Satisfies ``policy.batching.Schedulable``.

    ``block_table`` lists the cache blocks in order; the first ``num_computed_tokens`` tokens have their KV there. Only
    ``num_read`` is written by another thread (the event loop's).
    """

    __slots__ = (
        "_chain",
        "block_table",
        "generation",
        "hashes",
        "max_unread_tokens",
        "num_computed_tokens",
        "num_read",
        "offered",
        "stream",
        "tokens",
    )

    def __init__(self, generation: Generation, kv_format: KvFormat, *, max_unread_tokens: int) -> None:
        self.generation = generation
        self.stream = TokenStream(generation.first_position)
        self.tokens: list[TokenId] = list(generation.known_tokens)
        self._chain = BlockChain(kv_format, generation.salt, self.tokens)
        self.hashes: list[BlockHash] = list(self._chain.hashes)
        self.block_table: list[int] = []
        self.num_computed_tokens = 0
        self.offered = OfferedBlocks()
        self.num_read = 0
        self.max_unread_tokens = max_unread_tokens

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_generated_tokens(self) -> int:
        return len(self.tokens) - len(self.generation.known_tokens)

    @property
    def next_position(self) -> int:
        """The output position of the token that is drawn next."""
        return len(self.tokens) - self.generation.num_prompt_tokens

    @property
    def paused(self) -> bool:
        return self.num_generated_tokens - self.num_read >= self.max_unread_tokens

    def append(self, token: TokenId) -> FinishReason | None:
        """Takes the drawn token; says whether, and why, it was the last."""
        self.tokens.append(token)
        self.hashes.extend(self._chain.append((token,)))
        if token in self.generation.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.num_generated_tokens >= self.generation.max_tokens else None
