"""A front door on a loopback port, over a fake service or the real driver."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
from tokenizers import Tokenizer

from pdd.core.request import FinishReason, Role
from pdd.core.topology import RouterTable, TenantTable
from pdd.core.units import Seconds
from pdd.engine.catalog import find_model
from pdd.router.api.admission import Limits
from pdd.router.api.answers import AnswerMemory
from pdd.router.api.app import Health, WorkerCount, create_app, serve
from pdd.router.api.callers import Callers
from pdd.router.api.tenants import Tenants
from pdd.router.base import Service
from pdd.telemetry.metrics import RouterMetrics
from tests.support.fake_service import Script, steps

MODEL = "scripted"
NOW = 1_700_000_000.0
LIMITS = Limits(max_model_tokens=256, default_chat_tokens=64)
HEALTHY = Health(can_serve=True, roles={role: WorkerCount(up=1, configured=1) for role in Role})


@dataclass(kw_only=True)
class Door:
    """What a test needs of a running front door."""

    url: str
    service: Any
    tokenizer: Tokenizer
    answers: AnswerMemory
    http: aiohttp.ClientSession
    health: list[Health]
    """Its last entry is what the front door is told."""

    async def post(self, path: str, body: object, **headers: str) -> tuple[int, dict, Mapping[str, str]]:
        async with self.http.post(self.url + path, json=body, headers=headers) as response:
            return response.status, await response.json(), response.headers

    async def chat(self, **fields: object) -> tuple[int, dict, Mapping[str, str]]:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], **fields}
        return await self.post("/v1/chat/completions", body)

    async def metric(self, line: str) -> float:
        """The value of the sample that begins with ``line``; 0 if there is none."""
        async with self.http.get(self.url + "/metrics") as response:
            text = await response.text()
        return next((float(row.rsplit(" ", 1)[1]) for row in text.splitlines() if row.startswith(line + " ")), 0.0)


def saying(text: str, finish: FinishReason = FinishReason.LENGTH) -> Script:
    """A script that says ``text``, one token per span."""
    ids = find_model(MODEL).load_text().tokenizer.encode(text, add_special_tokens=False).ids
    return lambda _: steps(*([token] for token in ids), finish=finish)


def parse_events(text: str) -> list:
    events = []
    for block in text.split("\n\n")[:-1]:
        *kind, data = block.split("\n")
        value = data.removeprefix("data: ")
        decoded = value if value == "[DONE]" else json.loads(value)
        events.append(("error", decoded) if kind == ["event: error"] else decoded)
    return events


@asynccontextmanager
async def front_door(
    service: Service,
    *,
    tenants: Sequence[TenantTable] = (),
    allowed_origins: tuple[str, ...] = (),
    allowed_hosts: tuple[str, ...] = (),
    limits: Limits = LIMITS,
    model_name: str = MODEL,
    answer_tokens: int = 10_000,
    grace: float = 0.05,
) -> AsyncGenerator[Door]:
    model = replace(find_model(MODEL), name=model_name)
    text = model.load_text()
    answers = AnswerMemory(max_tokens_per_tenant=answer_tokens)
    health = [HEALTHY]
    keys = Tenants(tenants)
    table = RouterTable(
        cluster="A", tenants=tuple(tenants), allowed_origins=allowed_origins, allowed_hosts=allowed_hosts
    )
    app = create_app(
        service=service,
        model=model,
        text=text,
        limits=replace(limits),
        tenants=keys,
        callers=Callers.of(table),
        answers=answers,
        metrics=RouterMetrics(),
        health=lambda: health[-1],
        wall_clock=lambda: NOW,
    )
    async with (
        serve(app, host="127.0.0.1", port=0, tenants=keys, grace=Seconds(grace)) as address,
        aiohttp.ClientSession() as http,
    ):
        yield Door(
            url=f"http://{address}",
            service=service,
            tokenizer=text.tokenizer,
            answers=answers,
            http=http,
            health=health,
        )
