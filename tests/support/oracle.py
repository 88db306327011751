"""Pinned runs: what a set of seeds did, as digests. A change of structure must not change any of them.

Each run has three digests. ``output`` is what it came to. ``events`` is which events happened when, whatever their
order within one instant. ``order`` counts that order, too: it alone may change where tasks are merged, which then has
to be explained. Times and other fractions are rounded, so that another machine's last bits don't show.

    python -m tests.support.oracle              compares every pinned run, and says which moved
    python -m tests.support.oracle --pin        writes down what moved; its commit says why each of them did
    python -m tests.support.oracle --seeds 300 --file build/before.json --pin     pins more seeds of chaos, elsewhere
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

from pdd.cli.topology.file import load_simulated_topology
from pdd.sim.chaos.play import play_seed
from pdd.sim.report import summarize
from pdd.sim.run import simulate
from pdd.sim.workload.load import Changes, load_workload
from pdd.sim.workload.traces import fitting
from pdd.telemetry.events import Event

PINNED = Path(__file__).parents[1] / "data" / "oracle.json"
FIRST_CHAOS_SEED = 4_000
NUM_CHAOS_SEEDS = 24

RENAMED: Mapping[str, str] = {}
"""Today's word -> the word that it had when the digests were made. Names are all that this may hide."""

Digests = Mapping[str, str]

_SIMULATED = (
    ("crossing", "agents-singular", 5.0, 120),
    ("apart", "agents-surge", 8.0, 90),
    ("collapse", "chat", 20.0, 120),
    ("paper", "agents", 20.0, 50),
)


def runs(num_chaos_seeds: int = NUM_CHAOS_SEEDS) -> dict[str, Callable[[], Digests]]:
    """All runs, by name."""
    simulated = {
        f"sim {topology} {workload}": _simulated(topology, workload, rate, num_requests)
        for topology, workload, rate, num_requests in _SIMULATED
    }
    chaos = {f"chaos {seed}": _chaotic(seed) for seed in range(FIRST_CHAOS_SEED, FIRST_CHAOS_SEED + num_chaos_seeds)}
    return {**simulated, **chaos}


def pinned(path: Path = PINNED) -> Mapping[str, Digests]:
    """What the runs did when they were pinned."""
    return json.loads(path.read_text())


def _chaotic(seed: int) -> Callable[[], Digests]:
    def run() -> Digests:
        events: list[tuple[float, str]] = []
        played = play_seed(seed, lambda at, what: events.append((at, what)))
        return _digests(events, repr(played))

    return run


def _simulated(topology: str, workload: str, rate: float, num_requests: int) -> Callable[[], Digests]:
    def run() -> Digests:
        table = load_simulated_topology(topology)
        changes = Changes(requests_per_s=rate, num_requests=num_requests)
        requests = fitting(load_workload(workload, seed=3, changes=changes), table.max_model_tokens)
        events: list[tuple[float, str]] = []

        def note(event: Event) -> None:
            events.append((event.at, f"{event.request} {event.name} {sorted(event.fields.items())}"))

        result = simulate(table, requests, seed=3, trace=note)
        output = json.dumps(summarize(result, table.router.sla), sort_keys=True)
        return _digests(events, f"{output} {result.samples}")

    return run


def _digests(events: list[tuple[float, str]], output: str) -> Digests:
    lines = [f"{at:.6f} {_canonical(what)}" for at, what in events]
    return {
        "output": _digest(_canonical(output)),
        "events": _digest("\n".join(sorted(lines))),
        "order": _digest("\n".join(lines)),
    }


_WORD = re.compile(r"[A-Za-z_]+")
_FRACTION = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?|\d+e-\d+")


def _canonical(text: str) -> str:
    named = _WORD.sub(lambda word: RENAMED.get(word[0], word[0]), text)
    return _FRACTION.sub(lambda number: f"{float(number[0]):.6g}", named)


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=PINNED)
    parser.add_argument("--seeds", type=int, default=NUM_CHAOS_SEEDS)
    parser.add_argument("--pin", action="store_true")
    args = parser.parse_args()
    before = dict(pinned(args.file)) if args.file.exists() else {}
    now = {name: run() for name, run in runs(args.seeds).items()}
    moved = {name: digests for name, digests in now.items() if before.get(name) != digests}
    for name, digests in moved.items():
        parts = [part for part, digest in digests.items() if before.get(name, {}).get(part) != digest]
        print(f"{name}: {', '.join(parts)}")
    print(f"{len(moved)} of {len(now)} moved")
    if args.pin:
        args.file.write_text(json.dumps({**before, **moved}, indent=1) + "\n")
    return 0 if args.pin or not moved else 1


if __name__ == "__main__":
    raise SystemExit(_main())
