"""The report puts published beside simulated, and says of each constraint whether it holds."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from pdd.cli.topology.file import load_simulated_topology
from pdd.core.topology import RouteRule
from pdd.sim.compare.measures import Measures, Quantiles
from pdd.sim.compare.systems import System
from pdd.sim.paper import published
from pdd.sim.paper.assumptions import Kind, assumptions
from pdd.sim.paper.report import PaperReport, build_report
from pdd.sim.paper.runs import CollapseTable, Purpose, RunTable, Stage
from pdd.sim.paper.transfers import TransferTable

NOTHING = Quantiles(p50=None, p90=None, p99=None)


def measures(*, ttft: float = 1.0, relay_share: float = 0.2, within_sla: float = 0.9, rld: float = 0.06) -> Measures:
    return Measures(
        num_requests=100,
        complete=1.0,
        refused=0.0,
        broken=0.0,
        decode_ttft=Quantiles(p50=ttft, p90=3 * ttft, p99=9 * ttft),
        ttft=NOTHING,
        ttst=Quantiles(p50=ttft, p90=3 * ttft, p99=9 * ttft),
        max_itl=NOTHING,
        handoff_gap=NOTHING,
        transfer=Quantiles(p50=0.25, p90=1.0, p99=9.0),
        within_sla=within_sla,
        goodput_per_s=50.0,
        relay_share=relay_share,
        filtered_share=0.0,
        rld_token_share=rld,
        wan_bytes_per_request=2.5e7,
        prefill_hit=0.9,
        main_hit=0.9,
    )


def run(
    purpose: Purpose, found: Measures, *, system: System = System.PDD, seed: int = 1, **changes: object
) -> RunTable:
    made = RunTable(
        purpose=purpose,
        system=system,
        seed=seed,
        whole=found,
    )
    return replace(made, **changes)


def stage(*, rld: float = 0.05, lag: float = -0.01, ttst: float = 0.3) -> Stage:
    return Stage(
        relay_share=rld,
        rld_token_share=rld,
        ttst_p90_s=ttst,
        prefill_hit=0.95,
        main_hit=0.95 - lag,
        within_sla=1.0,
    )


def collapse(route: RouteRule, last: Stage, seed: int = 1) -> CollapseTable:
    return CollapseTable(route=route, seed=seed, thirds=(stage(), stage(), last))


def transfers(kind: str, p50: float, seed: int = 1) -> TransferTable:
    return TransferTable(
        kind=kind,
        seed=seed,
        took=Quantiles(p50=p50, p90=4 * p50, p99=20 * p50),
        mean_wait_s=0.1,
        busy_share=0.1,
        utilisation=0.92,
    )


RUNS = (
    run(Purpose.TTFT, measures(ttft=1.0), system=System.SAME_DC, seed=1),
    run(Purpose.TTFT, measures(ttft=1.2), system=System.SAME_DC, seed=2),
    run(Purpose.TTFT, measures(ttft=1.5), system=System.CROSS_DC, seed=1),
    run(Purpose.TTFT, measures(ttft=1.8), system=System.CROSS_DC, seed=2),
    run(Purpose.TTFT, measures(ttft=1.0), seed=1),
    run(Purpose.TTFT, measures(ttft=1.3), seed=2),
    run(Purpose.RLD_SHARE, measures(rld=0.05)),
)
TRANSFERS = (transfers("skewed", 0.3), transfers("narrow", 1.2))
KEPT, STAYED = stage(), stage(rld=0.8, lag=0.3, ttst=9.0)


def report(
    runs: tuple[RunTable, ...] = RUNS,
    tables: tuple[TransferTable, ...] = TRANSFERS,
    kept: Stage = KEPT,
    stayed: Stage = STAYED,
) -> PaperReport:
    return build_report(
        transfers=tables,
        runs=runs,
        collapses=(collapse(RouteRule.MISSING_BYTES, kept), collapse(RouteRule.RELAY_ONLY, stayed)),
        assumptions=(),
        seeds=(1, 2),
        requests_per_run=100,
    )


def held(found: PaperReport) -> dict[str, bool]:
    return {each.name: each.holds for each in found.holds}


def test_each_figure_stands_beside_the_published_one():
    found = report()
    figure = found.ttft_s["pdd"]["p50"]
    assert (figure.published, figure.simulated) == (4.2, pytest.approx(1.15))
    assert figure.low < 1.15 < figure.high
    assert figure.residual == pytest.approx(1.15 / 4.2 - 1)
    assert found.kv_transfer_s["skewed"]["p99"].published == published.KV_TRANSFER["skewed"].p99
    assert found.rld_token_share.simulated == 0.05
    assert [stage.relay_share for stage in found.collapse["relay_only"]] == [0.05, 0.05, 0.8]


def test_all_constraints_hold_of_figures_that_meet_them():
    found = report()
    assert found.all_hold, [each for each in found.holds if not each.holds]
    assert len(found.holds) == 11


def test_ratios_are_taken_seed_by_seed():
    found = {each.name: each for each in report().holds}["cross_dc.p90 / pdd.p90"]
    assert found.value == pytest.approx((1.5 + 1.8 / 1.3) / 2)
    assert found.low < found.value < found.high
    assert (found.num_seeds_hold, found.num_seeds) == (2, 2)


def test_a_constraint_that_one_seed_breaks_holds_by_the_mean_and_says_so():
    runs = list(RUNS)
    runs[2] = run(Purpose.TTFT, measures(ttft=1.1), system=System.CROSS_DC)
    found = {each.name: each for each in report(tuple(runs)).holds}["cross_dc.p90 / pdd.p90"]
    assert (found.num_seeds_hold, found.holds) == (1, True)


@pytest.mark.parametrize(
    ("positions", "changed", "broken"),
    [
        ((2, 3), run(Purpose.TTFT, measures(ttft=1.2), system=System.CROSS_DC), "cross_dc.p90 / pdd.p90"),
        ((2, 3), run(Purpose.TTFT, measures(ttft=1.2), system=System.CROSS_DC), "cross_dc.p99 / pdd.p99"),
        ((2, 3), run(Purpose.TTFT, measures(ttft=1.0), system=System.CROSS_DC), "cross_dc.p50 / pdd.p50"),
        ((0, 1), run(Purpose.TTFT, measures(ttft=0.8), system=System.SAME_DC), "pdd.p50 / same_dc.p50"),
        ((6,), run(Purpose.RLD_SHARE, measures(rld=0.2)), "rld_token_share"),
        ((6,), run(Purpose.RLD_SHARE, measures(rld=0.0)), "rld_token_share"),
    ],
)
def test_a_constraint_that_figures_break_does_not_hold(positions, changed, broken):
    runs = list(RUNS)
    for position in positions:
        runs[position] = replace(changed, seed=runs[position].seed)
    found = report(tuple(runs))
    assert broken in {each.name for each in found.holds if not each.holds}
    assert not found.all_hold


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        ({"kept": stage(lag=0.04)}, "collapse: pdd's hit rate, prefill - main decode"),
        ({"stayed": stage(rld=0.8, lag=0.09, ttst=9.0)}, "collapse: relay_only's hit rate, prefill - main decode"),
        (
            {"stayed": stage(rld=0.1, lag=0.3, ttst=9.0)},
            "collapse: relay decode's share of tokens, relay_only / pdd",
        ),
        (
            {"stayed": stage(rld=0.8, lag=0.3, ttst=0.6)},
            "collapse: P90 of the second token, relay_only / pdd",
        ),
        ({"kept": stage(rld=0.0)}, "collapse: relay decode's share of tokens, relay_only / pdd"),
    ],
)
def test_a_collapse_that_does_not_show_does_not_hold(changed, broken):
    assert [each.name for each in report(**changed).holds if not each.holds] == [broken]


def test_skewed_transfers_must_be_quicker():
    assert not held(report(tables=(transfers("skewed", 1.0), transfers("narrow", 1.2))))["skewed.p50 / narrow.p50"]


def test_it_is_one_json_object_with_the_promised_keys():
    plain = msgspec.json.decode(msgspec.json.encode(report()))
    assert set(plain["ttft_s"]) == {"same_dc", "cross_dc", "pdd"}
    assert set(plain["ttft_s"]["pdd"]["p90"]) == {"published", "simulated", "low", "high", "residual"}
    assert set(plain["kv_transfer_s"]) == {"skewed", "narrow"}


def test_what_is_fitted_has_bounds_and_everything_has_a_reason():
    listed = assumptions(load_simulated_topology("paper"))
    assert all(each.why and each.value for each in listed)
    assert all(each.bounds for each in listed if each.kind is Kind.FITTED)
