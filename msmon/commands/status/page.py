"""What one look of ``msmon status`` shows: the daemons, the table, and the lines below it.

``--watch`` draws in place, so there a page may not be higher than the terminal.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from msmon.bus.messages import Reply
from msmon.bus.rows import StatusRow
from msmon.commands.asking.answers import daemons
from msmon.commands.status.process_table import (
    daemon_lines,
    details,
    live_first,
    notes,
    odd_first,
    process_table,
)


def whole_page(reply: Reply, verbose: bool) -> RenderableType:
    """Return the page with a row for every process."""
    return _page(reply, live_first(reply.status_rows), verbose)


def page_that_fits(reply: Reply, verbose: bool, console: Console) -> RenderableType:
    """Return the whole page, or as many rows as the terminal has lines for and how many it hides.

    The rows that stay are those of :func:`odd_first`. One always stays, however low the terminal.
    """
    rows = live_first(reply.status_rows)
    if len(rows) < console.height:  # else it can't fit, and need not be drawn
        page = _page(reply, rows, verbose)
        if _height(page, console) <= console.height:
            return page
    rows = odd_first(rows)
    fits, too_many = 1, min(len(rows), console.height)
    while too_many - fits > 1:
        count = (fits + too_many) // 2
        page = _page(reply, rows[:count], verbose, len(rows) - count)
        if _height(page, console) <= console.height:
            fits = count
        else:
            too_many = count
    return _page(reply, rows[:fits], verbose, len(rows) - fits)


def _page(
    reply: Reply, rows: Sequence[StatusRow], verbose: bool, hidden: int = 0
) -> RenderableType:
    parts: list[RenderableType] = [
        *(line for daemon in daemons(reply) for line in daemon_lines(daemon, verbose)),
        Text(),
        process_table(rows),
    ]
    if hidden:
        parts.append(Text(f"… and {hidden} more; a higher terminal shows them"))
    if verbose:
        parts += [line for row in rows for line in (Text(), *details(row))]
    else:
        below = notes(rows)
        parts += [Text(), *below] if below else []
    return Group(*parts)


def _height(page: RenderableType, console: Console) -> int:
    return len(console.render_lines(page, pad=False))
