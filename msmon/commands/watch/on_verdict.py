"""The command that gets each verdict on its standard input."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

KILL_AFTER_S = 2.0
"""Between SIGTERM, so that a command can clean up, and SIGKILL."""


class CommandRunner:
    """Runs a command for one document at a time.

    The shell runs the command as the user wrote it. Names from the job are in the document only,
    never in the command line. The command is the leader of a process group of its own, and the
    whole group is killed when the time is over. What it prints goes to stderr, since stdout has the
    verdicts.
    """

    def __init__(self, command: str, limit_s: float) -> None:
        self._command = command
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        """Under the lock; set and cleared by the sending thread."""
        self._aborted = False

    def send(self, item: bytes) -> str:
        """Run the command with a document; return why it failed, or nothing."""
        with self._lock:
            if self._aborted:
                return ""
            try:
                self._running = self._started()
            except OSError as error:
                return f"the command can't be started: {error.strerror}"
            process = self._running
        try:
            process.communicate(item, self._limit_s)
        except subprocess.TimeoutExpired:
            self._end_group()
            return f"the command was killed after {self._limit_s:g} s"
        finally:
            with self._lock:
                process.wait()
                self._running = None
            with contextlib.suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()
        if self._aborted:
            return "the command was killed: the watching ends"
        return _ending_text(process.returncode)

    def abort(self) -> None:
        """Kill the command that runs; no other one is started."""
        self._aborted = True
        self._end_group()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["/bin/sh", "-c", self._command],
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno(),
            start_new_session=True,
        )

    def _end_group(self) -> None:
        """Kill the group of the running command, which its leader keeps until it is waited for."""
        with self._lock:
            if self._running is None:
                return
            group = self._running.pid
            _signal_group(group, signal.SIGTERM)
            _wait_unreaped(self._running, KILL_AFTER_S)
            _signal_group(group, signal.SIGKILL)


def _wait_unreaped(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """Wait until a process has ended, and leave it in place, so that its number stays its own."""
    deadline_s = time.monotonic() + limit_s
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with contextlib.suppress(ChildProcessError):  # waited for by the sending thread
        while time.monotonic() < deadline_s and not os.waitid(os.P_PID, process.pid, options):
            time.sleep(0.02)


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _ending_text(code: int) -> str:
    if code == 0:
        return ""
    if code < 0:
        return f"the command was ended by signal {-code}"
    return f"the command ended with exit code {code}"
