"""What the other threads leave for the link, and how they wake it from its poll."""

from __future__ import annotations

import contextlib
import os
import posix
from collections import deque

from msmon.bus.messages import Answer
from msmon.threads import RLock

_MAX_ANSWERS = 100
"""Answers kept while there is no connection; nobody waits for older ones any more."""


class Notices:
    """A pipe that wakes the link, with answers and a mark that the status has changed.

    Any thread may add, also after :meth:`close`; only the link takes. Both ends of the pipe are
    used and closed under ``_lock``: a number that was closed may be the job's own file by now.
    They are used through ``posix``, because eventlet replaces ``os.read`` and ``os.write`` by
    functions that wait where there is nothing to read.
    """

    def __init__(self) -> None:
        self._lock = RLock()  # re-entrant: a signal handler may end the agent
        self._closed = False
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signalled = False
        self._changed = False
        self._answers: deque[tuple[str, Answer]] = deque(maxlen=_MAX_ANSWERS)

    @property
    def descriptor(self) -> int:
        """Readable when there is something to take."""
        return self._read_end

    def wake(self) -> None:
        """Wake the link: there is something to send, or it is to end."""
        if self._signalled:
            return
        with self._lock:
            if self._closed or self._signalled:
                return
            self._signalled = True
            with contextlib.suppress(BlockingIOError):  # full: it will wake anyway
                posix.write(self._write_end, b"\0")

    def add_answer(self, message_id: str, answer: Answer) -> None:
        """Leave the answer to a command."""
        self._answers.append((message_id, answer))
        self.wake()

    def status_changed(self) -> None:
        """Leave word that the status should be sent without waiting for the heartbeat."""
        self._changed = True
        self.wake()

    def clear_signal(self) -> None:
        """Make the descriptor unreadable again. To be called before anything is taken."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):
                    posix.read(self._read_end, 4096)
            self._signalled = False

    def take_answers(self) -> list[tuple[str, Answer]]:
        """Return the answers left since the last call."""
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def take_changed(self) -> bool:
        """Return whether the status has changed since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def close(self) -> None:
        """Close the pipe, once the link has ended; what is added later reaches nobody."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._read_end)
                os.close(self._write_end)
