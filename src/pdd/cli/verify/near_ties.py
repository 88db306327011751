"""When two engines of different kinds may differ: pure arithmetic on the reference's scores.

Two engines compute the same logits up to the last bits of float32, so they may choose differently only where the two
best tokens are closer together than those bits weigh. Anything else is a mismatch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pdd.core.ids import TokenId
from pdd.core.request import Sampling
from pdd.engine.noise import score_tokens

NEAR_TIE = 1e-3
"""Last bits of float32 move a logit by some 1e-5; what a wrong KV cache moves is larger by orders of magnitude."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """The two tokens with the best scores at one position, and how far apart those are. Alone, a token has no rival."""

    best: TokenId
    second: TokenId | None
    gap: float

    def why_no_near_tie(self, emitted: TokenId, expected: TokenId) -> str | None:
        """Why ``emitted`` in place of ``expected`` can't be explained by last bits; None if it can."""
        if {emitted, expected} != {self.best, self.second}:
            return "it isn't one of the two best tokens for the other"
        return None if self.gap < NEAR_TIE else f"the two best tokens are {self.gap:.2g} apart"


def rivals_at(logits: npt.NDArray[np.floating], sampling: Sampling, *, position: int) -> Rivals:
    """Who might have been drawn at output ``position`` from the reference's ``logits`` ``[vocab]``.

    A constant added to all of them (as in log-probabilities) changes nothing.
    """
    token_ids, scores = score_tokens(logits, sampling, position=position)
    order = np.argsort(-scores, kind="stable")
    best = int(token_ids[order[0]])
    if scores.size == 1:
        return Rivals(best=best, second=None, gap=np.inf)
    return Rivals(best=best, second=int(token_ids[order[1]]), gap=float(scores[order[0]] - scores[order[1]]))
