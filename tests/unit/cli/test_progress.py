from io import StringIO

from rich.console import Console

from pdd.cli.progress import counting


def written(*, terminal: bool) -> str:
    console = Console(file=StringIO(), width=100, force_terminal=terminal, highlight=False, markup=False)
    with counting("answers", console) as count:
        for done in range(1, 2001):
            count(done, 2000)
    return console.file.getvalue()


def test_a_log_gets_a_line_for_each_twentieth():
    lines = written(terminal=False).splitlines()
    assert len(lines) == 20
    assert lines[0].startswith("  100 of 2000 answers after ")
    assert lines[-1].startswith("  2000 of 2000 answers after ")


def test_a_log_gets_one_line_for_steps_that_are_larger():
    console = Console(file=StringIO(), width=100, force_terminal=False)
    with counting("answers", console) as count:
        for done in (1, 50, 100):
            count(done, 100)
    assert [line.split()[0] for line in console.file.getvalue().splitlines()] == ["50", "100"]


def test_a_terminal_gets_a_bar():
    shown = written(terminal=True)
    assert "2000/2000" in shown
    assert "after" not in shown
