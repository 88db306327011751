"""What the commands that read traces share: the flag for their blocks, and how what is doubtful in them is told."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from pdd.cli.options import check_range

if TYPE_CHECKING:
    from pdd.sim.workload.base import Workload
    from pdd.sim.workload.trace.report import TraceReport

_MAX_BLOCK_TOKENS = 1 << 20


def add_block_tokens(parser: argparse.ArgumentParser) -> None:
    """``--trace-block-tokens``."""
    parser.add_argument(
        "--trace-block-tokens",
        type=int,
        metavar="N",
        help="tokens that one hash id of a trace stands for (default: 512; of Qwen-Bailian's traces, 16)",
    )


def check_block_tokens(args: argparse.Namespace) -> None:
    """Raises ConfigError if it is out of range."""
    check_range("--trace-block-tokens", args.trace_block_tokens, least=1, most=_MAX_BLOCK_TOKENS)


def tell_doubts(workload: Workload) -> TraceReport | None:
    """On stderr, a line each; returns all there is to say for ``--json``."""
    if workload.report is not None:
        for line in workload.report.lines():
            print(f"pdd: {line}", file=sys.stderr)
    return workload.report
