"""``docs/phases.md`` is what machines are observed to do, and they do nothing else."""

from __future__ import annotations

from functools import cache

import pytest

from tests.support.phases import MACHINES, PAGE, Change, Machine, page, watched


@cache
def observed(title: str) -> set[Change]:
    (machine,) = [machine for machine in MACHINES if machine.title == title]
    return machine.play()


def test_the_page_is_what_is_observed():
    text = page((machine, observed(machine.title)) for machine in MACHINES)
    assert PAGE.read_text(encoding="utf-8") == text, "python -m tests.support.phases --write, and look what moved"


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.title)
def test_every_phase_is_reached_and_left_and_no_other(machine: Machine):
    first, *between, last = machine.phases
    changes = [change for change in observed(machine.title) if change.before != change.after]
    assert {change.before for change in changes} == {first, *between}
    assert {change.after for change in changes} == {*between, last}


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.title)
def test_every_phase_has_a_meaning(machine: Machine):
    assert all(machine.phases.values())


class Lamp:
    """A machine for the tests of the drawing."""

    def __init__(self) -> None:
        self.phase = "Off"

    def press(self) -> None:
        self.phase = "On"

    def receive(self, event: str) -> None:
        if event == "crash":
            self.phase = "Broken"


def test_what_is_watched_is_drawn():
    seen: set[Change] = set()
    lamp = watched(Lamp, ["press", "receive"], seen, str)()
    lamp.press()
    lamp.receive("noise")
    lamp.receive("crash")
    assert seen == {Change("Off", "press", "On"), Change("On", "noise", "On"), Change("On", "crash", "Broken")}
    machine = Machine(title="A lamp", about="It shines.", phases={"Off": "a", "On": "b", "Broken": "c"}, play=set)
    text = page([(machine, seen)])
    assert "    Off --> On: press\n" in text
    assert "noise" not in text
    assert "On --> Broken" not in text
    assert "`crash` leads to Broken" in text
