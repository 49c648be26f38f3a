"""The protocol of an output.

A sink is one class. The daemon makes one instance per kind of output and calls it
from a single worker (a thread, or a process where ``OWN_PROCESS`` is set), so a
sink needs no locks and may block. It is found through the entry-point group
``msmon.sinks`` under its ``NAME``.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from msmon.errors import SinkError
from msmon.records.batch import Batch
from msmon.records.windows import Window
from msmon.sessions import Gap, SessionEnd, SessionInfo
from msmon.settings.options import Option


@dataclass(frozen=True)
class SessionOutput:
    """Answer to ``open_session``.

    ``files``: absolute paths that will be written. ``written_seq``: sequence number
    up to which an earlier daemon already wrote this session (0: nothing).
    """

    files: tuple[str, ...] = ()
    written_seq: int = 0


class CommitFailed(SinkError):
    """Some sessions could not be committed; all others were. ``sessions``: id → reason."""

    def __init__(self, sessions: Mapping[str, str]) -> None:
        super().__init__("; ".join(sorted(set(sessions.values()))))
        self.sessions = dict(sessions)

    def __reduce__(self) -> tuple[type[CommitFailed], tuple[dict[str, str]]]:
        return CommitFailed, (self.sessions,)


class Sink(abc.ABC):
    """Base of all outputs.

    Methods may raise SinkError or OSError. A little later the worker opens that session
    anew and hands in again what it was given since the last commit; other sessions go on.
    Data beyond the memory bound is counted as lost at stage "disk".
    """

    NAME: ClassVar[str]
    """Name after ``--sink`` and of the entry point."""
    HELP: ClassVar[str]
    """One line for ``--sink help``."""
    OPTIONS: ClassVar[tuple[Option, ...]] = ()
    """Options taken after ``NAME:``; checked before ``__init__`` gets them as keywords."""
    WANTS_RECORDS: ClassVar[bool] = False
    WANTS_WINDOWS: ClassVar[bool] = True
    OWN_PROCESS: ClassVar[bool] = False

    def __init__(self, **options: Any) -> None:
        self.options = options

    @classmethod
    def options_in_force(
        cls, options: Mapping[str, Any], environ: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the options completed from the daemon's environment, as shown in status."""
        return dict(options)

    @abc.abstractmethod
    def open_session(self, session: SessionInfo) -> SessionOutput:
        """Begin (or, after a restart of the daemon, continue) the output of a session.

        May be called again for an open session, after an error: whatever was taken since
        the last commit is then forgotten, and comes again.
        """

    def write_records(self, session_id: str, seq: int, batch: Batch) -> None:
        """Take a batch. Only called when ``WANTS_RECORDS``."""

    def write_window(self, session_id: str, seq: int, window: Window) -> None:
        """Take a window. Only called when ``WANTS_WINDOWS``."""

    def write_gap(self, session_id: str, seq: int, gap: Gap) -> None:
        """Take note that records of this session were lost."""

    def write_note(self, session_id: str, seq: int, key: str, value: str) -> None:
        """Take a fact about the session ("parallel_group_info": JSON text)."""

    @abc.abstractmethod
    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        """End the output of a session; its files are complete when this returns."""

    def forget_session(self, session_id: str) -> None:
        """Drop what was kept to recognise a session that has ended: nothing of it comes again."""

    def commit(self) -> Mapping[str, tuple[str, ...]] | None:
        """Make everything taken so far durable. Called at least every half second while
        data flows, and once when it pauses; what was committed is acknowledged.

        Returns session id → absolute paths of its files by now, where these are others than
        was said last; None: nowhere.
        """
        return None

    def close(self) -> None:
        """Release everything; open sessions stay continuable."""
