"""A block's name is for ever: every process, machine and version derives the same one."""

import hashlib
import os
import struct
import subprocess
import sys

import pytest

from pdd.core.blocks import BLOCK_HASH_BYTES, BlockChain, NamedTokens, block_hashes
from pdd.core.kv_format import DType, uniform_attention_format

FORMAT = uniform_attention_format(
    model="golden@1", num_layers=2, num_kv_heads=1, head_dim=4, dtype=DType.FLOAT32, block_tokens=4
)
GOLDEN = (
    "1e69dd94e8a6a10c300cdb1a94d8aec388fc3989cd03112a0caa5f9178e5c6a0",
    "91a2490ad226c0e16cd18473176cf09b067ef51bfe6de839ec018cb276d9d077",
)


def test_pinned_names_hold_because_nodes_of_different_versions_share_blocks():
    assert tuple(name.hex() for name in block_hashes(FORMAT, "tenant-a", range(10))) == GOLDEN


def test_a_name_is_the_documented_chain_of_sha256():
    fingerprint = hashlib.sha256(
        b"pdd-kv-format-v1\0" + b"golden@1|block=4|kv:float32[2x1x4];kv:float32[2x1x4]"
    ).digest()
    root = hashlib.sha256(b"pdd-block-v1\0" + fingerprint + b"tenant-a").digest()
    first = hashlib.sha256(b"pdd-block-v1\0" + root + struct.pack("<4I", 0, 1, 2, 3)).digest()
    second = hashlib.sha256(b"pdd-block-v1\0" + first + struct.pack("<4I", 4, 5, 6, 7)).digest()
    assert block_hashes(FORMAT, "tenant-a", range(8)) == (first, second)
    assert len(first) == BLOCK_HASH_BYTES


@pytest.mark.parametrize("seed", ["0", "12345"])
def test_another_process_with_another_hash_seed_derives_the_same_names(seed):
    program = (
        "from pdd.core.blocks import block_hashes\n"
        "from pdd.core.kv_format import DType, uniform_attention_format\n"
        "f = uniform_attention_format(model='golden@1', num_layers=2, num_kv_heads=1, head_dim=4,"
        " dtype=DType.FLOAT32, block_tokens=4)\n"
        "print(*(name.hex() for name in block_hashes(f, 'tenant-a', range(10))))\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert tuple(result.stdout.split()) == GOLDEN


def test_only_full_blocks_have_names():
    assert block_hashes(FORMAT, "s", range(3)) == ()
    assert len(block_hashes(FORMAT, "s", range(4))) == 1
    assert len(block_hashes(FORMAT, "s", range(7))) == 1


def test_salts_separate_equal_tokens():
    assert not set(block_hashes(FORMAT, "a", range(8))) & set(block_hashes(FORMAT, "b", range(8)))


@pytest.mark.parametrize(
    "other",
    [
        {"model": "golden@2"},
        {"num_layers": 3},
        {"num_kv_heads": 2},
        {"head_dim": 8},
        {"dtype": DType.BFLOAT16},
        {"block_tokens": 2},
    ],
)
def test_formats_separate_equal_tokens(other):
    settings = {
        "model": "golden@1",
        "num_layers": 2,
        "num_kv_heads": 1,
        "head_dim": 4,
        "dtype": DType.FLOAT32,
        "block_tokens": 4,
    }
    changed = uniform_attention_format(**{**settings, **other})
    assert changed.fingerprint != FORMAT.fingerprint
    assert not set(block_hashes(changed, "s", range(8))) & set(block_hashes(FORMAT, "s", range(8)))


def test_a_block_is_named_by_all_tokens_before_it():
    assert block_hashes(FORMAT, "s", [9, 1, 2, 3, 4, 5, 6, 7])[1] != block_hashes(FORMAT, "s", range(8))[1]


def test_appending_returns_the_names_it_completed():
    chain = BlockChain(FORMAT, "tenant-a")
    assert chain.append([0, 1, 2]) == ()
    assert chain.append([3]) == (bytes.fromhex(GOLDEN[0]),)
    assert chain.append([4, 5, 6, 7, 8]) == (bytes.fromhex(GOLDEN[1]),)
    assert tuple(name.hex() for name in chain.hashes) == GOLDEN


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_that_is_no_u32_has_no_name(token):
    with pytest.raises(struct.error):
        block_hashes(FORMAT, "s", [token] * 4)


@pytest.mark.parametrize("num_tokens", [0, 3, 4, 9, 16])
def test_packed_tokens_are_named_as_others_are(num_tokens):
    tokens = tuple(range(100, 100 + num_tokens))
    chain = BlockChain(FORMAT, "t", (7, 8))
    chain.append_packed(struct.pack(f"<{num_tokens}I", *tokens))
    chain.append((5, 6, 7))
    assert chain.hashes == block_hashes(FORMAT, "t", (7, 8, *tokens, 5, 6, 7))


def test_named_tokens_lend_their_names_to_the_same_format_and_salt_only():
    tokens = tuple(range(10))
    named = NamedTokens.named_by(BlockChain(FORMAT, "t", tokens), tokens)
    assert named == tokens
    assert block_hashes(FORMAT, "t", named) == block_hashes(FORMAT, "t", tokens)
    assert block_hashes(FORMAT, "u", named) == block_hashes(FORMAT, "u", tokens)
    chain = BlockChain(FORMAT, "t", named)
    chain.append((10, 11, 12))
    assert chain.hashes == block_hashes(FORMAT, "t", (*tokens, 10, 11, 12))


def test_named_tokens_that_begin_a_longer_chain_have_the_names_of_their_own_blocks_only():
    chain = BlockChain(FORMAT, "t", tuple(range(20)))
    assert NamedTokens.named_by(chain, tuple(range(10))).hashes == chain.hashes[:2]


def test_the_names_of_named_tokens_are_really_not_computed_again():
    named = NamedTokens.named_by(BlockChain(FORMAT, "t", tuple(range(8))), tuple(range(8)))
    named.hashes = (b"a" * 32, b"b" * 32)
    assert block_hashes(FORMAT, "t", named) == (b"a" * 32, b"b" * 32)
