"""A small client of the router: asks questions and measures, where the user sits, when which token comes back.

Times are taken when a chunk arrives here, so they hold everything a user would feel. Errors are PDD's own:
``InvalidRequest``, ``Unauthorized``, ``Unavailable``, and ``WorkerFailed`` when an answer breaks off.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from http import HTTPStatus
from types import TracebackType
from typing import Self

import aiohttp

from pdd.cli.ask.conversation import (
    AnswerBuilder,
    Question,
    ReceivedAnswer,
    SpanListener,
    encode_question,
    error_of_status,
    read_model_name,
)
from pdd.cli.deploy.deployment import Deployment
from pdd.core.errors import ConfigError, Unavailable, WorkerFailed
from pdd.core.units import Seconds
from pdd.engine.http.sse import EventReader

_CONNECT_TIMEOUT = Seconds(3.0)
_SILENCE_TIMEOUT = Seconds(120.0)
"""No byte for so long: the answer is given up.

A cold main decode behind a slow line may well be silent for a minute.
"""


class RouterClient:
    """Asks one router; use it as an async context manager. Any number of questions may run at once."""

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        self._url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT, sock_read=_SILENCE_TIMEOUT),
        )

    @classmethod
    def of(cls, deployment: Deployment) -> Self:
        """A client of a deployment that this process runs, with a key if it asks for one."""
        return cls(deployment.router_url, api_key=deployment.api_key)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def model(self) -> str:
        """The name of the model that the router serves.

        Raises:
            PddError: as ``ask``.
        """
        with _translated(self._url):
            async with self._session.get(f"{self._url}/v1/models") as response:
                body = await response.read()
                if response.status != HTTPStatus.OK:
                    raise error_of_status(response.status, response.headers.get("Retry-After"), body)
        return read_model_name(body)

    async def ask(self, question: Question, on_span: SpanListener | None = None) -> ReceivedAnswer:
        """Streams one answer; ``on_span`` sees each chunk as it arrives.

        Raises:
            InvalidRequest: the router refuses the request as it is.
            Unauthorized: the API key is missing or unknown.
            Unavailable: nobody answers at this address, or nobody can serve the request now.
            WorkerFailed: the answer broke off.
            RemoteProtocolError: what answers is no PDD router.
        """
        path, body = encode_question(question)
        builder, reader = AnswerBuilder(on_span), EventReader()
        begin = time.perf_counter()
        with _translated(self._url):
            async with self._session.post(self._url + path, json=body) as response:
                if response.status != HTTPStatus.OK:
                    raise error_of_status(response.status, response.headers.get("Retry-After"), await response.read())
                async for piece in response.content.iter_any():
                    for event in reader.feed(piece):
                        builder.receive(event, at=Seconds(time.perf_counter() - begin))
        return builder.finish()


@contextmanager
def _translated(url: str) -> Generator[None]:
    """Says what aiohttp says in PDD's words."""
    try:
        yield
    except aiohttp.ClientConnectorError as error:
        raise Unavailable(
            f"no router answers at {url}; `pdd up` starts one, `pdd status` says where one is",
            retry_after_s=Seconds(1.0),
        ) from error
    except aiohttp.InvalidURL as error:
        raise ConfigError(f"{url!r} is not a URL; the router's looks like http://127.0.0.1:8000") from error
    except TimeoutError as error:
        raise Unavailable(f"the router at {url} does not answer in time", retry_after_s=Seconds(1.0)) from error
    except aiohttp.ClientError as error:
        why = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
        raise WorkerFailed(f"the connection to {url} was lost{why}") from error
