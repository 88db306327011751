"""The table of KV transfer times, on the link model alone: the tail near full load needs hundreds of thousands of
transfers.

Everything but three constants is given: the load follows from the published rate, length and hit rate (0.92 of the
line), the lengths' spread from a public trace of agents. Fitted are the arrivals' waves; the latency is a published
measurement.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from random import Random

from pdd.core.units import Seconds, bytes_per_second
from pdd.sim.compare.measures import Quantiles, quantiles
from pdd.sim.line import carry
from pdd.sim.paper.published import ANSWER_TOKENS, LINE_RATE, PROMPT_TOKENS, REQUESTS_PER_S
from pdd.sim.workload.arrivals import Arrivals, arrival_times
from pdd.sim.workload.conversations import Lengths
from pdd.sim.workload.hits import HitRates, draw_hit_rate

ARRIVALS = Arrivals(requests_per_s=REQUESTS_PER_S, swing=0.27, mean_wave_s=Seconds(10.0))
LENGTH_SPREAD = 0.53
LATENCY = Seconds(0.15)
NUM_CONNECTIONS = 512
KV_BYTES_PER_TOKEN = 4387
"""23 GB/s for 80 requests/s of 65,536 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferJob:
    """One simulation: requests with these hit rates."""

    kind: str
    hit_rates: HitRates
    seed: int
    num_requests: int = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTable:
    """Of one seed. ``utilisation`` is of the line, ``busy_share`` of requests found no free connection."""

    kind: str
    seed: int
    took: Quantiles
    mean_wait_s: Seconds
    busy_share: float
    utilisation: float


def measure_transfers(job: TransferJob) -> TransferTable:
    """The first tenth is left out: it finds an empty line."""
    rate = bytes_per_second(LINE_RATE)
    transfers = draw_transfers(job)
    done = carry(transfers, rate=rate, delay=LATENCY, connections=NUM_CONNECTIONS)
    measured = done.transfers[len(transfers) // 10 :]
    waited = [each.waited_s for each in measured]
    return TransferTable(
        kind=job.kind,
        seed=job.seed,
        took=quantiles(each.took_s for each in measured),
        mean_wait_s=Seconds(sum(waited) / len(waited)),
        busy_share=sum(wait > 0 for wait in waited) / len(waited),
        utilisation=sum(num_bytes for _, num_bytes in transfers) / rate / done.duration_s,
    )


def draw_transfers(job: TransferJob) -> list[tuple[float, float]]:
    """(moment, bytes of the missed tokens) of each request."""
    chance = Random(job.seed)  # noqa: S311 (not for secrets)
    lengths = Lengths(mean=PROMPT_TOKENS, spread=LENGTH_SPREAD, least=ANSWER_TOKENS, most=16 * PROMPT_TOKENS)
    return [
        (moment, lengths.draw(chance) * (1 - draw_hit_rate(job.hit_rates, chance)) * KV_BYTES_PER_TOKEN)
        for moment in islice(arrival_times(ARRIVALS, chance), job.num_requests)
    ]
