"""What an emulated link accepts at its control port."""

import msgspec
import pytest

from pdd.core.errors import InvalidRequest
from pdd.transport.emulate_control import Change, Cut, CutKind, Restore, Show, Stall, decode_request


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        (b'{"type":"show"}', Show()),
        (b'{"type":"set","rate_bits_per_s":2e7,"jitter_s":0}', Change(rate_bits_per_s=2e7, jitter_s=0.0)),
        (b'{"type":"stall","seconds":5}', Stall(seconds=5.0)),
        (b'{"type":"cut","kind":"freeze"}', Cut(kind=CutKind.FREEZE)),
        (b'{"type":"restore"}', Restore()),
    ],
)
def test_a_request_is_read_and_written_the_same_way(line, request_):
    assert decode_request(line) == request_
    assert decode_request(msgspec.json.encode(request_)) == request_


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (b"", "not a link request"),
        (b"hello", "not a link request"),
        (b"[]", "not a link request"),
        (b'{"type":"explode"}', "explode"),
        (b'{"type":"cut","kind":"saw"}', "saw"),
        (b'{"type":"set","speed":1}', "speed"),
        (b'{"type":"set","rate_bits_per_s":0}', "rate"),
        (b'{"type":"set","rate_bits_per_s":-5}', "rate"),
        (b'{"type":"set","rate_bits_per_s":1e999}', "rate"),
        (b'{"type":"set","delay_s":-0.1}', "delay_s"),
        (b'{"type":"set","delay_s":61}', "60 seconds"),
        (b'{"type":"set","jitter_s":1e9}', "jitter_s"),
        (b'{"type":"stall","seconds":-1}', "seconds"),
        (b'{"type":"stall"}', "seconds"),
    ],
)
def test_what_is_wrong_with_a_request_is_named(line, names):
    with pytest.raises(InvalidRequest, match=names):
        decode_request(line)
