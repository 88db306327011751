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
"""32 bytes. Equal hashes mean: same format, same tenant, same tokens from the start of the sequence to the block's end.
"""

BLOCK_HASH_BYTES = 32
_DOMAIN = b"pdd-block-v1\0"
TOKEN_BYTES = 4


class NamedTokens(tuple[TokenId, ...]):  # noqa: SLOT001 - tuples can have none
    """Tokens that know their full blocks' names: a ``BlockChain`` that begins with them need not hash them again.

    For whoever names the same long prompt many times. Only what the same format and salt named counts.
    """

    root: bytes
    hashes: tuple[BlockHash, ...]

    @classmethod
    def named_by(cls, chain: BlockChain, tokens: Sequence[TokenId]) -> NamedTokens:
        """``tokens`` are all that ``chain`` has hashed, or its beginning."""
        named = cls(tokens)
        named.root = chain.root
        named.hashes = chain.hashes[: len(named) // chain.block_tokens]
        return named


class BlockChain:
    """Hashes a growing sequence: append tokens, read the hashes of its full blocks. Appending costs only
    what is new.
    """

    __slots__ = ("_hashes", "_tail", "block_tokens", "root")

    def __init__(self, kv_format: KvFormat, salt: Salt, tokens: Sequence[TokenId] = ()) -> None:
        self.block_tokens = kv_format.block_tokens
        self.root = hashlib.sha256(_DOMAIN + kv_format.fingerprint + salt.encode()).digest()
        """What stands for the format and the salt: the first block's parent."""
        self._hashes: list[BlockHash] = []
        self._tail: list[TokenId] = []
        if isinstance(tokens, NamedTokens) and tokens.root == self.root:
            self._hashes.extend(tokens.hashes)
            tokens = tokens[len(tokens.hashes) * self.block_tokens :]
        self.append(tokens)

    @property
    def hashes(self) -> tuple[BlockHash, ...]:
        """The full blocks' hashes in order."""
        return tuple(self._hashes)

    def append(self, tokens: Sequence[TokenId]) -> tuple[BlockHash, ...]:
        """Extends the sequence; returns the hashes of the blocks that this completed."""
        self._tail.extend(tokens)
        before = len(self._hashes)
        num_whole = len(self._tail) - len(self._tail) % self.block_tokens
        self._append_whole(_u32_le(self._tail[:num_whole]))
        del self._tail[:num_whole]
        return tuple(self._hashes[before:])

    def append_packed(self, packed: bytes) -> None:
        """The same for many tokens as little-endian u32, the form in which they are hashed."""
        packed = _u32_le(self._tail) + packed
        cut = len(packed) - len(packed) % (TOKEN_BYTES * self.block_tokens)
        self._append_whole(packed[:cut])
        self._tail = list(struct.unpack(f"<{(len(packed) - cut) // TOKEN_BYTES}I", packed[cut:]))

    def _append_whole(self, packed: bytes) -> None:
        size = TOKEN_BYTES * self.block_tokens
        parent = self._hashes[-1] if self._hashes else self.root
        for start in range(0, len(packed), size):
            parent = hashlib.sha256(_DOMAIN + parent + packed[start : start + size]).digest()
            self._hashes.append(BlockHash(parent))


def block_hashes(kv_format: KvFormat, salt: Salt, tokens: Sequence[TokenId]) -> tuple[BlockHash, ...]:
    """The hashes of the full blocks of ``tokens``, in order."""
    return BlockChain(kv_format, salt, tokens).hashes


def _u32_le(tokens: Sequence[TokenId]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)
