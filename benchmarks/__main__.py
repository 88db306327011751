"""``python -m benchmarks [NAME ...]``: those named, or all that need no vLLM.

Tables to stdout, JSON to build/benchmarks.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from time import monotonic
from typing import cast

from rich.console import Console

from benchmarks.report import Result, save, show
from pdd.core.errors import ConfigError

NAMES = ("link", "replication", "engine", "relay", "full", "front_door", "router")
ON_VLLM = ("vllm_relay",)
"""They need another environment: `make bench-vllm`."""


def main() -> None:
    """Runs one after the other: two at once would measure each other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[[], *NAMES, *ON_VLLM], metavar="NAME", help=", ".join((*NAMES, *ON_VLLM))
    )
    parser.add_argument("--repetitions", type=int, default=3, help="of everything measured (default: %(default)s)")
    parser.add_argument("--against", metavar="REF", help="router only: a commit to measure beside this tree")
    arguments = parser.parse_args()
    if arguments.against is not None and "router" not in (arguments.names or NAMES):
        parser.error(f"--against {arguments.against}: only router measures another commit")
    console, progress = Console(width=120), Console(stderr=True)
    for name in arguments.names or NAMES:
        progress.print(f"{name} ...")
        began = monotonic()
        # Imported one by one: torch must find its environment set before it comes in.
        module = importlib.import_module(f"benchmarks.{name}")
        run = cast(Callable[..., Result], module.run)
        options = {"against": arguments.against} if name == "router" else {}
        try:
            result = run(arguments.repetitions, **options)
        except ConfigError as error:
            parser.exit(2, f"{name}: {error}\n")
        show(result, console)
        progress.print(f"{name}: {monotonic() - began:.0f} s, {save(result)}")


if __name__ == "__main__":
    main()
