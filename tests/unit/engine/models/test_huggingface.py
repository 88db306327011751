"""What a folder's configuration must say, and which models are refused."""

import pytest

from pdd.core.errors import ConfigError
from pdd.core.kv_format import DType
from pdd.engine.catalog import embedded_weights, find_model
from tests.support.published import configured_folder, tiny_folder

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
QWEN_2_5_7B = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 131072,
    "use_sliding_window": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 152064,
}
MISTRAL_7B = {
    "architectures": ["MistralForCausalLM"],
    "hidden_size": 4096,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
    "vocab_size": 32768,
}
QWEN_3_4B = LLAMA_3_8B | {
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 128,
    "hidden_size": 2560,
    "layer_types": ["full_attention"] * 32,
    "torch_dtype": None,
    "dtype": "float16",
}


@pytest.mark.parametrize(
    ("config", "bytes_per_token", "dtype"),
    [
        (LLAMA_3_8B, 32 * 2 * 8 * 128 * 2, DType.BFLOAT16),
        (QWEN_2_5_7B, 28 * 2 * 4 * 128 * 2, DType.BFLOAT16),
        (MISTRAL_7B, 32 * 2 * 8 * 128 * 2, DType.BFLOAT16),
        (QWEN_3_4B, 32 * 2 * 8 * 128 * 2, DType.FLOAT16),
    ],
    ids=["Llama-3.1-8B", "Qwen2.5-7B", "Mistral-7B", "Qwen3-4B"],
)
def test_models_of_one_attention_are_read(tmp_path, config, bytes_per_token, dtype):
    entry = find_model(str(configured_folder(tmp_path, config, name="My-Model")))
    assert entry.name == "My-Model"
    assert entry.identity.startswith(f"{config['architectures'][0]}@")
    assert entry.kv_format(16).bytes_per_token == bytes_per_token
    assert (entry.kv_dtype, entry.vocab_size) == (dtype, config["vocab_size"])
    assert entry.max_model_tokens == config["max_position_embeddings"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"architectures": ["DeepseekV3ForCausalLM"], "kv_lora_rank": 512}, r"kv_lora_rank is 512.*MLA"),
        ({"architectures": ["Gemma2ForCausalLM"], "sliding_window": 4096}, "sliding_window is 4096"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "layer_types has sliding_attention"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layer_types has linear_attention"),
        ({"architectures": ["T5ForConditionalGeneration"]}, "architectures.*ForCausalLM"),
        ({"architectures": ["BertForMaskedLM"]}, "architectures.*ForCausalLM"),
        ({"architectures": None}, "architectures is None"),
        ({"is_encoder_decoder": True}, "encoder"),
        ({"vision_config": {"hidden_size": 1}}, "vision_config is there: multimodal"),
        ({"text_config": {"hidden_size": 1}}, "text_config is there: multimodal"),
        ({"hybrid_override_pattern": "M-M*-"}, "hybrid_override_pattern"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size"),
        ({"num_key_value_heads": [8, 4, 8]}, "num_key_value_heads.*alike"),
        ({"head_dim": 192, "v_head_dim": 128}, "v_head_dim is 128"),
        ({"num_key_value_heads": None, "multi_query": True}, "multi_query"),
        ({"num_hidden_layers": None}, "num_hidden_layers is None"),
        ({"max_position_embeddings": "long"}, "max_position_embeddings is 'long'"),
        ({"hidden_size": 4097}, "hidden_size is 4097.*32"),
        ({"torch_dtype": "float8_e4m3fn"}, "torch_dtype is 'float8_e4m3fn'.*bfloat16"),
        ({"torch_dtype": None}, "no dtype: set kv_dtype"),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, "kv_cache_scheme.*quantized K and V"),
    ],
    ids=str,
)
def test_models_that_pdd_cannot_serve_are_refused_by_name(tmp_path, changes, why):
    folder = configured_folder(tmp_path, LLAMA_3_8B | changes)
    with pytest.raises(ConfigError, match=why) as refused:
        find_model(str(folder))
    assert f"{folder}/config.json" in str(refused.value)


def test_quantized_kv_is_refused_where_another_file_asks_for_it(tmp_path):
    folder = configured_folder(tmp_path, LLAMA_3_8B)
    (folder / "hf_quant_config.json").write_text(
        '{"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}'
    )
    with pytest.raises(ConfigError, match=r"hf_quant_config.json: kv_cache_quant_algo is 'FP8'"):
        find_model(str(folder))


def test_quantized_weights_are_the_engines_business(tmp_path):
    config = LLAMA_3_8B | {"quantization_config": {"quant_method": "awq", "bits": 4}}
    assert find_model(str(configured_folder(tmp_path, config))).kv_dtype is DType.BFLOAT16


def test_all_heads_keep_k_and_v_unless_the_configuration_says_otherwise(tmp_path):
    config = {key: value for key, value in LLAMA_3_8B.items() if key != "num_key_value_heads"}
    entry = find_model(str(configured_folder(tmp_path, config)))
    assert entry.kv_format(16).bytes_per_token == 32 * 2 * 32 * 128 * 2


def test_kv_dtype_overrides_what_the_model_says_and_is_part_of_the_format(tmp_path):
    folder = str(configured_folder(tmp_path, LLAMA_3_8B))
    as_published, wider = find_model(folder), find_model(folder, kv_dtype=DType.FLOAT32)
    assert wider.kv_format(16).bytes_per_token == 2 * as_published.kv_format(16).bytes_per_token
    assert wider.identity == as_published.identity
    with pytest.raises(ConfigError, match=r"kv_dtype.*scripted"):
        find_model("scripted", kv_dtype=DType.FLOAT16)


def test_the_folders_name_is_no_part_of_the_format(tmp_path):
    here, there = (find_model(str(tiny_folder(tmp_path, name))) for name in ("here", "there"))
    assert here.name != there.name
    assert here.kv_format(16).fingerprint == there.kv_format(16).fingerprint


def test_only_vllm_engines_run_a_folder(tmp_path):
    with pytest.raises(ConfigError, match='Hugging Face folder; it needs kind = "vllm"'):
        embedded_weights(find_model(str(tiny_folder(tmp_path))))
    with pytest.raises(ConfigError, match="embedded engine keeps K and V in float32"):
        embedded_weights(find_model("tiny-random", kv_dtype=DType.BFLOAT16))


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "can't be read: No such file"), ("[1]", "not a JSON object"), ("{", "not a JSON object")],
)
def test_a_folder_in_another_format_is_refused(tmp_path, content, why):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=rf"config.json: {why}"):
        find_model(str(tmp_path))


def test_a_name_that_is_no_folder_says_that_nothing_is_downloaded():
    with pytest.raises(ConfigError, match=r"meta-llama/Llama-3.1-8B: there is no such folder; PDD downloads no models"):
        find_model("meta-llama/Llama-3.1-8B")
