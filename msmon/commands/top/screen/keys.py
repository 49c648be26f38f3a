"""What a key changes. Nothing here draws, waits or asks anybody."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msmon.commands.top.columns import COLUMNS, Level, TopRow
from msmon.commands.top.model import ALL_RANKS, OperatorKey, RankKey
from msmon.commands.top.screen.view import (
    Input,
    Overlay,
    Sorting,
    View,
    Wish,
    place_of,
    replaced,
)

MOST_FILTER = 80

HELP = (
    ("↑ ↓  k j", "choose a row"),
    ("PgUp PgDn  Home End", "a page, the first row, the last row"),
    ("Enter →", "go in: job, group, rank, operator, histogram"),
    ("Esc Backspace ←", "go back; an own filter goes first"),
    ("s S  > <", "sort by the next or the previous column"),
    ("r", "turn the order round"),
    ("/", "only rows with this text; Enter keeps it, Esc clears it"),
    ("space f", "freeze what is shown, and go on"),
    ("v", "all verdicts in full, with what they rest on"),
    ("m", "mark a rank, or take the mark off; u: take off all marks"),
    ("T", "trace the marked ranks, or the chosen one, for 2 steps"),
    ("q", "leave"),
)
"""Keys, and what they do."""


@dataclass(frozen=True)
class Shown:
    """What is on the screen while a key is pressed: the rows of the table, how many it has room
    for, and how wide it is."""

    rows: Sequence[TopRow] = ()
    height: int = 20
    width: int = 80


def press(view: View, key: str, shown: Shown) -> View:
    """Return the view after a key: a character, or a name such as "up" or "enter"."""
    view = dataclasses.replace(view, touched=True, message=(), wish=Wish.NONE)
    if view.input is Input.FILTER:
        return _type_filter(view, key)
    if view.input is Input.TRACE:
        wish = Wish.TRACE if key in ("y", "Y") else Wish.NONE
        said = () if wish is Wish.TRACE else ("No trace was asked for.",)
        return dataclasses.replace(view, input=Input.KEYS, wish=wish, message=said)
    if view.overlay is not Overlay.NONE:
        return _in_overlay(view, key, shown)
    action = _ACTIONS.get(key)
    return action(view, shown) if action is not None else view


def _type_filter(view: View, key: str) -> View:
    text = view.filter
    if key == "enter":
        return dataclasses.replace(view, input=Input.KEYS)
    if key == "escape":
        text = ""
    elif key == "backspace":
        text = text[:-1]
    elif len(key) == 1 and key.isprintable() and len(text) < MOST_FILTER:
        text += key
    done = key == "escape"
    return dataclasses.replace(
        view,
        filters=replaced(view.filters, view.level, text),
        input=Input.KEYS if done else Input.FILTER,
    )


def _in_overlay(view: View, key: str, shown: Shown) -> View:
    if key == "q":
        return dataclasses.replace(view, wish=Wish.QUIT)
    lines = {"down": 1, "j": 1, "up": -1, "k": -1, "pagedown": shown.height, " ": shown.height,
             "pageup": -shown.height, "home": -view.scrolled, "g": -view.scrolled}  # fmt: skip
    if key in lines:
        return dataclasses.replace(view, scrolled=max(0, view.scrolled + lines[key]))
    return dataclasses.replace(view, overlay=Overlay.NONE, scrolled=0)


def _move(view: View, shown: Shown, place: int) -> View:
    if not shown.rows:
        return view
    place = max(0, min(place, len(shown.rows) - 1))
    return dataclasses.replace(view, cursor=shown.rows[place].key, place=place)


def _moving(rows: int = 0, pages: int = 0) -> Callable[[View, Shown], View]:
    def move(view: View, shown: Shown) -> View:
        distance = rows + pages * max(1, shown.height - 1)
        return _move(view, shown, place_of(view, shown.rows) + distance)

    return move


def _go_in(view: View, shown: Shown) -> View:
    if not shown.rows or view.level is Level.HISTOGRAM:
        return view
    key = shown.rows[place_of(view, shown.rows)].key
    into = dataclasses.replace(view, cursor=None, place=0, first=0)
    if isinstance(key, RankKey):
        return dataclasses.replace(into, rank=key)
    if isinstance(key, OperatorKey):
        return dataclasses.replace(into, operator=key)
    assert isinstance(key, str)
    if view.job is None:
        return dataclasses.replace(into, job=key, cursor=ALL_RANKS)
    return dataclasses.replace(into, group=key)


def _go_back(view: View, shown: Shown) -> View:
    if view.filter:
        return dataclasses.replace(view, filters=replaced(view.filters, view.level, ""))
    for name in ("operator", "rank", "group", "job"):
        left = getattr(view, name)
        if left is not None:
            changed = {name: None, "cursor": left, "first": 0}
            return dataclasses.replace(view, **changed)
    return view


def _sorting(step: int) -> Callable[[View, Shown], View]:
    """Sort by the next column, or the previous one; behind the last one is "as the rows come"."""

    def change(view: View, shown: Shown) -> View:
        columns = [one for one in COLUMNS[view.level] if one.from_width <= shown.width]
        titles = [None, *(column.title for column in columns if column.title)]
        now = titles.index(view.order.column) if view.order.column in titles else 0
        place = (now + step) % len(titles)
        return _ordered(view, Sorting(titles[place], view.order.reverse))

    return change


def _reverse(view: View, shown: Shown) -> View:
    return _ordered(view, dataclasses.replace(view.order, reverse=not view.order.reverse))


def _ordered(view: View, order: Sorting) -> View:
    """Return the view in another order, at its first row: that is what one sorts for."""
    sorting = replaced(view.sorting, view.level, order)
    return dataclasses.replace(view, sorting=sorting, cursor=None, place=0, first=0)


def _mark(view: View, shown: Shown) -> View:
    chosen = _chosen_ranks(view, shown)
    if not chosen:
        return dataclasses.replace(view, message=("Marks are for ranks: choose one first.",))
    marked = view.marked ^ chosen
    changed = dataclasses.replace(view, marked=marked)
    if view.level is not Level.RANKS:
        return changed
    return _move(changed, shown, place_of(view, shown.rows) + 1)


def _trace(view: View, shown: Shown) -> View:
    marked = view.marked or _chosen_ranks(view, shown)
    if not marked:
        return dataclasses.replace(view, message=("Choose a rank, or mark some with m, first.",))
    if len({job for job, _ in marked}) > 1:
        said = ("The marked ranks belong to several jobs. Take off all marks with u.",)
        return dataclasses.replace(view, message=said)
    return dataclasses.replace(view, marked=marked, input=Input.TRACE)


def _chosen_ranks(view: View, shown: Shown) -> frozenset[tuple[str, RankKey]]:
    """Return the rank that is looked at, or that the cursor is on."""
    if view.job is None:
        return frozenset()
    if view.rank is not None:
        return frozenset({(view.job, view.rank)})
    if view.level is Level.RANKS and shown.rows:
        key = shown.rows[place_of(view, shown.rows)].key
        assert isinstance(key, RankKey)
        return frozenset({(view.job, key)})
    return frozenset()


def _changing(**fields: object) -> Callable[[View, Shown], View]:
    return lambda view, shown: dataclasses.replace(view, **fields)  # type: ignore[arg-type]


def _freeze(view: View, shown: Shown) -> View:
    return dataclasses.replace(view, frozen=not view.frozen)


_ACTIONS: Mapping[str, Callable[[View, Shown], View]] = {
    **dict.fromkeys(("down", "j"), _moving(rows=1)),
    **dict.fromkeys(("up", "k"), _moving(rows=-1)),
    "pagedown": _moving(pages=1),
    "pageup": _moving(pages=-1),
    **dict.fromkeys(("home", "g"), lambda view, shown: _move(view, shown, 0)),
    **dict.fromkeys(("end", "G"), lambda view, shown: _move(view, shown, len(shown.rows))),
    **dict.fromkeys(("enter", "right", "l"), _go_in),
    **dict.fromkeys(("escape", "backspace", "left"), _go_back),
    **dict.fromkeys(("s", ">"), _sorting(1)),
    **dict.fromkeys(("S", "<"), _sorting(-1)),
    "r": _reverse,
    "/": _changing(input=Input.FILTER),
    **dict.fromkeys((" ", "f"), _freeze),
    **dict.fromkeys(("?", "h"), _changing(overlay=Overlay.HELP)),
    "v": _changing(overlay=Overlay.VERDICTS),
    "m": _mark,
    "u": _changing(marked=frozenset()),
    "T": _trace,
    "q": _changing(wish=Wish.QUIT),
}
