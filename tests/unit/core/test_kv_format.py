import pytest

from pdd.core.errors import ConfigError
from pdd.core.kv_format import DType, KvFormat, TensorSpec, abbreviate, uniform_attention_format


def _smollm2(dtype=DType.FLOAT32, block_tokens=16):
    return uniform_attention_format(
        model="smollm2-135m", num_layers=30, num_kv_heads=3, head_dim=64, dtype=dtype, block_tokens=block_tokens
    )


def test_smollm2_in_float32_has_as_many_bytes_per_token_as_a_flagship():
    assert _smollm2().bytes_per_token == 46_080
    assert _smollm2().block_bytes == 16 * 46_080


@pytest.mark.parametrize(("dtype", "num_bytes"), [(DType.FLOAT32, 4), (DType.FLOAT16, 2), (DType.BFLOAT16, 2)])
def test_element_sizes(dtype, num_bytes):
    assert dtype.num_bytes == num_bytes
    assert _smollm2(dtype).bytes_per_token == 30 * 2 * 3 * 64 * num_bytes


def test_layers_that_differ_and_latent_attention_fit():
    latent = TensorSpec(name="latent", shape=(512,), dtype=DType.BFLOAT16)
    rope = TensorSpec(name="rope", shape=(64,), dtype=DType.BFLOAT16)
    pair = TensorSpec(name="kv", shape=(2, 1, 8), dtype=DType.FLOAT32)
    mixed = KvFormat(model="mixed", block_tokens=2, layers=((latent, rope), (pair,), ()))
    assert mixed.bytes_per_token == 1024 + 128 + 64
    assert mixed.block_bytes == 2 * mixed.bytes_per_token
    assert mixed.description == "mixed|block=2|latent:bfloat16[512],rope:bfloat16[64];kv:float32[2x1x8];"


def test_only_full_blocks_count():
    assert [_smollm2().num_full_blocks(n) for n in (0, 15, 16, 31, 32)] == [0, 0, 1, 1, 2]


def test_a_fingerprint_has_32_bytes_and_equal_formats_share_it():
    assert len(_smollm2().fingerprint) == 32
    assert _smollm2().fingerprint == _smollm2().fingerprint
    assert _smollm2().fingerprint != _smollm2(block_tokens=32).fingerprint


def test_the_same_tensors_in_other_layers_are_another_format():
    tensor = TensorSpec(name="kv", shape=(2, 1, 8), dtype=DType.FLOAT32)
    one = KvFormat(model="m", block_tokens=2, layers=((tensor, tensor), (tensor,)))
    two = KvFormat(model="m", block_tokens=2, layers=((tensor,), (tensor, tensor)))
    assert one.bytes_per_token == two.bytes_per_token
    assert one.fingerprint != two.fingerprint


def test_a_block_has_a_token_and_a_model_a_layer():
    with pytest.raises(ConfigError, match="block_tokens is 0"):
        _smollm2(block_tokens=0)
    with pytest.raises(ConfigError, match="at least one layer"):
        KvFormat(model="m", block_tokens=1, layers=())


def test_for_people_equal_layers_are_told_once():
    assert abbreviate("a|b@1|block=2|kv:x[2];kv:x[2];kv:y[2];kv:x[2]") == "a|b@1|block=2|2 x kv:x[2];kv:y[2];kv:x[2]"
    assert abbreviate("nonsense") == "nonsense"
