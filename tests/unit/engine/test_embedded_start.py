"""What keeps an engine from starting, and how it chooses exact products."""

import subprocess
import sys

import pytest

from pdd.core.errors import ConfigError
from pdd.engine.catalog import ModelEntry, find_model
from pdd.engine.models.sources import NoWeights
from tests.support.embedded import core_settings

import torch  # isort: skip  # after the support module has set its environment

from pdd.engine.embedded.core import load_model
from pdd.engine.embedded.linear import ExactLinear, ExactPath, Path, bucket_of, choose_path, row_buckets
from pdd.engine.embedded.self_test import check_exactness
from pdd.engine.embedded.weights import load_weights


@pytest.mark.parametrize("max_rows", [1, 2, 5, 16, 33, 48, 144, 272, 511])
def test_every_row_count_has_a_bucket_that_is_not_much_larger(max_rows):
    buckets = row_buckets(max_rows)
    assert list(buckets) == sorted(set(buckets))
    assert buckets[0] == 1
    assert max_rows <= buckets[-1] <= max_rows + 16
    for rows in range(1, max_rows + 1):
        bucket = bucket_of(buckets, rows)
        assert bucket >= rows
        assert bucket <= max(rows * 1.5, rows + 1)


@pytest.mark.parametrize("path", [Path.PREPACKED, Path.PLAIN])
@pytest.mark.parametrize("min_rows", [1, 4])
def test_every_path_computes_the_product(path, min_rows):
    weight, x = torch.randn(24, 40), torch.randn(3, 40)
    got = ExactLinear(weight, ExactPath(path=path, min_rows=min_rows))(x)
    assert got.shape == (3, 24)
    torch.testing.assert_close(got, x @ weight.T)


def test_the_chosen_path_gives_each_row_the_same_bits_at_every_tried_row_count():
    rows = row_buckets(144)
    weight = torch.randn(576, 1536)
    _, linear = choose_path(weight, rows)
    x = torch.randn(144, 1536)
    whole = linear(x)
    for count in rows:
        assert torch.equal(linear(x[:count]), whole[:count])


def test_no_exact_path_is_a_refusal_that_names_the_reason():
    with pytest.raises(ConfigError, match="depend on the rows beside them"):
        choose_path(torch.randn(8, 8), (1, 2), candidates=())


def test_a_path_that_depends_on_the_row_count_is_passed_over():
    """torch's own product of a single row takes a path of its own on every CPU tried; with padding it doesn't."""
    weight = torch.randn(576, 1536)
    candidates = [ExactPath(path=Path.PLAIN, min_rows=rows) for rows in (1, 4, 8)]
    path, linear = choose_path(weight, (1, 2, 8, 64), candidates)
    x = torch.randn(64, 1536)
    assert torch.equal(linear(x[:1]), linear(x)[:1])
    assert path.min_rows > 1 or torch.equal(torch.nn.functional.linear(x[:1], weight), linear(x)[:1])


def test_a_torch_without_the_private_operators_falls_back_to_its_own_product(monkeypatch):
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    path, _ = choose_path(torch.randn(64, 64), (1, 2, 8))
    assert path.path is Path.PLAIN


def test_the_self_test_passes_here():
    settings = core_settings()
    with torch.inference_mode():
        check_exactness(load_model(settings), settings.kv_format)


class NudgedModel:
    """Off by one unit in the last place wherever a step has as many rows as a hand-off's extend."""

    def __init__(self, model) -> None:
        self._model = model
        self.shape, self.buckets = model.shape, model.buckets

    def forward(self, step, cache):
        logits = self._model.forward(step, cache)
        return logits if step.slots.shape[0] != 4 else logits * (1 + 2**-23)


def test_the_self_test_catches_a_model_that_depends_on_the_split():
    settings = core_settings()
    with torch.inference_mode(), pytest.raises(ConfigError, match="other bits"):
        check_exactness(NudgedModel(load_model(settings)), settings.kv_format)


def test_a_model_without_weights_is_refused():
    entry = ModelEntry(
        name="none", identity="none@1", vocab_size=512, max_model_tokens=64, weights=NoWeights(floats_per_token=1)
    )
    with pytest.raises(ConfigError, match="none"):
        load_weights(entry)


def test_seeded_weights_are_the_same_each_time():
    first, second = (load_weights(find_model("tiny-random")) for _ in range(2))
    assert torch.equal(first.embedding, second.embedding)
    assert all(torch.equal(a.qkv, b.qkv) for a, b in zip(first.layers, second.layers, strict=True))


def test_the_environment_for_torch_can_be_read_before_torch_is_imported():
    script = (
        "import sys; from pdd.engine.embedded.environment import TORCH_ENVIRONMENT; "
        "sys.exit('torch' in sys.modules or not TORCH_ENVIRONMENT)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0
