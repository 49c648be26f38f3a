"""When a finding begins and when it is over.

A finding must show in several of the last windows before it is told, and must stay well below the
level at which it began for several windows before it is taken back. So what lies at the edge does
not come and go.
"""

from __future__ import annotations

from collections import deque

WINDOWS_TO_ENTER = 3
OUT_OF = 4
WINDOWS_TO_CLEAR = 6
CLEAR_LEVEL = 0.6
"""It is over after six windows below this share of the level at which it began."""


class Finding:
    """One finding that may come and go. Belongs to one thread.

    ``since`` is the number of the first window that showed it, ``level`` the effect at which it
    was told; ``since`` is None while it is not active.
    """

    def __init__(self) -> None:
        self._shown: deque[tuple[int, float]] = deque(maxlen=OUT_OF)
        self._last: deque[int] = deque(maxlen=OUT_OF)
        self._quiet = 0
        self._quiet_since = 0
        self.since: int | None = None
        self.until: int | None = None
        """The first quiet window after it; None while it is active or has never been."""
        self.level = 0.0
        self.told = 0
        """Number of the window after which it was told."""

    @property
    def recently_shown(self) -> bool:
        """Whether one of the last windows showed it."""
        return bool(self._shown) and self._shown[-1][0] >= self._last[0]

    def holds(self, effect: float) -> bool:
        """Whether an effect is large enough for the finding to go on."""
        return effect >= CLEAR_LEVEL * self.level

    def add(self, number: int, shows: bool, effect: float) -> None:
        """Take window ``number``: whether it shows the finding, and how much of it there is."""
        if self.since is None:
            self._look_for_begin(number, shows, effect)
        else:
            self._look_for_end(number, effect)

    def begin(self, since: int, effect: float) -> None:
        """Let it begin at once, where another rule has waited long enough already."""
        if self.since is None:
            self.since, self.until, self.level, self._quiet = since, None, effect, 0
            self.told = self._last[-1] if self._last else since

    def _look_for_begin(self, number: int, shows: bool, effect: float) -> None:
        self._last.append(number)
        if shows:
            self._shown.append((number, effect))
        recent = [(at, size) for at, size in self._shown if at >= self._last[0]]
        if shows and len(recent) >= WINDOWS_TO_ENTER:
            self.begin(recent[0][0], max(size for _, size in recent))

    def _look_for_end(self, number: int, effect: float) -> None:
        self._quiet = 0 if self.holds(effect) else self._quiet + 1
        if self._quiet == 1:
            self._quiet_since = number
        if self._quiet >= WINDOWS_TO_CLEAR:
            self.since, self.until, self.level, self._quiet = None, self._quiet_since, 0.0, 0
            self._shown.clear()
            self._last.clear()
