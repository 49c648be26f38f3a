"""``msmon-dyno``: the command lines of msMonitor's ``dyno``, so that scripts need one alias."""

from __future__ import annotations

from msmon.compat.dyno.command import main

__all__ = ["main"]
