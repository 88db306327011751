"""One emulated link, composed."""

from __future__ import annotations

from pdd.cli.roles.context import RoleContext
from pdd.cli.topology.ports import reached_across
from pdd.core.topology import LOOPBACK, Address, LinkTable, Topology
from pdd.transport.emulate import Forward, LinkPlan, run_link
from pdd.transport.shaping import LineSettings


async def main(context: RoleContext) -> None:
    """Runs the link named ``context.name``."""
    plan = plan_link(context.topology, context.topology.link(context.name))
    await run_link(plan, on_ready=context.on_ready)


def plan_link(topology: Topology, link: LinkTable) -> LinkPlan:
    """What the emulator needs to know of ``link`` in a resolved topology."""
    return LinkPlan(
        name=link.name,
        clusters=link.clusters,
        settings=LineSettings(rate_bits_per_s=link.rate_bits_per_s, delay_s=link.delay_s, jitter_s=link.jitter_s),
        forwards=tuple(
            Forward(
                endpoint=endpoint.name,
                listen=Address(host=LOOPBACK, port=link.forwards[endpoint.name]),
                target=Address(host=endpoint.host, port=endpoint.port),
                toward=endpoint.cluster,
            )
            for endpoint in reached_across(topology, link)
        ),
        control=Address(host=LOOPBACK, port=link.control_port),
    )
