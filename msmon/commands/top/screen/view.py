"""What somebody looks at: which table, which row, in which order, and what is asked of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from msmon.commands.asking.answers import terminal_safe
from msmon.commands.top.columns import COLUMNS, UNKNOWN, Level, TopColumn, TopRow
from msmon.commands.top.details import bands_of, group_rows, operators_of, ranks_of
from msmon.commands.top.model import ALL_RANKS, Model, OperatorKey, RankKey
from msmon.insight.wording import ranks_text
from msmon.vocabulary import Vocabulary


class Overlay(Vocabulary):
    """What lies over the table."""

    NONE = ""
    HELP = "help"
    VERDICTS = "verdicts"


class Input(Vocabulary):
    """What keys are for at the moment."""

    KEYS = ""
    FILTER = "filter"
    """They are text of the filter."""
    TRACE = "trace"
    """They answer whether the marked ranks are to be traced."""


class Wish(Vocabulary):
    """What the screen is to do after a key."""

    NONE = ""
    QUIT = "quit"
    TRACE = "trace"


@dataclass(frozen=True)
class Sorting:
    """By which column; None: as the rows come."""

    column: Optional[str] = None
    reverse: bool = False


@dataclass(frozen=True)
class View:
    """All that keys change. It never changes itself; a key makes a new one."""

    job: Optional[str] = None
    group: Optional[str] = None
    rank: Optional[RankKey] = None
    operator: Optional[OperatorKey] = None
    cursor: Hashable = None
    """Key of the chosen row. It stays chosen while rows move."""
    place: int = 0
    """Where it was last, for when it is gone."""
    first: int = 0
    """The first row on the screen."""
    sorting: Mapping[Level, Sorting] = field(default_factory=dict)
    filters: Mapping[Level, str] = field(default_factory=dict)
    marked: frozenset[tuple[str, RankKey]] = frozenset()
    """(job, process)."""
    frozen: bool = False
    overlay: Overlay = Overlay.NONE
    scrolled: int = 0
    """Lines by which the overlay is scrolled."""
    input: Input = Input.KEYS
    message: tuple[str, ...] = ()
    """Lines above the last one, until the next key."""
    wish: Wish = Wish.NONE
    touched: bool = False
    """A key was pressed: the view no longer goes to a job by itself."""

    @property
    def level(self) -> Level:
        """Which table is shown."""
        for chosen, level in (
            (self.operator, Level.HISTOGRAM),
            (self.rank, Level.OPERATORS),
            (self.group, Level.RANKS),
            (self.job, Level.GROUPS),
        ):
            if chosen is not None:
                return level
        return Level.JOBS

    @property
    def filter(self) -> str:
        """What the rows of this table must contain."""
        return self.filters.get(self.level, "")

    @property
    def order(self) -> Sorting:
        """In which order the rows of this table are."""
        return self.sorting.get(self.level, Sorting())


def all_rows(model: Model, view: View) -> Sequence[TopRow]:
    """Return the rows of the table that is looked at, as they come."""
    job = view.job or ""
    if view.job is None:
        return model.jobs
    if view.group is None:
        return group_rows(model, job)
    if view.rank is None:
        return ranks_of(model, job, view.group)
    if view.operator is None:
        return operators_of(model, job, view.rank)
    return bands_of(model, job, view.rank, view.operator)


def shown_rows(rows: Sequence[TopRow], view: View) -> list[TopRow]:
    """Return those of the rows that the filter leaves, in the order that is wanted."""
    columns = COLUMNS[view.level]
    wanted = view.filter.casefold()
    found = [row for row in rows if wanted in _searched(row, columns)] if wanted else list(rows)
    order = view.order
    by = next((column for column in columns if column.title == order.column), None)
    if by is None:
        return found[::-1] if order.reverse else found
    value = by.value
    known = [row for row in found if value(row) is not None]
    unknown = [row for row in found if value(row) is None]
    return [*sorted(known, key=value, reverse=order.reverse is by.rises), *unknown]


def _searched(row: TopRow, columns: Sequence[TopColumn]) -> str:
    return " ".join(column.text(row) for column in columns if column.title).casefold()


def settled(view: View, rows: Sequence[TopRow], height: int) -> View:
    """Return the view with its chosen row among those that are there, and on the screen.

    ``height`` is how many rows the screen has room for.
    """
    if not rows:
        return dataclasses.replace(view, cursor=None, place=0, first=0)
    place = place_of(view, rows)
    last_first = max(0, len(rows) - height)
    first = min(max(view.first, place - height + 1), place, last_first)
    cursor = rows[place].key
    if (cursor, place, first) == (view.cursor, view.place, view.first):
        return view
    return dataclasses.replace(view, cursor=cursor, place=place, first=first)


def place_of(view: View, rows: Sequence[TopRow]) -> int:
    """Return where the chosen row is now."""
    if view.place < len(rows) and rows[view.place].key == view.cursor:
        return view.place
    for place, row in enumerate(rows):
        if row.key == view.cursor:
            return place
    return max(0, min(view.place, len(rows) - 1))


def opened(view: View, model: Model) -> View:
    """Return the view of the ranks where there is one job only and nobody has chosen yet."""
    if view.touched or view.job is not None or len(model.jobs) != 1:
        return view
    return dataclasses.replace(view, job=model.jobs[0].key, group=ALL_RANKS)


def path_text(model: Model, view: View) -> str:
    """Return where one is: "jobs > train > all ranks > rank 3 > MatMul"."""
    parts = ["jobs"]
    if view.job is not None:
        parts.append(view.job)
    if view.group is not None:
        parts.append("all ranks" if view.group == ALL_RANKS else view.group or UNKNOWN)
    if view.rank is not None:
        parts.append(rank_name(model, view.job or "", view.rank))
    if view.operator is not None:
        parts.append(view.operator.name)
    return " > ".join(map(terminal_safe, parts))


def rank_name(model: Model, job: str, key: RankKey) -> str:
    """Return "rank 3", or host and pid of a process without a rank."""
    for row in model.ranks.get(job, ()):
        if row.key == key and row.rank is not None:
            return f"rank {row.rank}"
    return f"{key.host}:{key.pid}"


def names_text(model: Model, job: str, keys: Iterable[RankKey]) -> str:
    """Return "rank 3" or "ranks 0-3, 7"; processes without a rank by their names."""
    wanted = set(keys)
    rows = [row for row in model.ranks.get(job, ()) if row.key in wanted]
    ranks = [row.rank for row in rows if row.rank is not None]
    known = {row.key for row in rows if row.rank is not None}
    names = [f"{key.host}:{key.pid}" for key in sorted(wanted - known)]
    if ranks:
        names.insert(0, f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks)}")
    return ", ".join(names)


def replaced(mapping: Mapping[Level, Any], level: Level, value: Any) -> dict[Level, Any]:
    """Return the mapping with another value for one level."""
    return {**mapping, level: value}
