"""The loop of the full screen: keys, draw, wait."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from msmon.bus.messages import Message, Reply
from msmon.commands.top.columns import Level, TopRow
from msmon.commands.top.gathering import Gathering, Source, States
from msmon.commands.top.model import Model
from msmon.commands.top.screen.drawing import Frame, draw
from msmon.commands.top.screen.keys import press
from msmon.commands.top.screen.terminal import END_OF_INPUT, Terminal
from msmon.commands.top.screen.view import View, Wish, all_rows, opened
from msmon.commands.top.tracing import TraceAsker, trace_request

LONGEST_WAIT_S = 5.0
"""Each new model wakes the loop; this is for the case that none comes."""


class _Rows:
    """The rows of the table, made anew only when what they come from has changed."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._rows: Sequence[TopRow] = ()

    def of(self, model: Model, view: View) -> Sequence[TopRow]:
        """Return the rows of a table."""
        job = view.job or ""
        if view.level in (Level.JOBS, Level.RANKS):
            return all_rows(model, view)
        window = model.windows.get(view.rank) if view.rank is not None else model.ranks.get(job)
        key = (view.job, view.group, view.rank, view.operator, window, model.times.get(job))
        if len(key) != len(self._key) or any(a is not b for a, b in zip(key, self._key)):
            self._key, self._rows = key, all_rows(model, view)
        return self._rows


def run(
    source: Source,
    ask_states: Callable[[], Reply],
    request: Callable[[Message], Reply],
    trace_directory: str,
    timeout_s: float,
) -> None:
    """Show the screen until somebody leaves it."""
    rows = _Rows()
    with Terminal() as terminal:
        asker = TraceAsker(request, terminal.wake)
        gathering = Gathering(source, States(ask_states), terminal.wake)
        with gathering:
            view, model = View(), gathering.model
            while view.wish is not Wish.QUIT:
                model = model if view.frozen else gathering.model
                view = opened(view, model)
                told = asker.take()
                if told:
                    view = dataclasses.replace(view, message=told)
                frame = _frame(model, view, terminal, rows, trace_directory)
                terminal.show(frame.lines)
                view = frame.view
                for key in terminal.keys(LONGEST_WAIT_S):
                    view = press(frame.view, key, frame.shown)
                    if key == END_OF_INPUT:
                        view = dataclasses.replace(view, wish=Wish.QUIT)
                    if view.wish is Wish.TRACE:
                        asker.ask(trace_request(model, view.marked, trace_directory, timeout_s))
                        view = dataclasses.replace(view, message=("Asking for the trace …",))
                    if view.wish is Wish.QUIT:
                        break
                    frame = _frame(model, view, terminal, rows, trace_directory)


def _frame(
    model: Model, view: View, terminal: Terminal, rows: _Rows, trace_directory: str
) -> Frame:
    width, height = terminal.size
    return draw(model, view, width, height, rows.of(model, view), trace_directory)
