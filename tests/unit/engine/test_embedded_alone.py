"""A sequence computed without an engine gives the engine's own numbers."""

import pytest

from pdd.engine.catalog import find_model
from pdd.engine.noise import choose_token
from tests.support.embedded import SAMPLINGS, generation, make_core, prompt, run

from pdd.engine.embedded.alone import LoneModel  # isort: skip  # after the support module has set torch's environment


@pytest.fixture(scope="module")
def lone() -> LoneModel:
    return LoneModel.load(find_model("tiny-random"), max_model_tokens=2048)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_its_logits_draw_the_engines_tokens(lone: LoneModel, sampling):
    known = prompt(300)
    (tokens,) = run(make_core(), generation(known, max_tokens=12, sampling=sampling))
    for position, token in enumerate(tokens):
        assert choose_token(lone.logits_after(known + tokens[:position]), sampling, position=position) == token


def test_a_single_token_is_enough(lone: LoneModel):
    assert lone.logits_after([7]).shape == (512,)
