"""Quantities with units."""

import pytest

from pdd.cli.quantities import (
    Dimension,
    dimension_of,
    format_memory,
    format_rate,
    format_size,
    format_time,
    parse_quantity,
)
from pdd.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "dimension", "number"),
    [
        ("20 Mbit/s", Dimension.RATE, 20e6),
        ("20Mbit/s", Dimension.RATE, 20e6),
        ("  1.5 Gbit/s ", Dimension.RATE, 1.5e9),
        ("800 bit/s", Dimension.RATE, 800),
        ("512 MiB", Dimension.SIZE, 512 * 2**20),
        ("1.5 GB", Dimension.SIZE, 1.5e9),
        ("64 B", Dimension.SIZE, 64),
        ("15 ms", Dimension.TIME, 0.015),
        (".5 s", Dimension.TIME, 0.5),
        ("2 min", Dimension.TIME, 120),
        ("1e3 us", Dimension.TIME, 0.001),
    ],
)
def test_a_number_and_a_unit_are_read(text, dimension, number):
    assert parse_quantity(text, dimension) == pytest.approx(number)


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("20", Dimension.RATE),
        ("20 MB/s", Dimension.RATE),
        ("20 mbit/s", Dimension.RATE),
        ("20 Mbit/s now", Dimension.RATE),
        ("-5 ms", Dimension.TIME),
        ("", Dimension.TIME),
        ("ms", Dimension.TIME),
        ("15 MiB", Dimension.TIME),
        ("1.2.3 s", Dimension.TIME),
        ("512 Mib", Dimension.SIZE),
    ],
)
def test_anything_else_is_refused_with_an_example(text, dimension):
    with pytest.raises(ConfigError, match="such as"):
        parse_quantity(text, dimension)


def test_a_key_says_by_its_ending_what_it_measures():
    assert dimension_of("rate_bits_per_s") is Dimension.RATE
    assert dimension_of("arena_bytes") is Dimension.SIZE
    assert dimension_of("delay_s") is Dimension.TIME
    assert dimension_of("prefill_tokens_per_s") is None
    assert dimension_of("cache_tokens") is None


def test_numbers_are_shown_as_people_write_them():
    assert format_rate(20e6) == "20 Mbit/s"
    assert format_rate(1.5e9) == "1.5 Gbit/s"
    assert format_rate(300) == "300 bit/s"
    assert format_size(28_300_000) == "28.3 MB"
    assert format_size(12) == "12 B"
    assert format_memory(188_743_680) == "180 MiB"
    assert format_memory(262_144) == "256 KiB"
    assert format_memory(1) == "1 KiB"
    assert format_time(0.015) == "15 ms"
    assert format_time(2.0) == "2 s"
