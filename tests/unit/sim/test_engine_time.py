"""The roofline, and the arithmetic that sums up many decode steps at once."""

from itertools import pairwise

import pytest

from pdd.core.errors import ConfigError
from pdd.sim.engine_time import Chunk, StepTimes
from pdd.sim.profile import load_hardware, load_model, packaged_profiles


def times(model: str = "Llama-3.1-70B", hardware: str = "H100-SXM", num_chips: int = 8, cache_tokens: int = 500_000):
    return StepTimes(
        load_model(model), load_hardware(hardware), num_chips=num_chips, cache_tokens=cache_tokens, name="x"
    )


@pytest.mark.parametrize("model", packaged_profiles("models"))
@pytest.mark.parametrize(("num_decodes", "num_context"), [(1, 10), (64, 64 * 65_536), (300, 300 * 900)])
def test_many_decode_steps_take_as_long_as_each_of_them(model, num_decodes, num_context):
    engine = times(model, num_chips=32)
    single = sum(
        engine.decode_steps(1, num_decodes=num_decodes, num_context=num_context + num_decodes * step)
        for step in range(200)
    )
    assert engine.decode_steps(200, num_decodes=num_decodes, num_context=num_context) == pytest.approx(single, 1e-9)


def test_compute_that_overtakes_memory_in_the_middle_is_summed_exactly():
    engine = times("Kimi-K2", "H20-SXM", num_chips=16, cache_tokens=1_000_000)
    durations = [
        engine.decode_steps(1, num_decodes=150, num_context=150 * context) for context in range(300, 60_000, 500)
    ]
    growths = {round((after - before) * 1e9) for before, after in pairwise(durations)}
    assert len(growths) >= 2, "this case no longer crosses"
    total = engine.decode_steps(59_000, num_decodes=150, num_context=150 * 300)
    single = sum(engine.decode_steps(1, num_decodes=150, num_context=150 * (300 + step)) for step in range(59_000))
    assert total == pytest.approx(single, 1e-9)


def test_a_decode_step_of_a_dense_model_streams_its_weights():
    # 141.2 GB / (8 x 3.35 TB/s x 0.75) = 7.0 ms, and 1.8 ms of overhead
    assert times().decode_steps(1, num_decodes=1, num_context=1) == pytest.approx(0.00882, rel=0.01)


@pytest.mark.parametrize(("num_decodes", "num_context"), [(20, 40_000), (3000, 30_000)])
def test_a_step_without_prefill_takes_as_long_as_a_decode_step(num_decodes, num_context):
    engine = times()
    assert engine.mixed_step([], num_decodes=num_decodes, num_context=num_context) == pytest.approx(
        engine.decode_steps(1, num_decodes=num_decodes, num_context=num_context)
    )


def test_a_short_chunk_after_a_long_context_reads_its_kv():
    engine = times()
    chunk = Chunk(num_tokens=1, num_context=120_000)
    assert engine.mixed_step([chunk], num_decodes=0, num_context=0) == pytest.approx(
        engine.decode_steps(1, num_decodes=1, num_context=120_001)
    )


def test_a_long_prefill_is_bound_by_compute_and_costs_the_same_in_chunks_but_for_overheads():
    engine = times()
    whole = engine.mixed_step([Chunk(num_tokens=16_384, num_context=0)], num_decodes=0, num_context=0)
    chunks = sum(
        engine.mixed_step([Chunk(num_tokens=4096, num_context=4096 * index)], num_decodes=0, num_context=0)
        for index in range(4)
    )
    assert chunks - whole == pytest.approx(3 * 0.0018, rel=1e-3)
    # 2 x 70.6e9 x 16,384 FLOP and attention's 0.35e15 at 8 x 989 TFLOP/s x 0.5
    assert whole == pytest.approx(0.676, rel=0.02)


def test_cached_context_makes_a_chunk_dearer():
    engine = times()
    cold = engine.mixed_step([Chunk(num_tokens=4096, num_context=0)], num_decodes=0, num_context=0)
    assert engine.mixed_step([Chunk(num_tokens=4096, num_context=60_000)], num_decodes=0, num_context=0) > cold


def test_a_sparse_model_reads_more_experts_the_more_tokens_a_step_has():
    model = load_model("Kimi-K2")
    assert model.weight_bytes_read(1) == pytest.approx(model.dense_weight_bytes + model.expert_weight_bytes * 8 / 384)
    assert model.weight_bytes_read(10_000) == pytest.approx(model.dense_weight_bytes + model.expert_weight_bytes)


def test_an_engine_that_does_not_fit_its_memory_is_refused_with_what_would():
    with pytest.raises(ConfigError, match=r"engine x: DeepSeek-V4-Pro's weights .* 8 x H100-SXM .* would hold them"):
        times("DeepSeek-V4-Pro", num_chips=8)


@pytest.mark.parametrize("name", packaged_profiles("hardware"))
def test_every_packaged_chip_is_read(name):
    assert load_hardware(name).name == name


def test_a_models_blocks_have_the_size_of_its_kv():
    assert load_model("DeepSeek-V4-Pro").kv_format(512).block_bytes == 512 * 4400


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("num_layers = 0", "missing required field"),
        ("x = ", "Invalid"),
        ("colour = 1", "unknown field"),
    ],
)
def test_a_wrong_profile_is_refused_in_one_line(tmp_path, text, complaint):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        load_model(str(file))


def test_figures_that_are_not_positive_are_refused(tmp_path):
    from importlib.resources import files

    text = (files("pdd.sim.profiles") / "models" / "Qwen3-32B.toml").read_text()
    file = tmp_path / "mine.toml"
    file.write_text(text.replace("num_layers = 64", "num_layers = 0"))
    with pytest.raises(ConfigError, match="num_layers = 0: it must be more than 0"):
        load_model(str(file))


def test_an_unknown_profile_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="packaged hardware: A100-SXM, "):
        load_hardware("H1000")
