"""What the scheduler's side tells the workers' side once a step. Plain data: vLLM carries it between its processes.

*Wire blocks* are the node's (``block_tokens`` of the KV format), *cache blocks* vLLM's own, of another length perhaps.
Everything is counted in tokens from the start of the sequence, so that neither need know the other's length.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdd.core.blocks import BlockHash


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOrder:
    """Copy tokens ``[first_token, end_token)`` from the node into the cache; report ``request_id`` in any case.

    ``hashes`` name the wire blocks from ``first_block``, which holds ``first_token``, to the one that holds
    ``end_token - 1``. ``cache_blocks`` are the sequence's, from its start. What lies before ``first_token`` is somebody
    else's too and must not be written.
    """

    request_id: str
    first_block: int
    hashes: tuple[BlockHash, ...]
    first_token: int
    end_token: int
    cache_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveOrder:
    """Offer the node wire blocks ``first_block``, ``first_block + 1``, ... of a sequence, named ``hashes``.

    Their KV is in the cache once this step's forward pass is done, and stays there until the sequence is forgotten: if
    the node is lost and found meanwhile, all of them are offered again. The first order of a sequence begins with its
    first block, each other with the block after the last one's. ``cache_blocks`` are the sequence's, from its start.
    """

    request_id: str
    first_block: int
    hashes: tuple[BlockHash, ...]
    cache_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOrders:
    """One step's.

    ``forgotten`` sequences ended or lost their cache blocks before it; one may begin anew in ``saves``.
    """

    forgotten: tuple[str, ...] = ()
    loads: tuple[LoadOrder, ...] = ()
    saves: tuple[SaveOrder, ...] = ()
