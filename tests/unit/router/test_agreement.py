"""Every field on which two roles must agree, varied one by one."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from pdd.core.ids import NodeId
from pdd.core.kv_format import DType, KvFormat, uniform_attention_format
from pdd.engine.base import EngineInfo
from pdd.engine.noise import SAMPLING_VERSION
from pdd.router.driver.workers.agreement import Agreement


def kv_format(
    model: str = "m@1", block_tokens: int = 16, dtype: DType = DType.FLOAT32, num_layers: int = 2
) -> KvFormat:
    return uniform_attention_format(
        model=model, num_layers=num_layers, num_kv_heads=3, head_dim=4, dtype=dtype, block_tokens=block_tokens
    )


NODE = NodeId("node-p")
AGREEMENT = Agreement(model="m", max_model_tokens=4096, kv_format=kv_format())
RIGHT = EngineInfo(
    model="m",
    max_model_tokens=4096,
    kv_format=kv_format().description,
    sampling_version=SAMPLING_VERSION,
    node=NODE,
    instance="i",
)
OURS = "m@1|block=16|2 x kv:float32[2x3x4]"

WRONG = [
    ({"model": "n"}, "serves model 'n', this deployment 'm'"),
    ({"max_model_tokens": 2048}, "takes 2048 tokens, this deployment 4096"),
    ({"kv_format": None}, "does not say what KV it exchanges"),
    (
        {"kv_format": kv_format("m@2").description},
        f"exchanges KV as 'm@2|block=16|2 x kv:float32[2x3x4]', this deployment as '{OURS}': they differ in model",
    ),
    (
        {"kv_format": kv_format(block_tokens=32).description},
        f"exchanges KV as 'm@1|block=32|2 x kv:float32[2x3x4]', this deployment as '{OURS}': they differ in block length",
    ),
    (
        {"kv_format": kv_format(dtype=DType.BFLOAT16).description},
        f"exchanges KV as 'm@1|block=16|2 x kv:bfloat16[2x3x4]', this deployment as '{OURS}': they differ in layers",
    ),
    (
        {"kv_format": kv_format(num_layers=3).description},
        f"exchanges KV as 'm@1|block=16|3 x kv:float32[2x3x4]', this deployment as '{OURS}': they differ in layers",
    ),
    ({"sampling_version": None}, "does not say how it draws tokens"),
    (
        {"sampling_version": SAMPLING_VERSION + 1},
        f"draws tokens by version {SAMPLING_VERSION + 1}, this deployment by {SAMPLING_VERSION}",
    ),
    ({"node": NodeId("node-x")}, "stands beside node node-x, in this deployment beside node-p"),
]


def why_not(**says: object) -> str | None:
    return AGREEMENT.why_not_engine(replace(RIGHT, **says), node=NODE)


@pytest.mark.parametrize(("says", "why"), WRONG)
def test_an_engine_that_differs_in_one_field_is_told_which(says: dict[str, object], why: str):
    assert why_not(**says) == why


def test_every_field_of_what_an_engine_says_is_held_to_the_deployment():
    assert {name for says, _ in WRONG for name in says} == {field.name for field in fields(EngineInfo)} - {"instance"}


@pytest.mark.parametrize("says", [{}, {"max_model_tokens": 8192}, {"node": None}, {"instance": "j"}])
def test_an_engine_that_agrees_may_be_larger_and_need_not_name_its_node(says: dict[str, object]):
    assert why_not(**says) is None


def test_all_that_is_wrong_is_told_at_once():
    why = why_not(model="n", max_model_tokens=1)
    assert why == "serves model 'n', this deployment 'm'; takes 1 tokens, this deployment 4096"
