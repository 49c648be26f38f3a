"""What the broker needs from the outputs behind it.

The broker knows no sink: whoever starts it hands in something of this shape. No
method may block; everything slow happens in the outputs' own workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Union

from msmon.errors import MsmonError
from msmon.sessions import Drops, Gap, MonitorSettings, SessionEnd, SessionInfo

OnCommit = Callable[[str, int], None]
"""Called from any thread with (session id, sequence number that is safe)."""

Opened = Callable[[Union["tuple[str, ...]", MsmonError]], None]
"""Called once, from any thread, with the files that a session writes or why it can't."""


class Outputs(Protocol):
    """All outputs of one daemon."""

    def check_export(self, settings: MonitorSettings, caller_uid: int) -> MonitorSettings:
        """Return settings with ``log_file`` resolved and ``ship_records`` decided.

        ``caller_uid`` is -1 for a remote caller. May touch the file system. Raises
        UsageError or SinkError when the caller may not write there.
        """

    def open_session(self, session: SessionInfo, done: Opened) -> None:
        """Begin, or after a restart continue, the outputs of a session."""

    def put_records(
        self, session_id: str, seq: int, kind: int, count: int, payload: Sequence[bytes]
    ) -> None:
        """Take a batch in its frame form."""

    def put_window(
        self, session_id: str, seq: int, header_fields: dict[str, Any], payload: Sequence[bytes]
    ) -> None:
        """Take a window in its frame form, with the plain fields of ``Window``."""

    def put_gap(self, session_id: str, seq: int, gap: Gap) -> None:
        """Take note of lost records."""

    def put_note(self, session_id: str, seq: int, key: str, value: str) -> None:
        """Take a fact about the session."""

    def close_session(self, session_id: str, seq: int, end: SessionEnd) -> None:
        """End the outputs of a session."""

    def drops(self, session_id: str) -> Drops:
        """Return what the outputs had to drop of a session, per stage."""

    def files(self, session_id: str) -> tuple[str, ...]:
        """Return the files that a session writes."""

    def status(self) -> list[dict[str, Any]]:
        """Return one plain row per output."""

    def close(self, timeout_s: float) -> None:
        """Write out what is queued and stop the workers. Blocks up to ``timeout_s``."""
