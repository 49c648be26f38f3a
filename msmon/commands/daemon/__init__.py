"""The command ``msmon-daemon``: options, configuration file, systemd units, and the start.

The daemon itself is in ``msmon/daemon``.
"""

from __future__ import annotations

from msmon.commands.daemon.command import main

__all__ = ["main"]
