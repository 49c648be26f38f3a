"""What lies over the table: the keys, and all verdicts in full."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.text import Text

from msmon.commands.asking.answers import sentence
from msmon.commands.top.model import JobAbstained, JobVerdict, Model
from msmon.commands.top.screen.keys import HELP
from msmon.commands.top.screen.view import Overlay
from msmon.insight.wording import moment_text, ranks_text

ABOUT = (
    ("PAST", "against the own earlier windows; +10% is 10 % slower"),
    ("WORK", "own kernels against the peers: ranks of the same position"),
    ("PEERS", "this operator against the peers"),
    ("EXPOSED", "communication that no kernel hides, share of the time"),
    ("IDLE", "neither kernels nor communication, share of the time"),
    ("AGE", "since the newest window, one per --report-interval-s"),
    ("-", "not known, for example without steps or earlier windows"),
)


def overlay_lines(model: Model, overlay: Overlay, width: int) -> list[Text]:
    """Return all lines of what lies over the table; they may be more than the screen has."""
    lines = _help() if overlay is Overlay.HELP else verdict_lines(model, width)
    return list(lines)


def _help() -> Iterator[Text]:
    for names, does in HELP:
        yield Text(f" {names:<22}", style="bold").append(does, style="not bold")
    yield Text()
    for title, means in ABOUT:
        yield Text(f" {title:<22}", style="bold").append(means, style="not bold")


def verdict_lines(model: Model, width: int) -> Iterator[Text]:
    """Yield all verdicts in full, what can't be judged, problems, and what is over."""
    width = max(20, width - 1)
    if not model.verdicts:
        yield Text(" No verdict: nothing stands out." if model.times else " Nothing is judged yet.")
    for one in model.verdicts:
        yield from _verdict(one, width, "bold red" if one.verdict.alerts else "yellow")
    if model.abstained:
        yield from _headed("What can't be judged")
        for abstained in model.abstained:
            yield from wrapped(abstained_text(abstained), width)
    if model.problems:
        yield from _headed("Problems")
        for problem in model.problems:
            yield from wrapped(sentence(problem), width)
    if model.ended:
        yield from _headed("Over")
        for one in model.ended:
            yield from _verdict(one, width, "dim")


def _headed(title: str) -> Iterator[Text]:
    yield Text()
    yield Text(f" {title}", style="bold")


def _verdict(one: JobVerdict, width: int, style: str) -> Iterator[Text]:
    verdict = one.verdict
    text = f"{sentence(one.job)}: {sentence(verdict.text)}"
    if verdict.until_ns is not None:
        text += f" Over since {moment_text(verdict.until_ns)}."
    yield from wrapped(text, width, style)
    for evidence in verdict.evidence:
        yield from wrapped(sentence(evidence), width, indent="   ")
    if verdict.until_ns is None and verdict.next:
        yield Text(f"   {sentence(verdict.next)}", style="cyan")  # in one piece, to copy it


def abstained_text(one: JobAbstained) -> str:
    """Return of whom nothing can be said, and why, as a sentence."""
    ranks = one.abstained.ranks
    who = f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks)}: " if ranks else ""
    return f"{sentence(one.job)}: {who}{sentence(one.abstained.reason)}"


def wrapped(text: str, width: int, style: str = "", indent: str = " ") -> list[Text]:
    """Return a text as lines of at most ``width`` columns."""
    lines = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent + "  ")
    return [Text(line, style=style) for line in lines]
