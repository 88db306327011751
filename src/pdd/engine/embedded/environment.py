"""What must be in the environment *before* torch is imported.

Imports nothing, so that the command line can set it first.
"""

from __future__ import annotations

from collections.abc import Mapping

TORCH_ENVIRONMENT: Mapping[str, str] = {
    # Spinning OpenMP threads take the cores from the other engines of a machine: prefill fell from 268 to 19 tokens/s.
    "OMP_WAIT_POLICY": "PASSIVE",
    # One code path in MKL, whatever the alignment of its arguments: bit-exactness of attention rests on it.
    "MKL_CBWR": "AVX2,STRICT",
}
