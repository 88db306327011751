"""The published figures beside the simulated ones, what was assumed, and what must hold of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from math import isnan, nan
from operator import ge, gt, le, lt
from statistics import fmean

from pdd.core.topology import RouteRule
from pdd.sim.compare.estimates import Estimate, estimate
from pdd.sim.compare.measures import Measures, Quantiles
from pdd.sim.compare.systems import System
from pdd.sim.paper import published
from pdd.sim.paper.assumptions import Assumption
from pdd.sim.paper.runs import CollapseTable, Purpose, RunTable, Stage
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
    """What must hold of the mean over seeds: ``value`` is ``relation`` ``bound``.

    Each seed gives all systems the same requests, so ratios between them are taken seed by seed; ``num_seeds_hold`` of
    ``num_seeds`` meet the bound alone. ``low`` and ``high`` bound the mean (95 %).
    """

    name: str
    value: float
    low: float | None
    high: float | None
    relation: str
    bound: float
    num_seeds_hold: int
    num_seeds: int
    holds: bool


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
    found = estimate([value for value in values if value is not None] or [nan])
    return Figure(
        published=of,
        simulated=found.mean,
        low=found.low,
        high=found.high,
        residual=None if of is None else found.mean / of - 1,
    )


def build_report(
    *,
    transfers: Sequence[TransferTable],
    runs: Sequence[RunTable],
    collapses: Sequence[CollapseTable],
    assumptions: Sequence[Assumption],
    seeds: Sequence[int],
    requests_per_run: int,
) -> PaperReport:
    """Puts together what one process or several measured: all in the order of seeds."""
    by_system = {system: [run.whole for run in _of(runs, Purpose.TTFT) if run.system is system] for system in System}
    shares = [run.whole.rld_token_share for run in _of(runs, Purpose.RLD_SHARE)]
    kinds = {kind: [table for table in transfers if table.kind == kind] for kind in published.KV_TRANSFER}
    by_rule = {rule: [table.thirds for table in collapses if table.route is rule] for rule in _COLLAPSE_RULES}
    return PaperReport(
        ttft_s={
            system.value: _quantile_figures([run.decode_ttft for run in of_system], published.TTFT[system])
            for system, of_system in by_system.items()
        },
        kv_transfer_s={
            kind: _quantile_figures([table.took for table in tables], published.KV_TRANSFER[kind])
            for kind, tables in kinds.items()
        },
        connection_wait_s={
            kind: figure(
                (table.mean_wait_s for table in tables),
                published.CONNECTION_WAIT_NARROW if kind == "narrow" else None,
            )
            for kind, tables in kinds.items()
        },
        rld_token_share=figure(shares, published.RLD_TOKEN_SHARE),
        cross_dc_transfer_p50_s=figure(
            (run.transfer.p50 for run in by_system[System.CROSS_DC]), published.KV_TRANSFER["skewed"].p50
        ),
        goodput_per_s={
            system.value: figure(run.goodput_per_s for run in of_system) for system, of_system in by_system.items()
        },
        relay_share=figure(run.relay_share for run in by_system[System.PDD]),
        collapse={rule.value: tuple(map(_mean_stage, zip(*by_rule[rule], strict=True))) for rule in _COLLAPSE_RULES},
        holds=(
            *_of_ttft(by_system),
            *_of_transfers(kinds),
            _bounded("rld_token_share", shares, ">=", 0.01),
            _bounded("rld_token_share", shares, "<=", 0.12),
            *_of_collapse(*by_rule.values()),
        ),
        assumptions=assumptions,
        seeds=seeds,
        requests_per_run=requests_per_run,
    )


_COLLAPSE_RULES = (RouteRule.MISSING_BYTES, RouteRule.RELAY_ONLY)


def _of(runs: Iterable[RunTable], purpose: Purpose) -> list[RunTable]:
    return [run for run in runs if run.purpose is purpose]


def _quantile_figures(found: Sequence[Quantiles], of: published.Percentiles) -> dict[str, Figure]:
    choices: Mapping[str, tuple[Callable[[Quantiles], float | None], float | None]] = {
        "p50": (lambda each: each.p50, of.p50),
        "p90": (lambda each: each.p90, of.p90),
        "p99": (lambda each: each.p99, of.p99),
    }
    return {name: figure((choose(each) for each in found), known) for name, (choose, known) in choices.items()}


def _mean_stage(stages: Sequence[Stage]) -> Stage:
    """Over seeds."""
    return Stage(**{field.name: fmean(getattr(stage, field.name) for stage in stages) for field in fields(Stage)})


# What must hold -------------------------------------------------------------------------------------------------------


def _of_ttft(by_system: Mapping[System, Sequence[Measures]]) -> Iterator[Constraint]:
    same, cross, pdd = (
        [run.decode_ttft for run in by_system[system]] for system in (System.SAME_DC, System.CROSS_DC, System.PDD)
    )
    yield _bounded("cross_dc.p90 / pdd.p90", _ratios(cross, pdd, lambda each: each.p90), ">", 1.2)
    yield _bounded("cross_dc.p99 / pdd.p99", _ratios(cross, pdd, lambda each: each.p99), ">", 1.2)
    yield _bounded("cross_dc.p50 / pdd.p50", _ratios(cross, pdd, lambda each: each.p50), ">=", 1.0)
    yield _bounded("pdd.p50 / same_dc.p50", _ratios(pdd, same, lambda each: each.p50), "<=", 1.25)


def _of_transfers(kinds: Mapping[str, Sequence[TransferTable]]) -> Iterator[Constraint]:
    skewed, narrow = ([table.took for table in kinds[kind]] for kind in ("skewed", "narrow"))
    yield _bounded("skewed.p50 / narrow.p50", _ratios(skewed, narrow, lambda each: each.p50), "<", 0.6)


def _of_collapse(pdd: Sequence[Sequence[Stage]], relay_only: Sequence[Sequence[Stage]]) -> Iterator[Constraint]:
    """Of the last third: main decode falls behind where relays stay, and nowhere else, and users pay for it."""
    kept, stayed = ([stages[-1] for stages in stages_of_seeds] for stages_of_seeds in (pdd, relay_only))
    yield _bounded("collapse: pdd's hit rate, prefill - main decode", map(_lag, kept), "<", 0.03)
    yield _bounded("collapse: relay_only's hit rate, prefill - main decode", map(_lag, stayed), ">", 0.1)
    pairs = list(zip(stayed, kept, strict=True))
    shares = [_ratio(one.rld_token_share, other.rld_token_share) for one, other in pairs]
    yield _bounded("collapse: relay decode's share of tokens, relay_only / pdd", shares, ">", 2.0)
    waits = [_ratio(one.ttst_p90_s, other.ttst_p90_s) for one, other in pairs]
    yield _bounded("collapse: P90 of the second token, relay_only / pdd", waits, ">", 2.0)


def _lag(stage: Stage) -> float:
    return stage.prefill_hit - stage.main_hit


def _ratios(
    ones: Sequence[Quantiles], others: Sequence[Quantiles], choose: Callable[[Quantiles], float | None]
) -> list[float]:
    """Seed by seed."""
    return [_ratio(choose(one), choose(other)) for one, other in zip(ones, others, strict=True)]


def _ratio(one: float | None, other: float | None) -> float:
    """NaN, which meets no bound, where there is none: in runs that are too short."""
    return one / other if one is not None and other else nan


_RELATIONS: Mapping[str, Callable[[float, float], bool]] = {">": gt, ">=": ge, "<": lt, "<=": le}


def _bounded(name: str, values: Iterable[float], relation: str, bound: float) -> Constraint:
    """From one value per seed, at least one."""
    by_seed, meets = list(values), _RELATIONS[relation]
    found = Estimate(mean=nan, low=None, high=None) if any(map(isnan, by_seed)) else estimate(by_seed)
    return Constraint(
        name=name,
        value=found.mean,
        low=found.low,
        high=found.high,
        relation=relation,
        bound=bound,
        num_seeds_hold=sum(meets(value, bound) for value in by_seed),
        num_seeds=len(by_seed),
        holds=meets(found.mean, bound),
    )
