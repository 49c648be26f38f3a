"""Telling a service manager how the daemon is: systemd's notification socket (sd_notify(3)).

Without NOTIFY_SOCKET nothing happens, and an unreachable one never stops the daemon.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

_log = logging.getLogger(__name__)


class ServiceManager:
    """Sends the states of this process; safe to use where there is no service manager."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._beat_every_s = _watchdog_s(environ) / 2
        self._next_beat_s = 0.0

    def ready(self, status: str) -> None:
        """Say that everything that was asked for is up."""
        self._send(f"READY=1\nMAINPID={os.getpid()}\nSTATUS={_line(status)}")

    def reloading(self) -> None:
        """Say that the configuration is being read again; :meth:`ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Say that the end has begun."""
        self._send("STOPPING=1\nSTATUS=writing out what is queued")

    def beat(self) -> None:
        """Say that the main loop turns, as often as the watchdog wants it; call it each turn."""
        now_s = time.monotonic()
        if self._beat_every_s and now_s >= self._next_beat_s:
            self._next_beat_s = now_s + self._beat_every_s
            self._send("WATCHDOG=1")

    def _send(self, state: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.connect(self._address)
                sender.send(state.encode())
        except OSError as error:
            _log.warning("the service manager can't be told %s: %s", state.split()[0], error)


def _watchdog_s(environ: Mapping[str, str]) -> float:
    """Return the watchdog's time limit, 0 when there is none or it is for another process."""
    wanted_pid = environ.get("WATCHDOG_PID", "") or str(os.getpid())
    limit = environ.get("WATCHDOG_USEC", "")
    return int(limit) / 1e6 if limit.isdecimal() and wanted_pid == str(os.getpid()) else 0.0


def _line(text: str) -> str:
    return " ".join(text.split())
