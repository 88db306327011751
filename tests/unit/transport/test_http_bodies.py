"""Compressed bodies: what they hold, and what none may hold."""

import contextlib
import gzip
import os
import tracemalloc
import zlib
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.errors import BodyTooLarge, InvalidRequest
from pdd.core.units import Bytes
from pdd.transport import http_bodies
from pdd.transport.http_bodies import inflate

LIMIT = Bytes(100_000)


def raw_deflate(data: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflater.compress(data) + deflater.flush()


def two_files(data: bytes) -> bytes:
    return gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :])


def a_file_a_byte(data: bytes) -> bytes:
    return b"".join(gzip.compress(data[at : at + 1]) for at in range(len(data))) or gzip.compress(data)


FORMS = {
    "gzip": ("gzip", gzip.compress),
    "two files of gzip": ("gzip", two_files),
    "zlib": ("deflate", zlib.compress),
    "bare deflate": ("deflate", raw_deflate),
}


@pytest.mark.parametrize("form", FORMS)
@given(data=st.binary(max_size=500) | st.integers(0, LIMIT).map(bytes))
def test_what_was_compressed_comes_out(form: str, data: bytes):
    coding, compress = FORMS[form]
    assert inflate(compress(data), coding=coding, limit=LIMIT) == data


@pytest.mark.parametrize("form", FORMS)
def test_a_byte_too_many_is_refused_and_a_bomb_makes_no_more_than_the_limit(form: str):
    coding, compress = FORMS[form]
    assert len(inflate(compress(bytes(LIMIT)), coding=coding, limit=LIMIT)) == LIMIT
    bomb = compress(bytes(500 * LIMIT))
    tracemalloc.start()
    try:
        for body in (compress(bytes(LIMIT + 1)), bomb):
            with pytest.raises(BodyTooLarge, match="larger than 100000 bytes"):
                inflate(body, coding=coding, limit=LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 5 * LIMIT
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", FORMS)
@given(data=st.binary(min_size=1, max_size=200), cut=st.floats(0, 1, exclude_max=True))
def test_one_that_breaks_off_is_refused(form: str, data: bytes, cut: float):
    coding, compress = FORMS[form]
    body = compress(data)
    part = body[: int(cut * len(body))]
    if form == "two files of gzip" and part and inflatable(part):
        return  # just the first of the two files
    with pytest.raises(InvalidRequest, match=f"is not {coding} as its Content-Encoding says"):
        inflate(part, coding=coding, limit=LIMIT)


def inflatable(part: bytes) -> bool:
    try:
        gzip.decompress(part)
    except (EOFError, OSError, zlib.error):
        return False
    return True


@given(data=st.binary(max_size=2000))
def test_what_was_compressed_byte_by_byte_comes_out(data: bytes):
    assert inflate(a_file_a_byte(data), coding="gzip", limit=LIMIT) == data


def test_any_number_of_files_costs_no_more_than_their_bytes(monkeypatch: pytest.MonkeyPatch):
    """Inflaters copy what they are given and do not need."""
    given_bytes = 0

    class Counting:
        def __init__(self, wbits: int) -> None:
            self._inflater = zlib.decompressobj(wbits)

        def __getattr__(self, name: str) -> object:
            return getattr(self._inflater, name)

        def decompress(self, data: memoryview, most: int) -> bytes:
            nonlocal given_bytes
            given_bytes += len(data)
            return self._inflater.decompress(data, most)

    body = gzip.compress(b"") * 20_000 + gzip.compress(os.urandom(LIMIT))
    monkeypatch.setattr(http_bodies, "zlib", SimpleNamespace(decompressobj=Counting, error=zlib.error))
    assert len(inflate(body, coding="gzip", limit=LIMIT)) == LIMIT
    assert given_bytes < 30 * len(body)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@given(body=st.binary(max_size=60))
def test_nothing_else_gets_out_whatever_comes(coding: str, body: bytes):
    with contextlib.suppress(InvalidRequest):
        inflate(body, coding=coding, limit=LIMIT)


def test_what_follows_deflate_is_not_swallowed():
    with pytest.raises(InvalidRequest):
        inflate(zlib.compress(b"x") + b"more", coding="deflate", limit=LIMIT)
