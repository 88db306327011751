"""The identity of a KV block: what it is the KV *of*.

SHA-256 over (domain tag, KV-format fingerprint, tenant salt, parent hash, token IDs as little-endian u32). There is no
process seed and no pickle in it: every process, machine and engine derives the same name. It says nothing about the
bytes, which differ between chips; integrity is the frame digest's job.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import NewType

from pdd.core.ids import Salt, TokenId
from pdd.core.kv_format import KvFormat

BlockHash = NewType("BlockHash", bytes)
"""32 bytes. Equal hashes mean: same format, same tenant, same tokens from the start of the sequence to the block's end."""

BLOCK_HASH_BYTES = 32
_DOMAIN = b"pdd-block-v1\0"


class BlockChain:
    """Hashes a growing sequence: append tokens, read the hashes of its full blocks. Appending costs only what is new."""

    __slots__ = ("_block_tokens", "_hashes", "_root", "_tail")

    def __init__(self, kv_format: KvFormat, salt: Salt, tokens: Sequence[TokenId] = ()) -> None:
        self._block_tokens = kv_format.block_tokens
        self._root = hashlib.sha256(_DOMAIN + kv_format.fingerprint + salt.encode()).digest()
        self._hashes: list[BlockHash] = []
        self._tail: list[TokenId] = []
        self.append(tokens)

    @property
    def hashes(self) -> tuple[BlockHash, ...]:
        """The full blocks' hashes in order."""
        return tuple(self._hashes)

    def append(self, tokens: Sequence[TokenId]) -> tuple[BlockHash, ...]:
        """Extends the sequence; returns the hashes of the blocks that this completed."""
        self._tail.extend(tokens)
        before = len(self._hashes)
        size = self._block_tokens
        num_full = len(self._tail) // size
        for index in range(num_full):
            parent = self._hashes[-1] if self._hashes else self._root
            block = self._tail[index * size : (index + 1) * size]
            self._hashes.append(BlockHash(hashlib.sha256(_DOMAIN + parent + _u32_le(block)).digest()))
        del self._tail[: num_full * size]
        return tuple(self._hashes[before:])


def block_hashes(kv_format: KvFormat, salt: Salt, tokens: Sequence[TokenId]) -> tuple[BlockHash, ...]:
    """The hashes of the full blocks of ``tokens``, in order."""
    return BlockChain(kv_format, salt, tokens).hashes


def _u32_le(tokens: Sequence[TokenId]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)
