"""Real nodes over loopback: what an engine writes at one node arrives at others, once, and whole."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest

from tests.support.kv_nodes import (
    chain,
    kv_format,
    last_progress,
    order,
    running_cluster,
    until_idle,
    until_ready,
    watch,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


async def test_blocks_written_at_one_node_arrive_at_another_and_can_be_leased_there(tmp_path: Path):
    blocks = chain(8)
    async with running_cluster(tmp_path, "a", "b") as nodes:
        progress = nodes["a"].client.replicate(order("o", "b", blocks))
        async with aclosing(progress), aclosing(nodes["b"].client.watch(watch("w", blocks))) as readiness:
            first = await anext(progress)
            assert not first.done
            assert await nodes["a"].write(blocks) == 8
            await until_ready(readiness, 8)
            last = await last_progress(progress)
        assert (last.num_missing, last.num_acknowledged) == (8, 8)
        assert last.sent_bytes == 8 * kv_format().block_bytes
        assert last.rate is not None
        assert last.backlog == 0
        assert await nodes["b"].read(blocks) == 8
        for name in ("a", "b"):
            stats = await until_idle(nodes[name].client)
            assert stats.held_blocks == 8
        assert (await nodes["b"].client.stats()).received_bytes == {"a": 8 * kv_format().block_bytes}
