"""The public protocol of a sink: what a class must do to be an output of the daemon.

A sink is one class, found under its ``NAME`` through the entry-point group
``msmon.sinks``. The daemon makes one instance of it and calls all methods from a single
thread, so a sink needs no locks and may block. Where ``OWN_PROCESS`` is set, the instance
lives in a process of its own.

The life of a session in a sink::

    open_session → write_… (any number, seq grows) → close_session
                        └ commit, every quarter of a second while data flows

Sequence numbers (``seq``) count the messages of one session. Data counts as safe once a
``commit`` has returned; only then does the training process forget it.
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
    """The answer to ``open_session``.

    ``files``: absolute paths that will be written. ``written_seq``: the data of messages up
    to this sequence number is already in them, from an earlier daemon (0: none is).
    """

    files: tuple[str, ...] = ()
    written_seq: int = 0


class CommitFailed(SinkError):
    """Some sessions could not be committed; all others were.

    ``sessions``: id → reason, of those that failed. ``files``: what ``commit`` would have
    returned for the others.
    """

    def __init__(
        self, sessions: Mapping[str, str], files: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        super().__init__("; ".join(sorted(set(sessions.values()))))
        self.sessions = dict(sessions)
        self.files = dict(files or {})

    def __reduce__(self) -> tuple[type[CommitFailed], tuple[Any, ...]]:
        return CommitFailed, (self.sessions, self.files)


class Progress:
    """What the output of one session must know to go on after a restart of the daemon.

    For example the names of its files and how much of each was committed. The daemon keeps
    it in its own state directory, where no user can change it: never put such a note beside
    the data and believe it later. This class itself only remembers it; the daemon hands in
    one that also stores it.
    """

    def __init__(self, value: bytes = b"") -> None:
        self.value = value
        """What was kept last; empty for a new session."""

    def keep(self, value: bytes) -> None:
        """Replace the value; it is stored when this returns. Raises SinkError."""
        self.value = value


class Sink(abc.ABC):
    """Base of all sinks.

    Any method may raise SinkError or OSError, for example on a full disk. A little later the daemon
    calls ``open_session`` for that session again, and then gives again what it gave since the last
    commit. Other sessions go on meanwhile. A ValueError means that this one piece of data can't
    be written at all: it is counted as dropped, and the session goes on.
    """

    NAME: ClassVar[str]
    """Name after ``--sink`` and of the entry point."""
    HELP: ClassVar[str]
    """One line for ``--sink help``."""
    OPTIONS: ClassVar[tuple[Option, ...]] = ()
    """Options taken after ``NAME:``; checked before ``__init__`` gets them as keywords."""
    WANTS_RECORDS: ClassVar[bool] = False
    """Whether ``write_records`` is to be called."""
    WANTS_WINDOWS: ClassVar[bool] = True
    """Whether ``write_window`` is to be called."""
    OWN_PROCESS: ClassVar[bool] = False
    """Whether the sink takes so much CPU that it should not share the daemon's process."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    @classmethod
    def options_in_force(
        cls, options: Mapping[str, Any], environ: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the options completed from the daemon's environment, as shown in status.

        Raises UsageError for options that can't work together.
        """
        return dict(options)

    @abc.abstractmethod
    def open_session(self, session: SessionInfo) -> SessionOutput:
        """Begin the output of a session.

        It may be called again for an open session, after an error. The sink then forgets what
        it took since the last commit, because that is given again. It may also be called for a
        session that was closed, when its process was away for long and has come back.
        """

    def write_records(self, session_id: str, seq: int, batch: Batch) -> None:
        """Take a batch of records of one kind. Only called when ``WANTS_RECORDS``."""

    def write_window(self, session_id: str, seq: int, window: Window) -> None:
        """Take a window of statistics. Only called when ``WANTS_WINDOWS``."""

    def write_gap(self, session_id: str, seq: int, gap: Gap) -> None:
        """Take note that records of this session were lost."""

    def write_note(self, session_id: str, seq: int, key: str, value: str) -> None:
        """Take a fact about the session, say "parallel_group_info" with a JSON text."""

    def pass_over(self, session_id: str, seq: int) -> None:
        """Take note that messages up to ``seq`` hold nothing for this sink.

        A sink that goes on after a restart of the daemon stores the number with its next commit.
        """

    @abc.abstractmethod
    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        """End the output of a session; its files are complete after the next ``commit``."""

    def forget_session(self, session_id: str) -> None:
        """Release what is still held of a session that was closed.

        Called once it is certain that its process will not send anything of it again.
        """

    def commit(self) -> Mapping[str, tuple[str, ...]] | None:
        """Make everything taken so far durable, for all open sessions.

        Returns session id → absolute paths of its files, for those sessions whose files have
        changed since they were told last; None: for no session. Raises CommitFailed when it worked
        for some sessions only, SinkError or OSError when it worked for none.
        """
        return None

    def close(self) -> None:
        """Release everything. Sessions still open can be continued by a later instance."""


class ResumableSink(Sink):
    """Base of sinks whose sessions go on in the same files after a restart of the daemon."""

    @abc.abstractmethod
    def open_session(self, session: SessionInfo, progress: Progress | None = None) -> SessionOutput:
        """Begin a session, or continue it where its progress says.

        Only what ``progress`` names is ever continued. The sink calls ``progress.keep``
        before it relies on a file, and in ``commit``. None: nothing needs to be kept.
        """
