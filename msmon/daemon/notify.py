"""Tells systemd the state of the daemon, over systemd's notification socket (sd_notify(3)).

Without NOTIFY_SOCKET it does nothing. A socket that can't be reached is only logged.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

_log = logging.getLogger(__name__)


class ServiceManager:
    """Sends the state of this process to systemd, if systemd has started it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._beat_every_s = _watchdog_s(environ) / 2
        self._next_beat_s = 0.0

    def ready(self, status: str) -> None:
        """Tell that the daemon serves. ``status`` is shown by ``systemctl status``."""
        self._send(f"READY=1\nMAINPID={os.getpid()}\nSTATUS={_line(status)}")

    def reloading(self) -> None:
        """Tell that the daemon reads its configuration again. :meth:`ready` must follow."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Tell that the daemon has begun to stop."""
        self._send("STOPPING=1\nSTATUS=writing out what is queued")

    def beat(self) -> None:
        """Tell the watchdog that the main loop runs. Call it in every round of that loop.

        It sends twice in each time limit of the watchdog, and otherwise does nothing.
        """
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
    """Return the watchdog's time limit; 0 if there is none for this process."""
    wanted_pid = environ.get("WATCHDOG_PID", "") or str(os.getpid())
    limit = environ.get("WATCHDOG_USEC", "")
    return int(limit) / 1e6 if limit.isdecimal() and wanted_pid == str(os.getpid()) else 0.0


def _line(text: str) -> str:
    return " ".join(text.split())
