"""The vLLM connector's decisions under any order of requests, steps, loads, preemptions, aborts and restarts of its
node.

``tests.support.fake_vllm`` checks each order and each byte as it goes; here only the orders of events are made up.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.fake_vllm import FakeVllm

MAX_REQUESTS = 8


class ConnectorMachine(RuleBasedStateMachine):
    """One engine and its node. Prompts are beginnings of few texts, so that many share a prefix."""

    @initialize(
        block_tokens=st.sampled_from([2, 4, 8]),
        wire_tokens=st.sampled_from([2, 4, 8]),
        num_tokens=st.sampled_from([40, 56, 200]),
        chunk=st.sampled_from([3, 8, 64]),
        latency=st.integers(0, 1),
    )
    def start(self, block_tokens: int, wire_tokens: int, num_tokens: int, chunk: int, latency: int) -> None:
        """The longest request fits, two perhaps do not."""
        self.engine = FakeVllm(
            block_tokens=block_tokens,
            wire_tokens=wire_tokens,
            num_blocks=num_tokens // block_tokens,
            chunk=chunk,
            latency=latency,
        )
        self.num_requests = 0

    @precondition(lambda self: len(self.engine.requests) < MAX_REQUESTS)
    @rule(
        text=st.sampled_from([0, 0, 0, 1]),
        length=st.integers(1, 24),
        num_output=st.integers(1, 12),
        salt=st.sampled_from([None, None, None, "tenant"]),
    )
    def a_request_comes(self, text: int, length: int, num_output: int, salt: str | None):
        self.num_requests += 1
        tokens = [text * 100 + position for position in range(length)]
        self.engine.add(f"r{self.num_requests}", tokens, num_output=num_output, salt=salt)

    @precondition(lambda self: self.engine.node.up)
    @rule(text=st.sampled_from([0, 0, 0, 1]), salt=st.sampled_from([None, None, None, "tenant"]))
    def blocks_arrive_at_the_node(self, text: int, salt: str | None):
        self.engine.receive([text * 100 + position for position in range(24)], salt=salt)

    @precondition(lambda self: self.engine.requests)
    @rule(count=st.integers(1, 9))
    def it_steps(self, count: int):
        for _ in range(count):
            self.engine.step()

    @precondition(lambda self: self.engine.loads)
    @rule(data=st.data(), fail_from=st.sampled_from([None, None, 0, 1, 3]))
    def a_load_ends(self, data: st.DataObject, fail_from: int | None):
        order = data.draw(st.sampled_from(self.engine.loads))
        self.engine.end_load(order.request_id, fail_from=fail_from)
        self.engine.step()

    @precondition(lambda self: len(self.engine.requests) > len(self.engine.zombies))
    @rule(data=st.data())
    def a_client_leaves(self, data: st.DataObject):
        alive = [name for name in self.engine.requests if name not in self.engine.zombies]
        self.engine.abort(data.draw(st.sampled_from(alive)))

    @precondition(lambda self: self.engine.cached)
    @rule()
    def the_cache_is_dropped(self):
        self.engine.drop_cache()

    @precondition(lambda self: self.engine.node.committed)
    @rule(data=st.data(), event=st.sampled_from(["break", "restart", "evict", "stop"]))
    def something_befalls_the_node(self, data: st.DataObject, event: str):
        node = self.engine.node
        if event == "evict":
            del node.committed[data.draw(st.sampled_from(sorted(node.committed)))]
        elif event == "stop":
            node.up = False
        else:
            node.restart(keep=event == "break")

    @precondition(lambda self: not self.engine.node.up)
    @rule()
    def the_node_comes_back(self):
        self.engine.node.up = True
        self.engine.time += 2

    @invariant()
    def nothing_is_left_open_at_the_node(self):
        if hasattr(self, "engine"):
            assert self.engine.node.num_leases == 0
            assert self.engine.node.num_writes == 0

    @precondition(lambda self: self.engine.node.up)
    @rule()
    def a_fresh_node_has_everything_that_runs_after_the_next_offer(self):
        """Whatever was before: the first step with a new block offers a new node all blocks of all that run."""
        self.engine.node.restart()
        self.engine.time += 10
        for _ in range(10):
            running = list(self.engine.running)
            if self.engine.step().saves:
                for request in running:
                    if request in self.engine.running:
                        assert set(self.engine.names(request)[: request.ordered]) <= set(self.engine.node.committed)
                return

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.drain()


TestConnector = ConnectorMachine.TestCase
TestConnector.settings = settings(max_examples=100, stateful_step_count=60)
