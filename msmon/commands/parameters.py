"""Click parameters that several commands share: values checked by an option table,
and the choice of processes by pid, rank or job id."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from msmon.bus.messages import Selection
from msmon.errors import UsageError
from msmon.settings.options import Option

Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])

MAX_PID = 2**31 - 1
MAX_RANK = 9_999_999
MAX_RANKS = 100_000
"""Longest list that ranges may expand to."""


def checked(option: Option) -> Callable[[Any], Any]:
    """Return the function click converts with: text is checked by its :class:`Option` only."""

    def check(value: Any) -> Any:
        if isinstance(value, str):
            _require_unicode(value, option.flag)
        return option.check(value)

    return check


def option_from(option: Option, **attributes: Any) -> Callable[[Command], Command]:
    """Return the click decorator for one option of a table.

    The default is None whatever the table says: only what was typed is sent.
    """
    text = option.help
    if option.default not in (None, "", False):
        text += f" [default: {option.default:{'g' if isinstance(option.default, float) else ''}}]"
    return click.option(
        option.flag,
        option.name,
        type=checked(option),
        help=text,
        metavar=option.metavar or "|".join(option.choices) or None,
        **attributes,
    )


def _require_unicode(text: str, flag: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{flag}: {text!r} is not valid UTF-8") from None


def _items(values: Sequence[str], flag: str) -> list[str]:
    """Split repeated comma lists into items. Raises UsageError for an empty one."""
    items = [item.strip() for value in values for item in value.split(",")]
    if not all(items):
        raise UsageError(f"{flag}: empty item in {','.join(values)!r}", f"write {flag} A,B")
    return list(dict.fromkeys(items))


def _number(text: str, flag: str, minimum: int, maximum: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(maximum)):
        raise UsageError(f"{flag}: {text!r} is not a number from {minimum} to {maximum}")
    number = int(text)
    if not minimum <= number <= maximum:
        raise UsageError(f"{flag}: {text!r} is out of range", f"allowed: {minimum} to {maximum}")
    return number


def parse_pids(values: Sequence[str]) -> list[int]:
    """Parse repeated comma lists of process ids. Raises UsageError."""
    return [_number(item, "--pid", 1, MAX_PID) for item in _items(values, "--pid")]


def parse_ranks(values: Sequence[str]) -> list[int]:
    """Parse repeated comma lists of ranks and ranges ("0,4-7"). Raises UsageError."""
    ranks: set[int] = set()
    for item in _items(values, "--rank"):
        first_text, dash, last_text = item.partition("-")
        first = _number(first_text, "--rank", 0, MAX_RANK)
        last = _number(last_text, "--rank", 0, MAX_RANK) if dash else first
        if last < first:
            raise UsageError(f"--rank: the range {item!r} runs backwards")
        if len(ranks) + last - first >= MAX_RANKS:
            raise UsageError(f"--rank: {item!r} names too many ranks", f"allowed: {MAX_RANKS}")
        ranks.update(range(first, last + 1))
    return sorted(ranks)


def parse_job_ids(values: Sequence[str]) -> list[str]:
    """Parse repeated comma lists of job ids; they are text ("123_4"). Raises UsageError."""
    for value in values:
        _require_unicode(value, "--job-id")
    return _items(values, "--job-id")


def select_processes(command: Callable[..., Result]) -> Callable[..., Result]:
    """Add ``--pid --rank --job-id``; the command gets them as one ``selection``."""

    @click.option(
        "--pid", "pids", multiple=True, metavar="PID[,PID...]", help="Only these processes."
    )
    @click.option(
        "--rank",
        "--rank-list",
        "ranks",
        multiple=True,
        metavar="RANK[,RANK|A-B...]",
        help="Only these ranks.",
    )
    @click.option(
        "--job-id",
        "job_ids",
        multiple=True,
        metavar="ID[,ID...]",
        help="Only processes of these scheduler jobs.",
    )
    @functools.wraps(command)
    def selecting(
        *args: Any,
        pids: tuple[str, ...],
        ranks: tuple[str, ...],
        job_ids: tuple[str, ...],
        **rest: Any,
    ) -> Result:
        selection = Selection(parse_pids(pids), parse_ranks(ranks), parse_job_ids(job_ids))
        return command(*args, selection=selection, **rest)

    return selecting
