"""Whose prompt is computed while main decode has no room for everybody's."""

import pytest

from pdd.policy.prefill_turns import Standing, may_compute


@pytest.mark.parametrize(
    ("standing", "num_with_room", "may"),
    [
        (Standing.ROOM, 1, True),
        (Standing.ROOM, 9, True),
        (Standing.RELAY_ONLY, 0, True),
        (Standing.RELAY_ONLY, 1, False),
        (Standing.NOTHING, 0, False),
        (Standing.NOTHING, 1, False),
    ],
)
def test_who_has_room_goes_first_and_who_has_nothing_waits(standing: Standing, num_with_room: int, may: bool):
    assert may_compute(standing, num_with_room=num_with_room) is may
