"""``msmon-daemon``: its options, its configuration file, its unit files, and the start.

What the daemon does once it runs is in ``msmon/daemon``.
"""

from __future__ import annotations

from msmon.commands.daemon.command import main

__all__ = ["main"]
