"""The published figures beside the simulated ones, what was assumed, and what must hold of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pdd.core.topology import RouteRule
from pdd.sim.compare.estimates import estimate
from pdd.sim.compare.measures import Measures, Quantiles
from pdd.sim.compare.systems import System
from pdd.sim.paper import published
from pdd.sim.paper.assumptions import Assumption
from pdd.sim.paper.runs import Purpose, RunTable
from pdd.sim.paper.transfers import TransferTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """``low`` and ``high`` bound the mean over seeds (95 %); ``residual`` is simulated over published, less one."""

    published: float | None
    simulated: float
    low: float | None
    high: float | None
    residual: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What must hold: ``left`` is ``relation`` ``right``."""

    name: str
    left: float
    relation: str
    right: float
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A third of a run."""

    relay_share: float
    rld_token_share: float
    ttst_p90_s: float | None
    main_hit: float | None
    within_sla: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperReport:
    """Everything, to be printed as JSON or shown. Percentiles are means over seeds of each seed's percentile."""

    ttft_s: Mapping[str, Mapping[str, Figure]]
    kv_transfer_s: Mapping[str, Mapping[str, Figure]]
    connection_wait_s: Mapping[str, Figure]
    rld_token_share: Figure
    cross_dc_transfer_p50_s: Figure
    goodput_per_s: Mapping[str, Figure]
    relay_share: Figure
    collapse: Mapping[str, Sequence[Stage]]
    holds: Sequence[Constraint]
    assumptions: Sequence[Assumption]
    seeds: Sequence[int]
    requests_per_run: int

    @property
    def all_hold(self) -> bool:
        return all(each.holds for each in self.holds)


def figure(values: Iterable[float | None], of: float | None = None) -> Figure:
    """From one value per seed; ``of`` is published."""
    found = estimate([value for value in values if value is not None] or [float("nan")])
    return Figure(
        published=of,
        simulated=found.mean,
        low=found.low,
        high=found.high,
        residual=None if of is None else found.mean / of - 1,
    )


def build_report(
    transfers: Sequence[TransferTable],
    runs: Sequence[RunTable],
    *,
    assumptions: Sequence[Assumption],
    seeds: Sequence[int],
    requests_per_run: int,
) -> PaperReport:
    """Puts together what one process or several measured."""
    by_system = {system: [run.whole for run in _of(runs, Purpose.TTFT) if run.system is system] for system in System}
    ttft = {
        system.value: _quantile_figures([run.decode_ttft for run in by_system[system]], published.TTFT[system])
        for system in System
    }
    kinds = {kind: [table for table in transfers if table.kind == kind] for kind in published.KV_TRANSFER}
    kv_transfer = {
        kind: _quantile_figures([table.took for table in tables], published.KV_TRANSFER[kind])
        for kind, tables in kinds.items()
    }
    share = figure((run.whole.rld_token_share for run in _of(runs, Purpose.RLD_SHARE)), published.RLD_TOKEN_SHARE)
    collapse = {run.route.value: [_stage(third) for third in run.thirds] for run in _of(runs, Purpose.COLLAPSE)}
    return PaperReport(
        ttft_s=ttft,
        kv_transfer_s=kv_transfer,
        connection_wait_s={
            kind: figure(
                (table.mean_wait_s for table in tables),
                published.CONNECTION_WAIT_NARROW if kind == "narrow" else None,
            )
            for kind, tables in kinds.items()
        },
        rld_token_share=share,
        cross_dc_transfer_p50_s=figure(
            (run.transfer.p50 for run in by_system[System.CROSS_DC]), published.KV_TRANSFER["skewed"].p50
        ),
        goodput_per_s={system.value: figure(run.goodput_per_s for run in by_system[system]) for system in System},
        relay_share=figure(run.relay_share for run in by_system[System.PDD]),
        collapse=collapse,
        holds=tuple(_constraints(ttft, kv_transfer, share, collapse)),
        assumptions=assumptions,
        seeds=seeds,
        requests_per_run=requests_per_run,
    )


def _of(runs: Iterable[RunTable], purpose: Purpose) -> list[RunTable]:
    return [run for run in runs if run.purpose is purpose]


def _quantile_figures(found: Sequence[Quantiles], of: published.Percentiles) -> dict[str, Figure]:
    choices: Mapping[str, tuple[Callable[[Quantiles], float | None], float | None]] = {
        "p50": (lambda each: each.p50, of.p50),
        "p90": (lambda each: each.p90, of.p90),
        "p99": (lambda each: each.p99, of.p99),
    }
    return {name: figure((choose(each) for each in found), known) for name, (choose, known) in choices.items()}


def _stage(measures: Measures) -> Stage:
    return Stage(
        relay_share=measures.relay_share,
        rld_token_share=measures.rld_token_share,
        ttst_p90_s=measures.ttst.p90,
        main_hit=measures.main_hit,
        within_sla=measures.within_sla,
    )


def _constraints(
    ttft: Mapping[str, Mapping[str, Figure]],
    kv_transfer: Mapping[str, Mapping[str, Figure]],
    share: Figure,
    collapse: Mapping[str, Sequence[Stage]],
) -> Iterator[Constraint]:
    same, cross, pdd = (ttft[system.value] for system in (System.SAME_DC, System.CROSS_DC, System.PDD))
    for name in ("p90", "p99"):
        yield _more(f"cross_dc.{name} > 1.2 pdd.{name}", cross[name].simulated, 1.2 * pdd[name].simulated)
    yield _more("cross_dc.p50 >= pdd.p50", cross["p50"].simulated, pdd["p50"].simulated)
    yield _less("pdd.p50 <= 1.25 same_dc.p50", pdd["p50"].simulated, 1.25 * same["p50"].simulated)
    yield _less(
        "skewed.p50 <= 0.6 narrow.p50",
        kv_transfer["skewed"]["p50"].simulated,
        0.6 * kv_transfer["narrow"]["p50"].simulated,
    )
    yield _more("rld_token_share >= 0.01", share.simulated, 0.01)
    yield _less("rld_token_share <= 0.12", share.simulated, 0.12)
    healthy, collapsed = (collapse[rule.value] for rule in (RouteRule.MISSING_BYTES, RouteRule.RELAY_ONLY))
    yield _more("relay-only relays over twice as many as pdd", _relay_share(collapsed), 2 * _relay_share(healthy))
    yield _more(
        "relay-only ends with over twice pdd's P90 of the second token",
        collapsed[-1].ttst_p90_s or 0.0,
        2 * (healthy[-1].ttst_p90_s or 0.0),
    )


def _relay_share(stages: Sequence[Stage]) -> float:
    return fmean(stage.relay_share for stage in stages)


def _more(name: str, left: float, right: float) -> Constraint:
    return Constraint(name=name, left=left, relation=">=", right=right, holds=left >= right)


def _less(name: str, left: float, right: float) -> Constraint:
    return Constraint(name=name, left=left, relation="<=", right=right, holds=left <= right)
