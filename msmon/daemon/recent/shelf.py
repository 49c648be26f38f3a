"""What is kept of one owner: windows in the order of their numbers, and notes of sessions."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from msmon.daemon.access.authentication import Peer
from msmon.daemon.process import Process
from msmon.records.window_header import WindowHeader
from msmon.sessions import SessionInfo

KEPT_BYTES = 512
"""What a window counts as beside its frames: its header and its place in the lists."""

MAX_GONE = 4096
"""Windows that went and that are still known by number, to tell a reader how many it missed."""


@dataclass
class KeptSession:
    """A session of which something is kept. Only ``RecentWindows`` changes it."""

    number: int
    """What readers call it who may not know its id."""
    info: SessionInfo
    process: Process
    notes: dict[str, KeptNote] = field(default_factory=dict)
    window_count: int = 0
    ended: bool = False
    """Nothing of it comes again."""


@dataclass(frozen=True)
class KeptNote:
    """A note of a session; the newest one with its key."""

    number: int
    session: KeptSession
    key: str
    value: bytes

    @property
    def size_bytes(self) -> int:
        """What it counts as."""
        return KEPT_BYTES + len(self.value)


@dataclass(frozen=True)
class KeptWindow:
    """A window as it came. ``at_s``: when, on the monotonic clock."""

    number: int
    session: KeptSession
    header: WindowHeader
    frames: tuple[bytes, ...]
    at_s: float

    @property
    def size_bytes(self) -> int:
        """What it counts as."""
        return KEPT_BYTES + sum(map(len, self.frames))


class Shelf:
    """What is kept of one owner. Only ``RecentWindows`` changes it.

    ``peer`` is any peer of that owner.
    """

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.size_bytes = 0
        self.noted: dict[int, KeptSession] = {}
        """Sessions with notes, by number."""
        self._numbers: list[int] = []
        self._windows: list[KeptWindow | None] = []
        self._first = 0
        """Places before this one are empty. They are cut off when they are half of the list."""
        self._gone: deque[KeptWindow] = deque(maxlen=MAX_GONE)
        """Without their frames."""

    def __len__(self) -> int:
        return len(self._windows) - self._first

    def append(self, window: KeptWindow) -> None:
        """Add a window, whose number is the largest so far."""
        self._numbers.append(window.number)
        self._windows.append(window)
        self.size_bytes += window.size_bytes
        window.session.window_count += 1

    def oldest(self) -> KeptWindow | None:
        """Return the window that came first of those that are kept."""
        return self._windows[self._first] if len(self) else None

    def drop_oldest(self) -> KeptWindow:
        """Forget the oldest window and return it; its number stays known for a while."""
        window = self.oldest()
        assert window is not None
        self._windows[self._first] = None
        self._first += 1
        if 2 * self._first > len(self._windows):
            del self._windows[: self._first], self._numbers[: self._first]
            self._first = 0
        self.size_bytes -= window.size_bytes
        window.session.window_count -= 1
        number, session, at_s = window.number, window.session, window.at_s
        self._gone.append(KeptWindow(number, session, window.header, (), at_s))
        return window

    def windows_after(self, number: int) -> Iterator[KeptWindow]:
        """Yield the windows with larger numbers, in order."""
        first = max(self._first, bisect_right(self._numbers, number))
        for place in range(first, len(self._windows)):
            window = self._windows[place]
            assert window is not None
            yield window

    def notes_after(self, number: int) -> list[KeptNote]:
        """Return the notes with larger numbers, in order."""
        notes = (note for session in self.noted.values() for note in session.notes.values())
        return sorted(
            (note for note in notes if note.number > number), key=lambda note: note.number
        )

    def gone_after(self, number: int) -> Iterator[KeptWindow]:
        """Yield the windows with larger numbers that went, the newest first."""
        for window in reversed(self._gone):
            if window.number <= number:
                return
            yield window

    def forget_gone(self, before_s: float) -> None:
        """Forget the numbers of windows that came before this time."""
        while self._gone and self._gone[0].at_s < before_s:
            self._gone.popleft()

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is known here."""
        return not (len(self) or self._gone or self.noted)
