"""The forward pass against a plain one, written from the definition, in float64 and without a cache."""

import pytest

from pdd.engine.models.sources import LlamaShape
from tests.support.embedded import core_settings, prompt

import torch  # isort: skip  # after the support module has set its environment

from pdd.engine.embedded.model import LlamaModel
from pdd.engine.embedded.paged_cache import PagedCache
from pdd.engine.embedded.step import StepBuilder
from pdd.engine.embedded.weights import LayerWeights, load_weights


def rotate(x: torch.Tensor, theta: float) -> torch.Tensor:
    """Each pair (i, i + half) of ``x [tokens, heads, size]`` as a complex number, turned by its angle."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[0], dtype=torch.float64)[:, None, None] * frequency
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), -1)


def norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() * weight.double()


def reference_attention(shape: LlamaShape, layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
    sizes = [count * shape.head_dim for count in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)]
    query, key, value = (part.view(len(x), -1, shape.head_dim) for part in (x @ layer.qkv.double().T).split(sizes, -1))
    query, key = rotate(query, shape.rope_theta), rotate(key, shape.rope_theta)
    outputs = []
    for head in range(shape.num_heads):
        shared = head * shape.num_kv_heads // shape.num_heads
        scores = query[:, head] @ key[:, shared].T / shape.head_dim**0.5
        future = torch.ones(len(x), len(x)).triu(1).bool()
        outputs.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ value[:, shared])
    return torch.cat(outputs, -1) @ layer.attention_output.double().T


def reference_logits(tokens: list[int]) -> torch.Tensor:
    weights = load_weights(core_settings().model)
    shape = weights.shape
    hidden = weights.embedding.double()[tokens]
    for layer in weights.layers:
        hidden = hidden + reference_attention(shape, layer, norm(hidden, layer.attention_norm, shape.norm_epsilon))
        x = norm(hidden, layer.mlp_norm, shape.norm_epsilon)
        gated = torch.nn.functional.silu(x @ layer.gate.double().T) * (x @ layer.up.double().T)
        hidden = hidden + gated @ layer.down.double().T
    return norm(hidden, weights.final_norm, shape.norm_epsilon) @ weights.embedding.double().T


@pytest.mark.parametrize("num_tokens", [1, 2, 40, 300])
def test_the_model_agrees_with_its_definition(num_tokens):
    tokens = prompt(num_tokens, seed=1)
    settings = core_settings()
    with torch.inference_mode():
        model = LlamaModel(load_weights(settings.model), max_model_tokens=512, max_step_tokens=304, max_batch=1)
        cache = PagedCache(model.shape, settings.kv_format, 20)
        builder = StepBuilder(cache)
        builder.add(tokens, first_position=0, block_table=range(20), sampled=True)
        logits = model.forward(builder.build(model.buckets), cache)[0]
    torch.testing.assert_close(logits.double(), reference_logits(tokens)[-1], rtol=2e-4, atol=2e-4)
