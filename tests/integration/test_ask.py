"""``pdd ask`` and its client against the real front door, over a service that says what it is told."""

from __future__ import annotations

import argparse
import asyncio
import json

import pytest

from pdd.cli import main
from pdd.cli.ask.client import RouterClient
from pdd.cli.ask.command import question_of
from pdd.cli.ask.conversation import ChatMessage, Conversation, Pins, Question, ReceivedSpan, TokenPrompt
from pdd.cli.program import build_parser
from pdd.core.errors import ConfigError, InvalidRequest, Unauthorized, Unavailable, WorkerFailed
from pdd.core.request import HandoffMode, Role, Route, Steering
from pdd.core.topology import TenantTable
from pdd.core.units import Seconds
from tests.support.fake_service import FakeService, Step, steps
from tests.support.front_door import MODEL, front_door, saying

HELLO = Conversation(messages=(ChatMessage(role="user", content="hello"),))
TENANT = TenantTable(name="acme", api_key="secret-key")
NOBODY = "http://127.0.0.1:9"


def flags(*given: str) -> argparse.Namespace:
    return build_parser().parse_args(["ask", *given])


@pytest.mark.anyio
async def test_an_answer_arrives_with_its_text_its_roles_and_its_report():
    seen: list[ReceivedSpan] = []
    async with front_door(FakeService(script=saying("Once upon a time"))) as door, RouterClient(door.url) as client:
        answer = await client.ask(Question(prompt=HELLO, model=await client.model()), seen.append)
    assert answer.text == "Once upon a time"
    assert [span.role for span in answer.spans][:3] == [Role.PREFILL, Role.RELAY_DECODE, Role.MAIN_DECODE]
    assert list(answer.spans) == seen
    assert answer.finish_reason == "length"
    assert answer.report.route is Route.RELAY
    assert answer.report.wan_kv_bytes == 1000
    assert answer.report.events[0].name == "prefill_done"
    assert [span.at for span in answer.spans] == sorted(span.at for span in answer.spans)


@pytest.mark.anyio
async def test_the_router_understands_every_pin_and_every_draw():
    service = FakeService(script=saying("yes"))
    args = flags(
        *("what?", "--system", "be brief", "--max-tokens", "9", "--temperature", "0.5", "--top-k", "4", "--top-p", "0.9"),
        *("--seed", "3", "--route", "relay", "--handoff", "catch_up", "--handoff-after", "5", "--cache-salt", "cold"),
    )  # fmt: skip
    async with front_door(service) as door, RouterClient(door.url) as client:
        await client.ask(question_of(args, model=MODEL))
        await client.ask(question_of(flags("what?"), model=MODEL))
    request, plain = service.requests
    assert request.max_tokens == 9
    assert (request.sampling.temperature, request.sampling.top_k) == (0.5, 4)
    assert (request.sampling.top_p, request.sampling.seed) == (0.9, 3)
    assert request.steering.route is Route.RELAY
    assert request.steering.handoff is HandoffMode.CATCH_UP
    assert request.steering.handoff_after_tokens == 5
    assert request.salt != plain.salt
    assert plain.steering == Steering()


@pytest.mark.anyio
async def test_token_prompts_reach_the_service_token_for_token():
    service = FakeService(script=lambda _: steps([300], [301]))
    async with front_door(service) as door, RouterClient(door.url) as client:
        question = Question(prompt=TokenPrompt(token_ids=(7, 8, 9)), model=MODEL, max_tokens=2, ignore_eos=True)
        answer = await client.ask(question)
    assert service.requests[0].prompt == (7, 8, 9)
    assert service.requests[0].stop_token_ids == frozenset()
    assert answer.token_ids == (300, 301)


@pytest.mark.anyio
async def test_a_refusal_names_the_field():
    async with front_door(FakeService(script=saying("x"))) as door, RouterClient(door.url) as client:
        with pytest.raises(InvalidRequest, match="handoff_after_tokens") as refused:
            await client.ask(Question(prompt=HELLO, model=MODEL, pins=Pins(handoff_after_tokens=0)))
        assert refused.value.param == "pdd.handoff_after_tokens"
        with pytest.raises(InvalidRequest):
            await client.ask(Question(prompt=HELLO, model="no-such-model"))


@pytest.mark.anyio
async def test_nobody_to_serve_it_is_unavailable_with_a_delay():
    busy = FakeService(script=saying("x"), opening=Unavailable("main decode is down", retry_after_s=Seconds(4)))
    async with front_door(busy) as door, RouterClient(door.url) as client:
        with pytest.raises(Unavailable, match="main decode is down") as refused:
            await client.ask(Question(prompt=HELLO, model=MODEL))
    assert refused.value.retry_after_s == 4.0


@pytest.mark.anyio
async def test_a_missing_key_is_told_apart_from_a_wrong_request():
    async with front_door(FakeService(script=saying("x")), tenants=[TENANT]) as door:
        async with RouterClient(door.url) as stranger:
            with pytest.raises(Unauthorized):
                await stranger.ask(Question(prompt=HELLO, model=MODEL))
        async with RouterClient(door.url, api_key=TENANT.api_key) as client:
            assert (await client.ask(Question(prompt=HELLO, model=MODEL))).text == "x"


@pytest.mark.anyio
async def test_an_answer_that_breaks_off_is_an_error_not_a_short_answer():
    broken = [Step(tokens=(300,), role=Role.PREFILL), Step(error=WorkerFailed("lost"))]
    async with front_door(FakeService(script=lambda _: broken)) as door, RouterClient(door.url) as client:
        with pytest.raises(WorkerFailed, match="broke off"):
            await client.ask(Question(prompt=HELLO, model=MODEL))


@pytest.mark.anyio
async def test_many_questions_run_at_once():
    service = FakeService(script=saying("same"))
    async with front_door(service) as door, RouterClient(door.url) as client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.ask(Question(prompt=HELLO, model=MODEL))) for _ in range(20)]
    assert {task.result().text for task in tasks} == {"same"}


@pytest.mark.anyio
async def test_nobody_at_the_address_and_no_address_are_explained():
    async with RouterClient(NOBODY) as client:
        with pytest.raises(Unavailable, match="`pdd up`"):
            await client.model()
    for url in ("nonsense", "http://", "http://127.0.0.1:99999"):
        async with RouterClient(url) as client:
            with pytest.raises(ConfigError, match="not a URL"):
                await client.model()


@pytest.mark.anyio
async def test_the_command_prints_the_answer_marked_by_role_and_the_table(capsys: pytest.CaptureFixture[str]):
    async with front_door(FakeService(script=saying("Once upon a time"))) as door:
        status = await asyncio.to_thread(main, ["ask", "hello", "--url", door.url])
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    assert out.startswith("  [P]O[RLD]nc[MD]e upon a time\n")
    assert "relay decode" in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.anyio
async def test_with_json_the_command_prints_exactly_one_object(capsys: pytest.CaptureFixture[str]):
    async with front_door(FakeService(script=saying("Once"))) as door:
        status = await asyncio.to_thread(main, ["ask", "hello", "--url", door.url, "--json"])
    out, _ = capsys.readouterr()
    assert status == 0
    assert json.loads(out)["text"] == "Once"
    assert out.count("\n") == 1


@pytest.mark.anyio
async def test_a_missing_or_wrong_key_is_bad_input_and_the_way_to_give_one_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("PDD_API_KEY", raising=False)
    async with front_door(FakeService(script=saying("x")), tenants=[TENANT]) as door:
        for key in ((), ("--api-key", "wrong")):
            status = await asyncio.to_thread(main, ["ask", "hello", "--url", door.url, *key])
            out, err = capsys.readouterr()
            assert (status, out) == (2, "")
            assert err.count("\n") == 1
            assert "--api-key" in err
            assert "$PDD_API_KEY" in err
        assert await asyncio.to_thread(main, ["ask", "hi", "--url", door.url, "--api-key", TENANT.api_key]) == 0


@pytest.mark.anyio
async def test_the_address_of_the_api_is_taken_for_the_router_s():
    async with front_door(FakeService(script=saying("Once"))) as door:
        for url in (f"{door.url}/", f"{door.url}/v1", f"{door.url}/v1/"):
            assert await asyncio.to_thread(main, ["ask", "hello", "--url", url, "--json"]) == 0


def test_a_router_that_is_not_there_is_one_clear_line(capsys: pytest.CaptureFixture[str]):
    assert main(["ask", "hello", "--url", NOBODY]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"pdd: no router answers at {NOBODY}; `pdd up` starts one, `pdd status` says where one is\n"
