"""Who may use the front door: API keys that name tenants, and the salts that keep tenants' caches apart."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from pdd.core.errors import ConfigError, Unauthorized
from pdd.core.ids import Salt, TenantId
from pdd.core.topology import TenantTable, is_loopback

LOCAL_TENANT = TenantId("local")
"""Everybody, where no keys are configured: that is possible on loopback only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    tenant: TenantId
    digest: bytes


class Tenants:
    """The configured keys. Without any, every caller is ``LOCAL_TENANT``."""

    __slots__ = ("_keys",)

    def __init__(self, tables: Sequence[TenantTable] = ()) -> None:
        """Raises ConfigError for an empty or repeated name or key; never shows a key."""
        for table in tables:
            _require_named_key(table)
        _require_distinct([table.name for table in tables], "name")
        _require_distinct([table.api_key for table in tables], "api_key")
        self._keys = tuple(_Key(tenant=TenantId(table.name), digest=_digest(table.api_key)) for table in tables)

    def authenticate(self, authorization: str | None) -> TenantId:
        """The tenant that an ``Authorization`` header names.

        Raises:
            Unauthorized: keys are configured and this is none of them.
        """
        if not self._keys:
            return LOCAL_TENANT
        scheme, _, key = (authorization or "").strip().partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthorized("no API key: send it as `Authorization: Bearer <key>`")
        return self._tenant_of(_digest(key.strip()))

    def require_safe_binding(self, host: str) -> None:
        """Raises ConfigError when ``host`` is reachable from elsewhere and there are no keys."""
        if not self._keys and not is_loopback(host):
            raise ConfigError(
                f"router.host is {host!r}, which others can reach, and no tenants are configured: "
                "add [[router.tenants]] with name and api_key, or listen on 127.0.0.1"
            )

    def _tenant_of(self, digest: bytes) -> TenantId:
        """Looks at every key, whatever it finds, so that time tells nothing."""
        found: TenantId | None = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key.tenant
        if found is None:
            raise Unauthorized("incorrect API key")
        return found


def derive_salt(tenant: TenantId, cache_salt: str | None) -> Salt:
    """What separates this tenant's blocks, and within them an experiment's, from all others.

    Hashed with the name's length in front, so that no choice of ``cache_salt`` reaches into another tenant's cache.
    """
    name = tenant.encode()
    digest = hashlib.sha256(b"pdd-salt-v1\0" + len(name).to_bytes(8, "little") + name + (cache_salt or "").encode())
    return Salt(digest.hexdigest())


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _require_named_key(table: TenantTable) -> None:
    if not table.name.strip():
        raise ConfigError("router.tenants: a tenant's name is empty")
    if not table.api_key or table.api_key != "".join(table.api_key.split()):
        raise ConfigError(f"router.tenants: the api_key of {table.name!r} is empty or contains white space")


def _require_distinct(values: Sequence[str], key: str) -> None:
    if len(set(values)) != len(values):
        raise ConfigError(f"router.tenants: two tenants share one {key}")
