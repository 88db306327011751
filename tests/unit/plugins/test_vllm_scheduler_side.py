"""What a vLLM engine loads and saves, decided beside a fake of vLLM's scheduler."""

import pytest

from tests.support.fake_vllm import FakeVllm

PROMPT = list(range(22))


def run_alone(
    engine: FakeVllm, request_id: str, tokens: list[int], *, num_output: int = 1, salt: str | None = None
) -> None:
    """Until it is over; what it loads arrives at once."""
    engine.add(request_id, tokens, num_output=num_output, salt=salt)
    while request_id in engine.requests:
        engine.step()
        for order in tuple(engine.loads):
            engine.end_load(order.request_id)


def load_in_next_step(engine: FakeVllm, request_id: str) -> tuple[int, int]:
    """The tokens that it is told to load."""
    (order,) = engine.step().loads
    assert order.request_id == request_id
    return order.first_token, order.end_token


@pytest.fixture
def engine() -> FakeVllm:
    """Its node holds the first five wire blocks of PROMPT, its own cache nothing."""
    engine = FakeVllm()
    run_alone(engine, "before", PROMPT)
    engine.drop_cache()
    return engine


def test_the_node_gets_each_block_in_the_step_that_fills_it():
    engine = FakeVllm(chunk=8)
    engine.add("r", PROMPT, num_output=4)
    saved = []
    for _ in range(6):
        saved.extend([(save.first_block, len(save.hashes)) for save in engine.step().saves])
    assert saved == [(0, 2), (2, 2), (4, 1), (5, 1)]
    assert len(engine.node.committed) == 6


def test_a_prompt_that_ends_with_a_block_is_offered_whole_although_it_ends_in_that_step():
    engine = FakeVllm(chunk=64)
    run_alone(engine, "r", PROMPT[:20])
    assert len(engine.node.committed) == 5


def test_what_the_node_holds_is_loaded(engine: FakeVllm):
    engine.add("r", PROMPT)
    assert load_in_next_step(engine, "r") == (0, 20)


def test_the_last_token_is_never_loaded(engine: FakeVllm):
    engine.add("r", PROMPT[:20])
    assert load_in_next_step(engine, "r") == (0, 19)


def test_what_this_cache_has_is_not_loaded(engine: FakeVllm):
    run_alone(engine, "short", PROMPT[:13])
    engine.add("r", PROMPT)
    assert load_in_next_step(engine, "r") == (12, 20)


def test_only_the_rest_is_asked_of_a_node_that_lost_the_beginning(engine: FakeVllm):
    run_alone(engine, "short", PROMPT[:13])
    first = engine.names(engine.add("r", PROMPT))[0]
    del engine.node.committed[first]
    assert load_in_next_step(engine, "r") == (12, 20)


def test_of_a_long_wire_block_only_what_this_cache_lacks_is_loaded():
    engine = FakeVllm(block_tokens=4, wire_tokens=8)
    run_alone(engine, "before", PROMPT)
    engine.drop_cache()
    run_alone(engine, "short", PROMPT[:6])
    engine.add("r", PROMPT)
    assert load_in_next_step(engine, "r") == (4, 16)


def test_a_long_cache_block_is_loaded_in_part():
    engine = FakeVllm(block_tokens=8, wire_tokens=4)
    run_alone(engine, "before", PROMPT)
    engine.drop_cache()
    engine.add("r", PROMPT)
    assert load_in_next_step(engine, "r") == (0, 20)


def test_tenants_share_nothing(engine: FakeVllm):
    engine.add("r", PROMPT, salt="other")
    assert engine.step().loads == ()
    assert len(engine.node.committed) == 7


def test_a_request_waits_for_what_another_one_loads_and_then_finds_it_here(engine: FakeVllm):
    engine.add("first", PROMPT)
    engine.add("second", [*PROMPT[:20], 99, 98])
    assert load_in_next_step(engine, "first") == (0, 20)
    assert engine.step().loads == ()
    engine.end_load("first")
    engine.step()
    assert engine.step().loads == ()
    assert set(engine.scheduled) == {"first", "second"}
    assert engine.scheduled["second"] == 2


@pytest.mark.parametrize("fail_from", [0, 2])
def test_a_request_that_waits_for_a_load_which_fails_loads_for_itself(engine: FakeVllm, fail_from: int):
    engine.add("first", PROMPT)
    engine.add("second", [*PROMPT[:20], 99, 98])
    engine.step()
    engine.end_load("first", fail_from=fail_from)
    engine.step()
    assert load_in_next_step(engine, "second") == (4 * fail_from, 20)


def test_a_request_that_waits_for_a_load_does_not_wait_for_one_that_was_aborted(engine: FakeVllm):
    engine.add("first", PROMPT)
    engine.add("second", [*PROMPT[:20], 99, 98])
    engine.step()
    engine.abort("first")
    assert load_in_next_step(engine, "second") == (0, 20)
    engine.drain()


@pytest.mark.parametrize("fail_from", [0, 1, 4])
def test_a_request_whose_load_failed_computes_what_is_missing_and_loads_no_more(engine: FakeVllm, fail_from: int):
    engine.add("r", PROMPT)
    engine.step()
    engine.end_load("r", fail_from=fail_from)
    for _ in range(6):
        assert engine.step().loads == ()
    assert engine.requests == {}
    engine.drain()


def test_a_failure_counts_although_it_is_reported_before_the_load_ended(engine: FakeVllm):
    engine.add("r", PROMPT)
    (order,) = engine.step().loads
    engine.side.end_loads((), {order.cache_blocks[0]})
    engine.side.end_loads({"r"}, ())
    assert engine.side.count_loadable("r", 0) == 0


def test_the_node_is_not_asked_again_in_each_step_while_there_is_no_room(engine: FakeVllm):
    engine.add("r", PROMPT)
    before = engine.num_lookups
    assert [engine.side.count_loadable("r", 0) for _ in range(50)] == [20] * 50
    assert engine.num_lookups == before + 1
    engine.time += 0.06
    engine.node.committed.popitem()
    assert engine.side.count_loadable("r", 0) == 16
    assert engine.num_lookups == before + 2


def test_what_was_found_for_less_is_not_taken_for_more(engine: FakeVllm):
    engine.add("r", PROMPT)
    assert engine.side.count_loadable("r", 0) == 20
    assert engine.side.count_loadable("r", 8) == 12


def test_an_absent_node_changes_nothing():
    engine = FakeVllm()
    engine.node.up = False
    run_alone(engine, "r", PROMPT, num_output=9)
    engine.drain()


def test_what_this_cache_had_is_offered_to_a_node_that_lost_it(engine: FakeVllm):
    run_alone(engine, "again", PROMPT)
    engine.node.restart()
    engine.add("r", [*PROMPT, 99])
    engine.step()
    assert engine.scheduled["r"] == 3
    assert len(engine.node.committed) == 5


def test_a_node_that_was_restarted_is_offered_everything_of_what_runs():
    engine = FakeVllm(chunk=64)
    engine.add("r", PROMPT, num_output=20)
    engine.step()
    engine.node.restart()
    engine.time += 10
    while not engine.step().saves:
        pass
    assert len(engine.node.committed) == 6


def test_a_preempted_request_loads_what_it_had_computed_and_is_offered_anew():
    engine = FakeVllm(num_blocks=8)
    first = engine.add("first", PROMPT[:12], num_output=12)
    engine.add("second", [50, *PROMPT[:11]], num_output=12)
    while "second" not in engine.preempted_ever:
        engine.step()
    engine.abort(first.request_id)
    engine.drop_cache()
    assert load_in_next_step(engine, "second")[1] > 12
    engine.end_load("second")
    engine.step()
    (save,) = engine.step().saves
    assert save.first_block == 0


def test_a_block_whose_last_token_is_not_known_yet_is_offered_a_step_later():
    engine = FakeVllm(latency=1, chunk=64)
    engine.add("r", PROMPT[:19], num_output=8)
    assert [len(save.hashes) for save in engine.step().saves] == [4]
    assert engine.step().saves == ()
    assert [save.first_block for save in engine.step().saves] == [4]


def test_nothing_is_kept_of_a_request_that_was_aborted_before_anything_happened():
    engine = FakeVllm()
    engine.add("r", PROMPT)
    engine.abort("r")
    assert engine.side.is_idle
    engine.drain()


def test_a_request_that_was_never_added_is_neither_loaded_nor_saved():
    engine = FakeVllm()
    assert engine.side.count_loadable("streaming", 0) == 0
    engine.side.place("streaming", (1, 2), 0)
    assert engine.side.build_step({"streaming": 5}, lambda _: (1, 2), preempted=()).saves == ()
    engine.side.end("streaming")
    assert engine.side.is_idle
