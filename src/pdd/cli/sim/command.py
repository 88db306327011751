"""``pdd sim``: finds the simulation that is meant."""

from __future__ import annotations

from pdd.cli.commands import CommandParser, Listed, add_group

_SIMULATIONS = (
    Listed(name="run", module="sim.run", summary="one workload on one topology of modelled engines"),
    Listed(
        name="paper", module="sim.paper", summary="simulate the published evaluation, and put the figures side by side"
    ),
    Listed(name="compare", module="sim.compare", summary="every policy against its naive rival in the same worlds"),
    Listed(
        name="traces",
        module="sim.traces",
        summary="recorded traffic at rising load: PDD, cross-datacenter and same-datacenter disaggregation",
    ),
    Listed(
        name="chaos",
        module="sim.chaos",
        summary="break random small deployments in every way, and compare every answer with the right one",
    ),
)


def define(parser: CommandParser) -> None:
    """``pdd sim`` and what is below it."""
    parser.description = (
        "Runs the driver, policies and index that serve live traffic on a virtual clock, against modelled engines, nodes "
        "and lines. The same seed gives the same run."
    )
    parser.epilog = "Each simulation has its own --help, and --json for programs."
    add_group(parser, title="simulations", metavar="SIMULATION", commands=_SIMULATIONS)
