"""Flags that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from pdd.cli.options import add_callers, add_state_dir, api_key, finite, router_url, with_callers
from pdd.core.topology import RouterTable


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_state_dir(parser)
    return parser.parse_args(arguments)


def test_an_empty_state_dir_is_refused_and_not_taken_for_the_current_one(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        parsed("--state-dir", "")
    assert "--state-dir: is empty; give a directory" in capsys.readouterr().err
    assert parsed("--state-dir", ".").state_dir == Path()


def test_flags_let_in_whom_the_topology_does_not_name():
    parser = argparse.ArgumentParser()
    add_callers(parser)
    flags = [
        "--allow-origin",
        "http://localhost:3000",
        "--allow-origin",
        "https://chat.example",
        "--allow-host",
        "GPU1",
    ]
    table = RouterTable(cluster="A", allowed_origins=("https://a.example",), allowed_hosts=("gpu0",))
    router = with_callers(table, parser.parse_args(flags))
    assert router.allowed_origins == ("https://a.example", "http://localhost:3000", "https://chat.example")
    assert router.allowed_hosts == ("gpu0", "gpu1")
    assert with_callers(table, parser.parse_args([])) == table


@pytest.mark.parametrize(
    ("read", "given"),
    [
        *((api_key, given) for given in ("a\nb", "a\rb", "k\x00", "a b", "\udcff")),
        *((finite, given) for given in ("nan", "inf", "-1e999", "much", "")),
        *((router_url, given) for given in ("", "gpu0", "ftp://gpu0", "http://", "http://a..b", "http://gpu0:0")),
        (router_url, f"http://{'a' * 64}"),
    ],
)
def test_what_could_not_be_sent_is_refused_before(read: Callable[[str], object], given: str):
    with pytest.raises(argparse.ArgumentTypeError):
        read(given)


def test_what_can_be_sent_is():
    assert api_key("sk-123_+/=") == "sk-123_+/="
    assert api_key("schlüssel") == "schlüssel"
    assert finite("1e-3") == 0.001
    assert router_url("http://gpu0:8000/v1/") == "http://gpu0:8000"
    assert router_url("https://[::1]:8000") == "https://[::1]:8000"
