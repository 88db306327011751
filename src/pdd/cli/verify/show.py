"""How the result of ``pdd verify`` looks: a table for each deployment, what went wrong, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from pdd.cli.tables import WholeTable
from pdd.cli.verify.prompts import Prompt
from pdd.cli.verify.result import Played, exact_rate, mismatches, near_ties, passed, per_case


def show(console: Console, prompts: Sequence[Prompt], plays: Sequence[Played]) -> None:
    """Prints everything."""
    lengths = {prompt.number: len(prompt.token_ids) for prompt in prompts}
    console.print()
    for played in plays:
        if len(plays) > 1:
            console.print(Text(f"  {played.direction.replace('_', ' ')}", style="bold"))
        console.print(_tabulate(played))
        console.print()
        for tie in near_ties(played, lengths):
            words = "a near tie at position {first_difference}, {gap:.2g} apart".format_map(tie)
            console.print(Text("  ~ ", style="yellow"), _words(tie), words, sep="")
        for wrong in mismatches(played, lengths):
            console.print(Text("  ✗ ", style="bold red"), _words(wrong), wrong["problem"], sep="")
    _show_verdict(console, list(lengths.values()), plays)


def _tabulate(played: Played) -> WholeTable:
    table = WholeTable(gap=3)
    table.add_column("  case")
    for heading in ("answers", "exact", "relayed"):
        table.add_column(heading, justify="right")
    wrong = {outcome.trial.case.name for outcome in played.outcomes if outcome.problem is not None}
    for name, counts in per_case(played.outcomes).items():
        style = "bold red" if name in wrong else ""
        cells = (str(counts[key]) for key in ("requests", "exact", "relays"))
        table.add_row(f"  {name.replace('_', ' ')}", *cells, style=style)
    return table


def _words(found: dict[str, object]) -> str:
    return "prompt {prompt} ({prompt_tokens} tokens), {case}, {sampling}: ".format_map(found)


def _show_verdict(console: Console, lengths: Sequence[int], plays: Sequence[Played]) -> None:
    outcomes = [outcome for played in plays for outcome in played.outcomes]
    num_near_ties = sum(outcome.near_tie for outcome in outcomes)
    mark = Text("  ✓ ", style="bold green") if passed(plays) else Text("  ✗ ", style="bold red")
    but = f"; {num_near_ties} differ from a near tie on" if num_near_ties else ""
    words = f"{exact_rate(outcomes):.1%} of {len(outcomes)} answers equal the unbroken engine's, token for token{but}"
    console.print(mark, words, sep="")
    relays, seconds = sum(outcome.relayed for outcome in outcomes), sum(played.seconds for played in plays)
    console.print(
        f"    {relays} relays on {len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens, in {seconds:.0f} s"
    )
