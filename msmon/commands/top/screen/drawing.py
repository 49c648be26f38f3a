"""The screen as lines of text: a pure function of model, view and size.

No text of another process is ever markup, and none holds a control character.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.text import Text

from msmon.commands.asking.answers import sentence, terminal_safe
from msmon.commands.top.columns import COLUMNS, TopColumn, TopRow
from msmon.commands.top.model import JobVerdict, Model, RankRow
from msmon.commands.top.screen.keys import Shown
from msmon.commands.top.screen.overlays import abstained_text, overlay_lines, wrapped
from msmon.commands.top.screen.view import (
    Input,
    Overlay,
    View,
    all_rows,
    names_text,
    path_text,
    place_of,
    settled,
    shown_rows,
)

MARK_CELLS = 2
LEAST_ROWS = 3
"""Rows of the table that stay, however much there is to say above it."""

FOOTER = (
    ("↑↓ Enter Esc", ""), ("s", "sort"), ("/", "filter"), ("f", "freeze"), ("v", "verdicts"),
    ("m", "mark"), ("T", "trace"), ("?", "help"), ("q", "quit"),
)  # fmt: skip


@dataclass(frozen=True)
class Frame:
    """A screen: its lines, the view that they show and the rows of the table."""

    lines: tuple[Text, ...]
    view: View
    rows: Sequence[TopRow]
    height: int
    """Rows that the table, or the overlay, has room for."""
    width: int

    @property
    def shown(self) -> Shown:
        """What a key needs to know of it."""
        return Shown(self.rows, self.height, self.width)

    @property
    def renderable(self) -> Group:
        """The lines, for rich."""
        return Group(*self.lines)


def draw(
    model: Model,
    view: View,
    width: int,
    height: int,
    rows: Sequence[TopRow] | None = None,
    trace_directory: str = "",
) -> Frame:
    """Return the screen. It has at most ``height`` lines, none wider than ``width``.

    ``rows``: those of :func:`all_rows`, where they are known already.
    """
    if rows is None:
        rows = all_rows(model, view)
    shown = shown_rows(rows, view)
    bottom = _bottom(model, view, width, trace_directory)
    top = [_title(model, view)]
    if view.overlay is not Overlay.NONE:
        room = max(1, height - len(top) - len(bottom))
        body = overlay_lines(model, view.overlay, width)
        first = min(view.scrolled, max(0, len(body) - room))
        lines = [*top, *body[first : first + room]]
    else:
        top += _news(model, width, height - len(bottom) - 3 - LEAST_ROWS)
        top.append(_where(model, view, len(shown), len(rows)))
        room = max(1, height - len(top) - len(bottom) - 1)
        view = settled(view, shown, room)
        lines = [*top, *_table(model, view, shown, width, room)]
    lines += [Text()] * (height - len(bottom) - len(lines))
    kept = [_cut(line, width) for line in (*lines, *bottom)[-height:]]
    return Frame(tuple(kept), view, shown, room, width)


def _cut(line: Text, width: int) -> Text:
    line.truncate(width, overflow="ellipsis")
    line.no_wrap = True
    return line


def _title(model: Model, view: View) -> Text:
    moment = datetime.datetime.fromtimestamp(model.now_ns / 1e9).strftime("%H:%M:%S")
    ranks = sum(job.ranks for job in model.jobs)
    monitored = sum(job.monitored for job in model.jobs)
    parts = [
        _counted(model.daemons, "daemon"),
        _counted(len(model.jobs), "job"),
        f"{_counted(ranks, 'process', 'es')}, {monitored} monitored",
    ]
    title = Text(moment if model.now_ns else "--:--:--").append("  msmon top", style="bold")
    title.append("  " + "  ".join(parts))
    if view.marked:
        title.append(f"  {len(view.marked)} marked", style="cyan")
    if view.frozen:
        title.append("  FROZEN (f: go on)", style="bold yellow")
    return title


def _counted(number: int, name: str, plural: str = "s") -> str:
    return f"{number} {name}{plural if number != 1 else ''}"


def _news(model: Model, width: int, room: int) -> list[Text]:
    """Return verdicts and problems, the most costly first, in at most ``room`` lines."""
    lines = list(_all_news(model, width - 1))
    room = max(1, min(room, 8))
    if len(lines) <= room:
        return lines
    more = len(lines) - room + 1
    return [*lines[: room - 1], Text(f" … {_counted(more, 'more line')}: press v", style="dim")]


def _all_news(model: Model, width: int) -> Iterator[Text]:
    for place, one in enumerate(model.verdicts):
        style = "bold red" if one.verdict.alerts else "yellow"
        lines = wrapped(_verdict_text(model, one), width, style)
        yield from lines if place == 0 else lines[:1]
    for problem in model.problems:
        yield from wrapped(sentence(problem), width, "yellow")
    if model.abstained and not model.verdicts:
        ranks = sum(len(one.abstained.ranks) for one in model.abstained)
        more = f" ({_counted(ranks, 'rank')} in all: press v)" if ranks else ""
        yield from wrapped(f"Not judged: {abstained_text(model.abstained[0])}{more}", width)[:2]
    elif model.times and not model.verdicts:
        yield Text(" No verdict: nothing stands out.", style="green")


def _verdict_text(model: Model, one: JobVerdict) -> str:
    text = sentence(one.verdict.text)
    return f"{sentence(one.job)}: {text}" if len(model.jobs) > 1 else text


def _where(model: Model, view: View, shown: int, total: int) -> Text:
    line = Text(path_text(model, view), style="bold")
    if view.filter or view.input is Input.FILTER:
        line.append(f"  /{terminal_safe(view.filter)}", style="not bold cyan")
        line.append(f"  {shown} of {total}", style="not bold")
    if view.order.column is not None or view.order.reverse:
        by = f"by {view.order.column}" if view.order.column else ""
        line.append(f"  {by}{' reversed' if view.order.reverse else ''}", style="not bold cyan")
    return line


def _table(model: Model, view: View, rows: Sequence[TopRow], width: int, room: int) -> list[Text]:
    chosen = place_of(view, rows) - view.first if rows else -1
    visible = rows[view.first : view.first + room]
    lines = table_lines(COLUMNS[view.level], visible, width, chosen, view)
    return lines if rows else [*lines, Text(f"  {_nothing(model, view)}", style="dim")]


def table_lines(
    columns: Sequence[TopColumn],
    rows: Sequence[TopRow],
    width: int,
    chosen: int = -1,
    view: View | None = None,
) -> list[Text]:
    """Return the header and a line per row; ``chosen`` is the place of the one to stand out."""
    columns = [one for one in columns if one.from_width <= width]
    widths = fitted_widths(columns, rows, width - MARK_CELLS)
    header = " " * MARK_CELLS + " ".join(
        _cell(one.title, cells, one.right) for one, cells in zip(columns, widths)
    )
    lines = [Text(set_cell_size(header, width), style="reverse")]
    for place, row in enumerate(rows):
        line = Text(_marks(view, row, place == chosen))
        for column, cells in zip(columns, widths):
            line.append(_cell(column.text(row), cells, column.right), style=column.style(row))
            line.append(" ")
        if place == chosen:
            line.pad_right(max(0, width - line.cell_len))
            line.stylize("reverse")
        lines.append(line)
    return lines


def _nothing(model: Model, view: View) -> str:
    if view.filter:
        return "No row has this text. Esc clears the filter."
    if view.job is not None and view.rank is not None:
        return "No window of this rank is there. Esc goes back."
    if view.job is not None:
        return "Nothing is known of it any more. Esc goes back."
    return "No job is known." if not model.problems else ""


def _marks(view: View | None, row: TopRow, chosen: bool) -> str:
    marked = view is not None and isinstance(row, RankRow) and (row.job, row.key) in view.marked
    return (">" if chosen else " ") + ("*" if marked else " ")


def fitted_widths(columns: Sequence[TopColumn], rows: Sequence[TopRow], width: int) -> list[int]:
    """Return how wide each column is: those that stretch share what is left, as they need it."""
    widths = [one.width for one in columns]
    left = width - sum(widths) - len(widths)
    for place, column in enumerate(columns):
        if column.stretch and left > 0:
            needed = max((cell_len(column.text(row)) for row in rows), default=0)
            more = max(0, min(left, needed - widths[place]))
            widths[place] += more
            left -= more
    return widths


def _cell(text: str, cells: int, right: bool) -> str:
    size = cell_len(text)
    if size > cells:
        return set_cell_size(text, cells - 1) + "…"
    return " " * (cells - size) + text if right else text + " " * (cells - size)


def _bottom(model: Model, view: View, width: int, trace_directory: str) -> list[Text]:
    if view.input is Input.TRACE:
        job = next(iter(view.marked))[0] if view.marked else ""
        shown = names_text(model, job, [key for _, key in view.marked])
        asked = (
            f"Trace {terminal_safe(shown)} for 2 steps into {terminal_safe(trace_directory)}? "
            "Monitoring pauses meanwhile. y/n"
        )
        return wrapped(asked, width - 1, "bold cyan")
    if view.input is Input.FILTER:
        return [Text(f"/{terminal_safe(view.filter)}▏", style="bold cyan").append(
            "  Enter keeps it, Esc clears it", style="not bold")]  # fmt: skip
    if view.message:
        return [line for text in view.message for line in wrapped(sentence(text), width - 1)]
    if view.overlay is not Overlay.NONE:
        return [Text("j k scroll, any other key goes back", style="dim")]
    footer = Text()
    for key, does in FOOTER:
        footer.append(f" {key}", style="bold").append(f" {does}")
    return [footer]
