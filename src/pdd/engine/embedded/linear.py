# pyright: basic
"""Linear layers that give each row the same bits whatever other rows are computed beside it.

That is what makes prefill in any chunks, decode in any batch and an extend after a hand-off equal. oneDNN's prepacked
product has the property for nearly every shape on the CPUs tried (AVX2, AVX-512), but promises it nowhere: so each
weight shape is *tried* at start-up at every row count that will occur, and the first path that holds is taken.

Row counts come from a short list (``row_buckets``): oneDNN compiles a kernel of its own for each (1.7 ms and 1 MB).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor
from torch.nn import functional

from pdd.core.errors import ConfigError

_PACK_ROWS_HINT = 16
MAX_STEP_ROWS = 511  # beyond this oneDNN splits rows another way


class Path(Enum):
    """How a product is computed."""

    PREPACKED = "prepacked by oneDNN"
    PLAIN = "torch's own"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactPath:
    """A path, and the least number of rows at which it is exact; fewer are padded."""

    path: Path
    min_rows: int


CANDIDATES = (
    ExactPath(path=Path.PREPACKED, min_rows=1),
    ExactPath(path=Path.PREPACKED, min_rows=2),
    ExactPath(path=Path.PREPACKED, min_rows=4),
    ExactPath(path=Path.PLAIN, min_rows=4),
    ExactPath(path=Path.PLAIN, min_rows=8),
)


class ExactLinear:
    """``x [rows, inputs] -> [rows, outputs]``, without bias."""

    __slots__ = ("_apply", "_min_rows")

    def __init__(self, weight: Tensor, path: ExactPath) -> None:
        """``weight`` is ``[outputs, inputs]``; a prepacked path keeps its own copy."""
        self._apply = _product(weight, path.path)
        self._min_rows = path.min_rows

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if rows >= self._min_rows:
            return self._apply(x)
        return self._apply(functional.pad(x, (0, 0, 0, self._min_rows - rows)))[:rows]


def row_buckets(max_rows: int) -> tuple[int, ...]:
    """The row counts in use, ascending, none more than a quarter too large (in steps of 16 from 48 on)."""
    small = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    buckets = small + list(range(48, max(48, max_rows) + 16, 16))
    return tuple(size for size, previous in zip(buckets, [0, *buckets], strict=False) if previous < max_rows)


def bucket_of(buckets: Sequence[int], rows: int) -> int:
    """The smallest of ``buckets`` that holds ``rows``."""
    return next(size for size in buckets if size >= rows)


def choose_path(
    weight: Tensor, rows: Sequence[int], candidates: Sequence[ExactPath] = CANDIDATES
) -> tuple[ExactPath, ExactLinear]:
    """Tries the paths on this weight at all of these row counts; the first that is exact, and the weight prepared for
    it.

    Raises:
        ConfigError: none is.
    """
    for candidate in candidates:
        linear = _try(weight, candidate)
        if linear is not None and _is_exact(linear, weight.shape[1], rows):
            return candidate, linear
    raise ConfigError(
        f"this CPU's matrix products of shape {tuple(weight.shape)} depend on the rows beside them (torch {torch.__version__}): "
        "relayed answers would differ from unrelayed ones, so the embedded engine does not start"
    )


def _try(weight: Tensor, path: ExactPath) -> ExactLinear | None:
    try:
        return ExactLinear(weight, path)
    except (AttributeError, RuntimeError):  # a torch without oneDNN, or without these private operators
        return None


def _is_exact(linear: ExactLinear, num_inputs: int, rows: Sequence[int]) -> bool:
    most = max(rows)
    x = torch.randn(most, num_inputs, generator=torch.Generator().manual_seed(most))
    expected = linear(x)
    for count in rows:
        offset = min(1, most - count)  # not only at its place within the batch
        if not torch.equal(linear(x[offset : offset + count]), expected[offset : offset + count]):
            return False
    return True


def _product(weight: Tensor, path: Path) -> Callable[[Tensor], Tensor]:
    if path is Path.PLAIN:
        return lambda x: functional.linear(x, weight)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS_HINT)  # noqa: SLF001
    multiply = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001
    return lambda x: multiply(x, packed, None, "none", [], "")
