"""Where a sink lives: in the thread of its output, or in a process of its own.

A host has one verb, ``ask``. A sink of windows is small and lives in the thread. A process
writes the file formats that take much CPU, and all files at paths that users name.
"""

from __future__ import annotations

from typing import Protocol

from msmon.daemon.outputs.delivery import Answer, Request
from msmon.errors import SinkError
from msmon.sinks.base import Sink


class HostEnded(SinkError):
    """The process ended before it answered. ``hung``: it had to be ended."""

    def __init__(self, message: str, hung: bool = False) -> None:
        super().__init__(message)
        self.hung = hung


class NoThread(SinkError):
    """The thread of an output can't be started: the daemon has as many as the system allows."""

    def __init__(self, output: str) -> None:
        super().__init__(
            f"output {output} can't be started: the daemon may make no more threads",
            "end some processes of the daemon's user, or raise the limit (ulimit -u, TasksMax)",
        )


class SinkHost(Protocol):
    """A place where one sink lives. All but ``kill`` is called from the output's thread."""

    generation: int
    """Grows whenever the sink was made anew and has forgotten its open sessions."""

    @property
    def running(self) -> bool:
        """Whether there is something to close."""

    def ready(self) -> None:
        """Make the sink where there is none. Raises SinkError or UsageError."""

    def ask(self, request: Request) -> Answer:
        """Have the sink carry out a request. Raises what it raises."""

    def close(self) -> None:
        """Let the sink release everything; ``ready`` makes a new one."""

    def kill(self) -> None:
        """Make an ``ask`` that hangs return, where that is possible. From any thread."""


class ThreadHost:
    """A sink in this process. The output's thread writes its state."""

    def __init__(self, sink: Sink) -> None:
        self.generation = 0
        self._running = True
        self._sink = sink

    @property
    def running(self) -> bool:
        """Whether it was not closed."""
        return self._running

    def ready(self) -> None:
        """The sink was made before."""

    def ask(self, request: Request) -> Answer:
        """Have the sink carry out a request. Raises what it raises."""
        return request.apply(self._sink)

    def close(self) -> None:
        """Close the sink."""
        self._running = False
        self._sink.close()

    def kill(self) -> None:
        """A thread can't be ended."""
