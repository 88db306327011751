"""How the demo looks: what it is about, each run as it happens, the timeline, the table and the verdict."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from pdd.cli.ask.conversation import ReceivedAnswer, ReceivedSpan, SpanListener
from pdd.cli.ask.measure import HandoffBound, measure
from pdd.cli.ask.render import AnswerPrinter, format_bytes, format_seconds, legend, look_of, path_of, tabulate
from pdd.cli.ask.timeline import draw, draw_axis, rows_of
from pdd.cli.demo.play import Check, Runs, Verdict
from pdd.cli.quantities import format_rate, format_time
from pdd.core.request import Role
from pdd.core.topology import LinkTable
from pdd.core.units import BITS_PER_BYTE, Bytes, Seconds

_TITLES = {
    "relay": (
        "1  With the relay",
        "While the KV cache crosses the WAN, relay decode answers. Then main decode goes on.",
    ),
    "direct": (
        "2  Without",
        "The same prompt in cold caches: the second token waits until the KV cache is across.",
    ),
    "second_turn": (
        "3  A second turn",
        "The first conversation goes on. Main decode holds its KV cache: only what is new crosses.",
    ),
}


def introduce(
    console: Console, *, model: str, engines: str, line: LinkTable | None, prompt_tokens: int, kv: Bytes
) -> None:
    """Says what will be seen. ``line`` joins the clusters; ``kv`` is the prompt's KV cache."""
    prefill, relay, main = (look_of(role) for role in Role)
    console.print()
    console.print(Text(f"  An answer starts in cluster A and finishes in cluster B, on {engines}", style="bold"))
    console.print()
    console.print(Text("  cluster A                                     :          cluster B", style="dim"))
    wan = f"KV cache, {_describe(line)}" if line else "KV cache"
    top = Text("  ").append("[P]", style=f"{prefill.style} reverse").append(f" {prefill.name} ", style=prefill.style)
    top.append(f"── {wan} ".ljust(42, "─") + "► ").append("[MD]", style=f"{main.style} reverse")
    console.print(top.append(f" {main.name}", style=main.style))
    low = Text("   └─ KV cache ─► ").append("[RLD]", style=f"{relay.style} reverse")
    low.append(f" {relay.name} ", style=relay.style).append("─ token IDs ".ljust(23, "─") + "┘")
    console.print(low)
    console.print()
    console.print(f"  {model}, a prompt of {prompt_tokens} tokens: {format_bytes(kv)} of KV cache{_crossing(kv, line)}")
    console.print()


def _describe(line: LinkTable) -> str:
    return f"{format_rate(line.rate_bits_per_s)}, {format_time(2 * line.delay_s)} RTT"


def _crossing(kv: Bytes, line: LinkTable | None) -> str:
    if line is None:
        return ""
    seconds = Seconds(kv * BITS_PER_BYTE / line.rate_bits_per_s)
    return f", {seconds:.1f} s on this line"


class DemoStage:
    """Shows each run as it happens: whole answers where they differ, only the waiting where they don't."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._printer: AnswerPrinter | None = None

    def begin(self, name: str) -> SpanListener:
        title, about = _TITLES[name]
        self._console.print(Text(f"  {title}", style="bold"))
        self._console.print(Text(f"     {about}", style="dim"))
        self._console.print()
        self._printer = AnswerPrinter(self._console)
        self._status = self._console.status("  prefill ...", spinner="dots")
        self._status.start()
        return self._show_waiting if name == "direct" else self._show_text

    def end(self, name: str, answer: ReceivedAnswer) -> None:
        self._stop_waiting()
        if self._printer is not None:
            self._printer.finish()
        if name == "direct":
            timings = measure(answer)
            first, second = format_seconds(timings.ttft), format_seconds(timings.ttst)
            self._console.print(
                f"  first token after {first}, second after {second}, the last after {timings.total:.1f} s"
            )
        self._console.print()

    def _show_text(self, span: ReceivedSpan) -> None:
        self._stop_waiting()
        if self._printer is not None:
            self._printer.add(span)

    def _show_waiting(self, span: ReceivedSpan) -> None:
        num_tokens = span.first_position + len(span.token_ids)
        if self._status is not None:
            waits = " - waiting for the KV cache" if span.role is Role.PREFILL else ""
            self._status.update(f"  {num_tokens} token{'s' if num_tokens > 1 else ''}{waits} ...")

    def _stop_waiting(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


class QuietStage:
    """One line a run, for when standard output belongs to a JSON object."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begin(self, name: str) -> SpanListener:
        self._console.print(f"  {_TITLES[name][0]} ...")
        return lambda _: None

    def end(self, name: str, answer: ReceivedAnswer) -> None:  # noqa: ARG002 (the seam's signature)
        timings = measure(answer)
        first, second = format_seconds(timings.ttft), format_seconds(timings.ttst)
        self._console.print(f"     {path_of(answer)}: first token after {first}, second after {second}")


def print_results(console: Console, runs: Runs) -> None:
    """The timelines of the first two runs to one scale, and the table of all."""
    end = max(measure(answer).total for _, answer in runs)
    for title, answer in (("with the relay", runs.relay), ("without", runs.direct)):
        console.print(Text(f"  {title}", style="bold"))
        for line in draw(rows_of(answer), end=end, width=console.width):
            console.print(line, soft_wrap=True)
    console.print(draw_axis(end=end, width=console.width), soft_wrap=True)
    console.print()
    console.print("  ", legend(), sep="", soft_wrap=True)
    console.print()
    console.print(tabulate((name.replace("_", " "), answer) for name, answer in runs))
    console.print()


def print_verdict(console: Console, runs: Runs, verdict: Verdict) -> None:
    """What was promised, and whether it was kept."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=3, justify="right")
    grid.add_column()
    for check, words in _verdict_lines(runs, verdict):
        grid.add_row(Text("✓", style="bold green") if check.kept else Text("✗", style="bold red"), words)
    console.print(grid)
    console.print()


def _verdict_lines(runs: Runs, verdict: Verdict) -> Iterable[tuple[Check, str]]:
    relay, direct = measure(runs.relay), measure(runs.direct)
    with_relay, without = format_seconds(relay.second_token_gap), format_seconds(direct.second_token_gap)
    now, before = (format_bytes(answer.report.wan_kv_bytes) for answer in (runs.second_turn, runs.relay))
    reason = runs.relay.report.route_reason or "it did not say why"
    yield verdict.relayed, f"the router itself chose the route {runs.relay.report.route}: {reason}"
    words = f"wait for the second token: {with_relay} with the relay, {without} without: {_ratio(verdict.second_token)}"
    yield verdict.second_token, words
    words = f"KV over the WAN: {now} for the second turn, {before} for the first: {_ratio(verdict.second_turn)}"
    yield verdict.second_turn, words
    yield verdict.handoff, _handoff_words(relay.handoff_gap, verdict.handoff_bound)
    same = "the same text" if runs.exact else "NOT the same text"
    yield verdict.exact, f"the answers with the relay and without are {same}, token for token"


def _ratio(check: Check) -> str:
    return f"{check.value:.3f} (at most {check.bound:g})" if check.value is not None else "nothing to compare"


def _handoff_words(gap: Seconds | None, bound: HandoffBound | None) -> str:
    if gap is None or bound is None:
        return "there was no hand-off to measure"
    return (
        f"wait at the hand-off: {format_seconds(gap)} (at most {format_seconds(bound.total)} = RTT "
        f"{format_seconds(bound.round_trip)} + extend of {bound.num_tokens} tokens {format_seconds(bound.extend)} "
        f"+ one token {format_seconds(bound.decode)})"
    )
