"""API keys, tenants and salts."""

import pytest

from pdd.core.errors import ConfigError, Unauthorized
from pdd.core.ids import TenantId
from pdd.core.topology import TenantTable
from pdd.router.api.tenants import LOCAL_TENANT, Tenants, derive_salt

ALICE = TenantTable(name="alice", api_key="key-a")
BOB = TenantTable(name="bob", api_key="key-b")


def test_a_key_names_its_tenant():
    tenants = Tenants([ALICE, BOB])
    assert tenants.authenticate("Bearer key-a") == "alice"
    assert tenants.authenticate("bearer  key-b ") == "bob"


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic key-a", "Bearer key-c", "key-a", "Bearer kéy"]
)
def test_anything_but_a_known_key_is_refused(header):
    with pytest.raises(Unauthorized):
        Tenants([ALICE, BOB]).authenticate(header)


def test_without_keys_everybody_is_the_local_tenant():
    assert Tenants().authenticate(None) == LOCAL_TENANT
    assert Tenants().authenticate("Bearer whatever") == LOCAL_TENANT


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_a_host_that_others_can_reach_needs_keys(host):
    with pytest.raises(ConfigError, match=r"router\.host is .*tenants"):
        Tenants().require_safe_binding(host)
    Tenants([ALICE]).require_safe_binding(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.9.10"])
def test_loopback_needs_no_keys(host):
    Tenants().require_safe_binding(host)


@pytest.mark.parametrize(
    "tables",
    [
        [TenantTable(name=" ", api_key="k")],
        [TenantTable(name="a", api_key="")],
        [TenantTable(name="a", api_key="secret with space")],
        [ALICE, TenantTable(name="alice", api_key="other")],
        [ALICE, TenantTable(name="eve", api_key="key-a")],
    ],
)
def test_nonsense_in_the_table_is_refused_without_showing_a_key(tables):
    with pytest.raises(ConfigError) as refused:
        Tenants(tables)
    assert "secret" not in str(refused.value)
    assert "key-a" not in str(refused.value)


def test_salts_differ_between_tenants_and_experiments_and_stay_the_same_otherwise():
    salts = [
        derive_salt(TenantId(tenant), salt)
        for tenant, salt in [("a", None), ("b", None), ("a", "x"), ("a", "y"), ("ab", None), ("ax", ""), ("b", "x")]
    ]
    assert len(set(salts)) == len(salts)
    assert derive_salt(TenantId("a"), "x") == derive_salt(TenantId("a"), "x")
