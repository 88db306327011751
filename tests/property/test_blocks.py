"""The chain of block hashes, for sequences of any shape."""

from hypothesis import given
from hypothesis import strategies as st

from pdd.core.blocks import BlockChain, block_hashes
from pdd.core.kv_format import DType, uniform_attention_format

token_ids = st.integers(0, 2**32 - 1)
sequences = st.lists(token_ids, max_size=40)


def _format(block_tokens):
    return uniform_attention_format(
        model="m", num_layers=1, num_kv_heads=1, head_dim=2, dtype=DType.FLOAT16, block_tokens=block_tokens
    )


@given(st.lists(sequences, max_size=6), st.integers(1, 7))
def test_incremental_equals_whole(parts, block_tokens):
    chain = BlockChain(_format(block_tokens), "s")
    completed = [name for part in parts for name in chain.append(part)]
    whole = block_hashes(_format(block_tokens), "s", [token for part in parts for token in part])
    assert tuple(completed) == chain.hashes == whole


@given(sequences, sequences, sequences, st.integers(1, 7))
def test_names_are_shared_exactly_as_far_as_tokens_are(common, one, two, block_tokens):
    names = [block_hashes(_format(block_tokens), "s", [*common, *rest]) for rest in (one, two)]
    whole = [[*common, *rest] for rest in (one, two)]
    for index, (left, right) in enumerate(zip(*names, strict=False)):
        end = (index + 1) * block_tokens
        assert (left == right) == (whole[0][:end] == whole[1][:end])


@given(sequences, st.text(), st.text(), st.integers(1, 7))
def test_salts_never_share_a_block(tokens, salt, other, block_tokens):
    left, right = (set(block_hashes(_format(block_tokens), each, tokens)) for each in (salt, other))
    assert left == right if salt == other else not left & right
