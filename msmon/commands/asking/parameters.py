"""Click parameters that several commands share: values checked by an option table,
and the choice of processes by pid, rank or job id."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from msmon.bus.messages import MAX_JOBS, MAX_NUMBERS, Selection
from msmon.errors import UsageError
from msmon.settings.options import Option

Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])

MAX_PID = 2**31 - 1
MAX_RANK = 9_999_999


def checked(option: Option) -> Callable[[Any], Any]:
    """Return the function click converts with: text is checked by its :class:`Option` only."""

    def check(value: Any) -> Any:
        if isinstance(value, str):
            _require_unicode(value, option.flag)
        return option.check(value)

    return check


def option_from(
    option: Option, default_text: str = "", **attributes: Any
) -> Callable[[Command], Command]:
    """Return the click decorator for one option of a table.

    The default is None whatever the table says: only what was typed is sent. The help shows
    ``default_text`` as the default, else that of the table.
    """
    default_text = default_text or option.default_text
    if not default_text and option.default not in (None, "", False):
        default_text = f"{option.default:{'g' if isinstance(option.default, float) else ''}}"
    text = f"{option.help} [default: {default_text}]" if default_text else option.help
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


def _require_at_most(most: int, count: int, flag: str) -> None:
    """Refuse what no request can carry, here and not on the wire: the user sees which option."""
    if count > most:
        raise UsageError(
            f"{flag}: more than {most} are named",
            f"name at most {most} in one command, or leave {flag} out to mean all processes",
        )


def _number(text: str, flag: str, minimum: int, maximum: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(maximum)):
        raise UsageError(f"{flag}: {text!r} is not a number from {minimum} to {maximum}")
    number = int(text)
    if not minimum <= number <= maximum:
        raise UsageError(f"{flag}: {text!r} is out of range", f"allowed: {minimum} to {maximum}")
    return number


def parse_pids(values: Sequence[str]) -> list[int]:
    """Parse repeated comma lists of process ids. Raises UsageError."""
    items = _items(values, "--pid")
    _require_at_most(MAX_NUMBERS, len(items), "--pid")
    return [_number(item, "--pid", 1, MAX_PID) for item in items]


def parse_ranks(values: Sequence[str]) -> list[int]:
    """Parse repeated comma lists of ranks and ranges ("0,4-7"). Raises UsageError."""
    ranks: set[int] = set()
    for item in _items(values, "--rank"):
        first_text, dash, last_text = item.partition("-")
        first = _number(first_text, "--rank", 0, MAX_RANK)
        last = _number(last_text, "--rank", 0, MAX_RANK) if dash else first
        if last < first:
            raise UsageError(f"--rank: the range {item!r} runs backwards")
        _require_at_most(MAX_NUMBERS, last - first + 1, "--rank")  # before a range is made of it
        ranks.update(range(first, last + 1))
        _require_at_most(MAX_NUMBERS, len(ranks), "--rank")
    return sorted(ranks)


def parse_job_ids(values: Sequence[str]) -> list[str]:
    """Parse repeated comma lists of job ids; they are text ("123_4"). Raises UsageError."""
    for value in values:
        _require_unicode(value, "--job-id")
    items = _items(values, "--job-id")
    _require_at_most(MAX_JOBS, len(items), "--job-id")
    return items


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
