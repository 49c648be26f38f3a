"""How a trace and monitoring agree on who has MSPTI.

MSPTI has one subscriber, and the profiler of a trace wants it. A trace that was asked for with
``--pause-monitor`` therefore wants monitoring paused from shortly before its first step to its
last, and monitoring grants that when it has let go.
"""

from __future__ import annotations

from collections.abc import Callable

from msmon.threads import RLock


class MonitorPause:
    """Whether a pause is wanted, and whether it is granted.

    The tracer writes ``wanted``, on whichever thread moves the trace on; the collector writes
    ``granted``. Both are levels and no messages: the collector acts on what is wanted when it
    looks, so a wish and its withdrawal can't be carried out in the wrong order.

    ``on_change`` is called after each change of what is wanted and must only wake the collector.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._lock = RLock()  # re-entrant: a signal handler may end the agent
        self._wanted = False
        self._granted = False

    # --- the tracer's side ----------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether a trace wants monitoring to rest."""
        return self._wanted

    @property
    def granted(self) -> bool:
        """Whether monitoring rests; it goes on only after the wish was withdrawn."""
        return self._granted

    def want(self) -> None:
        """Ask for the pause; asking again changes nothing."""
        self._set_wanted(True)

    def withdraw(self) -> None:
        """Let monitoring go on."""
        self._set_wanted(False)

    def _set_wanted(self, wanted: bool) -> None:
        with self._lock:
            changed, self._wanted = wanted != self._wanted, wanted
        if changed:
            self._on_change()

    # --- the collector's side -------------------------------------------------------------

    def grant(self) -> None:
        """Say that monitoring has let go of MSPTI."""
        self._granted = True

    def take_back(self) -> bool:
        """Claim MSPTI for monitoring again; False while a pause is wanted.

        Afterwards no trace can begin until the next grant.
        """
        with self._lock:
            if self._wanted:
                return False
            self._granted = False
            return True
