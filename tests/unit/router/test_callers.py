"""Which hosts and origins are let in, and what a browser is told."""

import pytest

from pdd.core.errors import ConfigError, Forbidden
from pdd.core.topology import RouterTable, TenantTable
from pdd.router.api.callers import Callers, read_host, read_origin

PAGE = "https://chat.example"


def callers(*, keys: bool = False, **allowed: tuple[str, ...]) -> Callers:
    tenants = (TenantTable(name="a", api_key="ka"),) if keys else ()
    return Callers.of(RouterTable(cluster="A", tenants=tenants, **allowed))


def refusal(who: Callers, *, host: str = "localhost:8000", origins: tuple[str, ...] = ()) -> str | None:
    try:
        who.check(hosts=(host,), origins=origins)
    except Forbidden as error:
        return error.code
    return None


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LocalHost:8000", "localhost.", "127.0.0.1", "127.0.0.1:8000", "127.9.9.9:1"),
        *("[::1]", "[::1]:8000", ""),
    ],
)
def test_every_name_of_loopback_is_ours(host):
    assert refusal(callers(), host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "0.0.0.0:8000"),
        *("10.0.0.1", "[::2]", "[::1", "a@localhost", "localhost:x", "localhost/", "\udcff", "127.1", "[::1]x"),
    ],
)
def test_no_other_name_is_without_keys_and_with_keys_any(host):
    assert refusal(callers(), host=host) == "forbidden_host"
    assert refusal(callers(keys=True), host=host) is None


def test_hosts_that_are_named_are_ours_with_any_port():
    for keys in (False, True):
        who = callers(keys=keys, allowed_hosts=("GPU1.example", "[fd00::1]"))
        for host in ("gpu1.example", "gpu1.example:8000", "GPU1.EXAMPLE", "[fd00::1]:80", "localhost"):
            assert refusal(who, host=host) is None
        assert refusal(who, host="gpu2.example") == "forbidden_host"


def test_a_second_host_does_not_hide_behind_the_first():
    with pytest.raises(Forbidden, match="evil"):
        callers().check(hosts=("localhost", "evil.example"), origins=())


@pytest.mark.parametrize("origin", [PAGE, "null", "http://localhost:3000", "http://localhost", "file://", "\udcff", ""])
def test_pages_are_not_let_in_without_keys_unless_they_are_named(origin):
    assert refusal(callers(), origins=(origin,)) == "forbidden_origin"
    assert refusal(callers(keys=True), origins=(origin,)) is None


def test_pages_that_are_named_are_let_in_and_no_other():
    who = callers(allowed_origins=(PAGE, "http://localhost:3000"))
    for origin in (PAGE, "HTTPS://chat.example", "http://localhost:3000"):
        assert refusal(who, origins=(origin,)) is None
    for origin in ("http://chat.example", "https://chat.example:8443", "https://evil.chat.example", "null"):
        assert refusal(who, origins=(origin,)) == "forbidden_origin"
        assert refusal(who, origins=(PAGE, origin)) == "forbidden_origin"


def test_a_page_of_ours_is_no_strangers():
    assert refusal(callers(), host="localhost:8000", origins=("http://localhost:8000",)) is None
    assert refusal(callers(), host="localhost:8000", origins=("http://127.0.0.1:8000",)) == "forbidden_origin"
    assert refusal(callers(), host="", origins=("null",)) == "forbidden_origin"
    rebound = refusal(callers(), host="evil.example:8000", origins=("http://evil.example:8000",))
    assert rebound == "forbidden_host"


def test_a_refusal_names_what_came_and_the_setting():
    with pytest.raises(Forbidden, match=r'host "evil.example": .*router.allowed_hosts or --allow-host'):
        callers().check(hosts=("evil.example",), origins=())
    with pytest.raises(Forbidden, match=r'origin "https://evil.example": .*router.allowed_origins or --allow-origin'):
        callers().check(hosts=("localhost",), origins=("https://evil.example",))


def test_a_browser_is_told_nothing_where_no_origin_is_named():
    assert callers().headers(PAGE) == {}
    assert callers(keys=True).preflight(PAGE, "authorization") is None


@pytest.mark.parametrize("keys", [True, False])
def test_a_browser_is_told_that_a_named_origin_may_read(keys):
    who = callers(keys=keys, allowed_origins=(PAGE,))
    told = who.headers(PAGE)
    assert told["Access-Control-Allow-Origin"] == PAGE
    assert "X-Request-Id" in told["Access-Control-Expose-Headers"]
    assert "Access-Control-Allow-Credentials" not in told
    for other in (None, "https://evil.example", "null"):
        assert who.headers(other) == {"Vary": "Origin"}
        assert who.preflight(other, "") is None


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        ("authorization,content-type", "authorization,content-type"),
        ("x-stainless-lang, x-stainless-os", "x-stainless-lang, x-stainless-os"),
        ("", "Authorization, Content-Type"),
        ("\udcff", "Authorization, Content-Type"),
        ("a\nb", "Authorization, Content-Type"),
    ],
)
def test_a_named_origin_may_send_what_headers_it_wants(wanted, allowed):
    told = callers(allowed_origins=(PAGE,)).preflight(PAGE, wanted)
    assert told is not None
    assert told["Access-Control-Allow-Headers"] == allowed
    assert told["Access-Control-Allow-Methods"] == "GET, POST"


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        (PAGE, PAGE),
        ("HTTPS://Chat.Example:443", PAGE),
        ("http://localhost:80", "http://localhost"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
        ("https://localhost:80", "https://localhost:80"),
    ],
)
def test_an_origin_is_read_as_browsers_write_it(text, origin):
    assert read_origin(text) == origin


@pytest.mark.parametrize(
    "text",
    ["*", "null", "", "chat.example", "https://chat.example/", "https://*.example", "https://a@b", "https://é.example"],
)
def test_what_is_no_origin_or_that_of_every_page_is_refused(text):
    with pytest.raises(ConfigError, match=r"such as https://chat\.example"):
        read_origin(text)


@pytest.mark.parametrize("text", ["", "*", "gpu1:8000", "http://gpu1", "gpu1/", "é", "[::1"])
def test_what_is_no_host_is_refused(text):
    with pytest.raises(ConfigError, match="without a port"):
        read_host(text)
