"""The router's own driver in one process and on virtual time: a slow line, a relay, and minutes that pass at once.

No sockets, no model, no waiting: ``python examples/relay_on_virtual_time.py --megabits 20``. Engines are scripted, nodes are in
memory; the state machine, the policies and the driver are those that ``pdd up`` runs.
"""

import argparse
from functools import partial

from pdd.core.ids import NodeId, RequestId, Salt, TenantId, WorkerId
from pdd.core.kv_format import DType, KvFormat, uniform_attention_format
from pdd.core.request import GREEDY, Role
from pdd.core.units import BitsPerSecond, BytesPerSecond, Seconds, bytes_per_second
from pdd.engine.scripted.engine import Script, ScriptedEngine, scripted_answer
from pdd.router.base import RequestReport, TokenRequest
from pdd.router.clock import LoopClock
from pdd.router.driver.service import Driver
from pdd.router.driver.workers.worker import Worker
from pdd.sim.loop import run
from pdd.sim.memory.line import MemoryLine
from pdd.sim.memory.network import MemoryNetwork

CLUSTERS = {Role.PREFILL: "A", Role.RELAY_DECODE: "A", Role.MAIN_DECODE: "B"}
SCRIPT = Script(prefill_tokens_per_s=2000.0, token_interval=Seconds(0.02))
PROMPT = tuple(range(640))
MAX_TOKENS = 800


def make_format() -> KvFormat:
    """46,080 bytes a token, as SmolLM2-135M has."""
    return uniform_attention_format(
        model="scripted", num_layers=30, num_kv_heads=3, head_dim=64, dtype=DType.FLOAT32, block_tokens=16
    )


def make_driver(rate: BytesPerSecond) -> Driver:
    """P and RLD in cluster A, MD in B, and a line of ``rate`` and 15 ms between them."""
    kv_format = make_format()
    network = MemoryNetwork(kv_format)
    nodes = {role: network.add(NodeId(f"node of {role}"), capacity=256) for role in Role}
    line = MemoryLine(rate=rate, delay=Seconds(0.015))
    network.join(nodes[Role.PREFILL].node, nodes[Role.MAIN_DECODE].node, line)
    workers = [
        Worker(
            engine=ScriptedEngine(
                WorkerId(role),
                kv_format=kv_format,
                script=SCRIPT,
                connect_store=partial(nodes[role].open_store, WorkerId(role)),
            ),
            node=nodes[role],
            role=role,
            cluster=cluster,
        )
        for role, cluster in CLUSTERS.items()
    ]
    return Driver(workers, kv_format=kv_format, clock=LoopClock(), rates={frozenset("AB"): rate})


async def relay(rate: BytesPerSecond) -> tuple[tuple[int, ...], RequestReport]:
    request = TokenRequest(
        request_id=RequestId("example"),
        tenant=TenantId("local"),
        prompt=PROMPT,
        max_tokens=MAX_TOKENS,
        stop_token_ids=frozenset(),
        sampling=GREEDY,
        salt=Salt(""),
    )
    driver = make_driver(rate)
    async with driver.running(), driver.open(request) as answer:
        tokens = tuple([token async for span in answer for token in span.tokens])
    return tokens, answer.report


def main() -> None:
    parser = argparse.ArgumentParser(description="Relay one answer over a slow line, on virtual time.")
    parser.add_argument("--megabits", type=float, default=20.0, help="the line's rate in Mbit/s (default: %(default)s)")
    args = parser.parse_args()
    rate = bytes_per_second(BitsPerSecond(args.megabits * 1e6))
    tokens, report = run(relay(rate))
    right = tokens == scripted_answer(PROMPT, MAX_TOKENS, GREEDY)
    print(f"route {report.route}: {report.route_reason}")
    print(", ".join(f"{count} tokens by {role}" for role, count in report.tokens_by_role.items()))
    print(f"second token after {report.ttst_s:.2f} s, longest wait {report.max_itl_s:.3f} s")
    print(f"the answer is {'right' if right else 'WRONG'}; it took {report.events[-1].at:.1f} s of virtual time")


if __name__ == "__main__":
    main()
