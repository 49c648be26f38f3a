"""How often a session looks for full buffers."""

from __future__ import annotations

TICK_S = 0.25
SHORTEST_TICK_S = 0.01
HELD_BACK_TICK_S = 0.05
"""Where buffers wait for room in the uplink, which the daemon makes a few times per second."""

_BUSY_BUFFERS = 3
"""So many buffers at one look: they fill faster than we come."""


class Pace:
    """The time between two looks, which follows the load. Used on one thread.

    Example: a job that fills 100 buffers of 8 MiB per second yields 25 at the first look; the
    time is halved until a look finds one or two, and doubled again when the burst is over.
    """

    def __init__(self) -> None:
        self.tick_s = TICK_S

    def note(self, buffers: int, held_back: bool = False) -> None:
        """Take how many buffers the last look has read, and whether it had to leave some."""
        if held_back:
            self.tick_s = HELD_BACK_TICK_S
        elif buffers >= _BUSY_BUFFERS:
            self.tick_s = max(SHORTEST_TICK_S, self.tick_s / 2)
        else:
            self.tick_s = min(TICK_S, self.tick_s * 2)
