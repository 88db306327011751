from pdd.core.units import bytes_per_second, transfer_time


def test_lines_are_sold_in_bits():
    assert bytes_per_second(20e6) == 2.5e6


def test_the_demo_prompt_takes_eleven_seconds_at_20_mbit():
    assert round(transfer_time(600 * 46_080, bytes_per_second(20e6)), 1) == 11.1
