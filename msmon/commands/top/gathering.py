"""The threads that ask the daemons while somebody looks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Optional, Protocol

from msmon.bus.messages import Reply
from msmon.bus.rows import StatusRow
from msmon.commands.asking.answers import daemons
from msmon.commands.top.advice import advice
from msmon.commands.top.build import ModelBuilder
from msmon.commands.top.model import Model
from msmon.errors import MsmonError
from msmon.live.seen import SeenWindow

STATES_S = 3.0
STATES_SHARE = 0.02
"""The states of the processes are asked for every three seconds, and more seldom where that would
take more than this share of the time."""

AT_ONCE = 256
"""Windows after which the screen is given something new, while there are many."""


class Source(Protocol):
    """Where windows come from: a :class:`Feed <msmon.live.feed.Feed>`."""

    @property
    def problems(self) -> dict[str, str]:
        """Daemon → why it can't be asked at the moment."""

    def poll(self) -> list[SeenWindow]:
        """Return what has come since the last call."""

    def wait_for_all(self, timeout_s: float) -> bool:
        """Wait until each daemon has told all that it has, or can't be asked."""


class States:
    """Asks who is registered. Its own thread writes ``rows``, ``daemons`` and ``problem``."""

    def __init__(self, ask: Callable[[], Reply]) -> None:
        self.rows: Optional[list[StatusRow]] = None
        """None before the first answer, and while nobody answers."""
        self.daemons = 0
        self.problem = ""
        self._ask = ask
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="msmon-top-states", daemon=True)

    def start(self) -> None:
        """Ask again and again."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; an answer that is waited for is not."""
        self._ended.set()

    def look(self) -> None:
        """Ask once."""
        try:
            reply = self._ask()
        except MsmonError as error:
            self.rows, self.daemons, self.problem = None, 0, _told(error.message, error.next_step)
            return
        self.daemons = len(daemons(reply))
        self.problem = _told(reply.text, reply.next_step) if reply.text and reply.rows else ""
        self.rows = reply.status_rows

    def _run(self) -> None:
        while not self._ended.is_set():
            begun_s = time.monotonic()
            self.look()
            took_s = time.monotonic() - begun_s
            self._ended.wait(max(STATES_S, took_s / STATES_SHARE))


class Gathering:
    """Takes the windows and makes a model each second. Use it as a context manager.

    Its own thread is the only one that touches the builder; it hands out whole models.
    """

    def __init__(
        self, source: Source, states: States, told: Callable[[], None], interval_s: float = 1.0
    ) -> None:
        self.model = Model()
        self._source = source
        self._states = states
        self._told = told
        self._interval_s = interval_s
        self._builder = ModelBuilder()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="msmon-top-windows", daemon=True)

    def __enter__(self) -> Gathering:
        self._states.start()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._states.stop()
        self._thread.join(self._interval_s + 1.0)

    def _run(self) -> None:
        next_s = 0.0
        while not self._ended.is_set():
            windows = self._source.poll()
            for first in range(0, len(windows), AT_ONCE):
                self._builder.take(windows[first : first + AT_ONCE])
                if time.monotonic() >= next_s:
                    next_s = self._publish()
            left_s = next_s - time.monotonic()
            if left_s <= 0:
                next_s = self._publish()
            else:
                self._ended.wait(left_s)  # once a second is enough: nothing is lost meanwhile

    def _publish(self) -> float:
        """Hand out a model; return when the next one is due (monotonic clock)."""
        self.model = model_of(self._builder, self._source.problems, self._states)
        self._told()
        return time.monotonic() + self._interval_s


def model_of(builder: ModelBuilder, problems: dict[str, str], states: States) -> Model:
    """Return what is known now, and what to do where something is missing."""
    rows = states.rows
    builder.take_states(rows or ())
    model = builder.model(time.time_ns(), (), states.daemons)
    return advice(model, rows, states.problem, dict(problems))


def _told(text: str, next_step: str) -> str:
    parts: Sequence[str] = [part for part in (text, next_step) if part]
    return "; ".join(parts)
