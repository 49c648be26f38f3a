"""The windows that daemons have, asked for again and again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping

from msmon.bus.client import Client
from msmon.bus.endpoints import Endpoint
from msmon.bus.recent_windows import Page, RecentReader
from msmon.bus.recent_windows import SeenWindow as Recent
from msmon.bus.rows import RecentSession
from msmon.errors import MsmonError
from msmon.live.seen import SeenRank, SeenWindow

ASK_EVERY_S = 1.0
RETRY_S = (1.0, 2.0, 5.0, 10.0)
"""Pauses before a daemon that could not be asked is asked again; the last one stays."""

ANSWER_S = 10.0
"""How long a daemon may take to answer."""

MOST_HELD = 20_000
"""Windows that wait to be taken; of more the oldest are dropped and counted."""


class Feed:
    """Asks each daemon on a thread of its own, so that one which does not answer holds up nobody.

    ``endpoints``: name of a daemon as people gave it → where it is; called anew for each
    connection, since keys may change. Use it as a context manager. The threads write what they
    find under a lock; all methods are for one other thread.
    """

    def __init__(self, endpoints: Mapping[str, Callable[[], Endpoint]]) -> None:
        self._endpoints = endpoints
        self._changed = threading.Condition()
        self._held: deque[SeenWindow] = deque()
        self._problems: dict[str, str] = {}
        self._answered: set[str] = set()
        self._missed = 0
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(name,), name=f"feed {name}", daemon=True)
            for name in endpoints
        ]

    def __enter__(self) -> Feed:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(ANSWER_S)

    @property
    def problems(self) -> dict[str, str]:
        """Daemon → why it can't be asked at the moment, as a sentence."""
        with self._changed:
            return dict(self._problems)

    @property
    def missed(self) -> int:
        """Windows that could not be had so far: they were forgotten, damaged, or not taken."""
        with self._changed:
            return self._missed

    def poll(self) -> list[SeenWindow]:
        """Return what has come since the last call, those of one process in their order."""
        with self._changed:
            taken = list(self._held)
            self._held.clear()
            return taken

    def wait(self, timeout_s: float) -> bool:
        """Wait until something has come, at most so long; return whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._held), timeout_s)

    def wait_for_all(self, timeout_s: float) -> bool:
        """Wait until each daemon has told all that it has, or can't be asked."""
        with self._changed:
            return self._changed.wait_for(
                lambda: len(self._answered | self._problems.keys()) == len(self._threads), timeout_s
            )

    # --- the threads ----------------------------------------------------------------------

    def _follow(self, name: str) -> None:
        reader, failures = RecentReader(), 0
        while not self._ending.is_set():
            try:
                with Client(self._endpoints[name](), ANSWER_S) as client:
                    while not self._ending.is_set():
                        for page in reader.read_all(client, ANSWER_S):
                            self._take(page)
                            failures = 0
                        self._note(name, "")
                        self._ending.wait(ASK_EVERY_S)
            except MsmonError as error:
                next_step = f" ({error.next_step})" if error.next_step else ""
                self._note(name, f"{error.message}{next_step}")
            self._ending.wait(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1

    def _note(self, name: str, problem: str) -> None:
        with self._changed:
            if problem:
                self._problems[name] = problem
            else:
                self._problems.pop(name, None)
                self._answered.add(name)
            self._changed.notify_all()

    def _take(self, page: Page) -> None:
        windows = [_seen(item) for item in page.windows]
        with self._changed:
            self._held.extend(windows)
            self._missed += page.missed + page.unreadable
            while len(self._held) > MOST_HELD:
                self._held.popleft()
                self._missed += 1
            self._changed.notify_all()


def _seen(item: Recent) -> SeenWindow:
    """Return a window as it is judged.

    The start of a session names it: its id is known to few, and its number changes when the daemon
    is started again.
    """
    session = item.session
    return SeenWindow(_rank_of(session), str(session.start_ns), session.start_ns, item.window)


def _rank_of(session: RecentSession) -> SeenRank:
    return SeenRank(
        host=session.host,
        pid=session.pid,
        start_time=session.start_time,
        job=session.job_id,
        rank=session.rank,
        world_size=session.world_size,
        device=session.device,
    )
