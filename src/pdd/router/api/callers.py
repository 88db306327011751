"""Which web pages may call: those whose origin is named, by default none. Pure.

Any page can make its visitor's browser post to this machine, and by DNS rebinding under a host name of the page's own.
So a router without API keys takes requests for names of this machine only, and those that a page sends only from
origins that are named. What is no browser sends no ``Origin``, and passes. With API keys nobody calls who has none:
then pages of other origins merely can't read what comes back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pdd.core.errors import ConfigError, Forbidden
from pdd.core.topology import RouterTable, is_loopback
from pdd.router.api.reading import shown

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::\d*)?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::\d+)?")
_HEADER_NAMES = re.compile(r"[A-Za-z0-9-]+(?: *, *[A-Za-z0-9-]+)*")
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """Who is let in. ``origins`` and ``hosts`` are as ``read_origin`` and ``read_host`` have them."""

    has_keys: bool
    origins: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, table: RouterTable) -> Callers:
        """Raises ConfigError for an origin or a host that is none."""
        return cls(
            has_keys=bool(table.tenants),
            origins=frozenset(map(read_origin, table.allowed_origins)),
            hosts=frozenset(map(read_host, table.allowed_hosts)),
        )

    def check(self, *, hosts: Sequence[str], origins: Sequence[str]) -> None:
        """Looks at a request's ``Host`` and ``Origin`` headers.

        Raises:
            Forbidden: a page sent it that is not let in, or it was sent to a name that this router does not go by.
        """
        for host in hosts:
            if not self._is_ours(host):
                raise Forbidden(
                    f"host {shown(host)}: this router is called localhost, 127.0.0.1 or [::1]; other names are let in by "
                    "router.allowed_hosts or --allow-host",
                    code="forbidden_host",
                )
        for origin in origins:
            if not (self.has_keys or self._is_named(origin) or _is_own(origin, hosts)):
                raise Forbidden(
                    f"origin {shown(origin)}: without API keys web pages are let in by router.allowed_origins or "
                    "--allow-origin only",
                    code="forbidden_origin",
                )

    def headers(self, origin: str | None) -> Mapping[str, str]:
        """What each response says to a browser (CORS); nothing where no origin is named."""
        if not self.origins:
            return {}
        if origin is None or not self._is_named(origin):
            return {"Vary": "Origin"}
        return {
            "Vary": "Origin",
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": "X-Request-Id, Retry-After",
        }

    def preflight(self, origin: str | None, wanted_headers: str) -> Mapping[str, str] | None:
        """Besides ``headers``, what a browser is told that asks before it sends; None: it is told nothing."""
        if origin is None or not self._is_named(origin):
            return None
        is_list = _HEADER_NAMES.fullmatch(wanted_headers)
        return {
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": wanted_headers if is_list else "Authorization, Content-Type",
            "Access-Control-Max-Age": "600",
        }

    def _is_named(self, origin: str) -> bool:
        return origin.lower() in self.origins

    def _is_ours(self, host: str) -> bool:
        """Any name will do where there are keys, unless somebody has named some."""
        found = _HOST.fullmatch(host)
        if not host or (self.has_keys and not self.hosts):
            return True
        name = found["name"].lower().rstrip(".").strip("[]") if found else ""
        return is_loopback(name) or name in self.hosts


def _is_own(origin: str, hosts: Sequence[str]) -> bool:
    """Whether the page itself came from where its request goes."""
    return any(host and origin in (f"http://{host}", f"https://{host}") for host in hosts)


def read_origin(text: str) -> str:
    """An origin as browsers write it.

    Raises:
        ConfigError: it is none, or one that any page can have.
    """
    origin = text.lower()
    scheme = origin.partition("://")[0]
    if not _ORIGIN.fullmatch(origin):
        raise ConfigError(f"{text!r} is not an origin, such as https://chat.example or http://localhost:3000")
    return origin.removesuffix(_DEFAULT_PORTS.get(scheme, ""))


def read_host(text: str) -> str:
    """A host's name, without a port.

    Raises:
        ConfigError: it is none.
    """
    found = _HOST.fullmatch(text)
    if found is None or found["name"] != text:
        raise ConfigError(f"{text!r} is not a host's name or address without a port, such as gpu1.example")
    return text.lower().rstrip(".").strip("[]")
