"""KV formats of any layers."""

from hypothesis import given
from hypothesis import strategies as st

from pdd.core.kv_format import DType, KvFormat, TensorSpec

names = st.sampled_from(["kv", "latent", "rope"])
tensors = st.builds(
    TensorSpec, name=names, shape=st.lists(st.integers(1, 64), max_size=3).map(tuple), dtype=st.sampled_from(DType)
)
layers = st.lists(st.lists(tensors, max_size=3).map(tuple), min_size=1, max_size=4).map(tuple)
formats = st.builds(KvFormat, model=st.sampled_from(["m", "n"]), block_tokens=st.integers(1, 64), layers=layers)


@given(formats, formats)
def test_two_formats_share_a_fingerprint_exactly_if_they_are_equal(one, two):
    assert (one.fingerprint == two.fingerprint) == (one == two)


@given(formats, st.integers(0, 10_000))
def test_full_blocks_and_tail_make_up_the_sequence(kv_format, num_tokens):
    tail = num_tokens - kv_format.num_full_blocks(num_tokens) * kv_format.block_tokens
    assert 0 <= tail < kv_format.block_tokens


@given(formats)
def test_a_block_is_its_tokens_tensors_and_nothing_between_them(kv_format):
    per_token = sum(tensor.bytes_per_token for layer in kv_format.layers for tensor in layer)
    assert kv_format.block_bytes == per_token * kv_format.block_tokens
