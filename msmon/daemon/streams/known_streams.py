"""The streams that the daemon knows, found by session and by process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from msmon.daemon.process import Process
from msmon.daemon.streams.stream import Stream


class KnownStreams:
    """All streams that are open, or ended a short while ago. The broker's loop writes its state.

    What concerns one process is looked for among its own streams only. Example: a start for 1,000
    processes opens 1,000 sessions, and each opening asks how many its process has open. Looked for
    among all, that would be a million looks.
    """

    def __init__(self) -> None:
        self._by_session: dict[str, Stream] = {}
        self._by_process: defaultdict[str, dict[str, Stream]] = defaultdict(dict)
        """Key of a process → its streams, by the daemon's ids."""

    def __iter__(self) -> Iterator[Stream]:
        """Yield all streams; they may be removed meanwhile."""
        return iter(list(self._by_session.values()))

    def get(self, session_id: str) -> Stream | None:
        """Return the stream of a session, by the daemon's id."""
        return self._by_session.get(session_id)

    def of_process(self, process: Process) -> list[Stream]:
        """Return the streams of a process, the oldest first."""
        return list(self._by_process.get(process.key, {}).values())

    def add(self, stream: Stream) -> None:
        """Add the stream of a new session, which becomes the last one of its process."""
        session_id = stream.session.session_id
        self._by_session[session_id] = stream
        self._by_process[stream.process.key][session_id] = stream
        stream.process.session_id = session_id

    def remove(self, stream: Stream) -> None:
        """Forget a stream."""
        session_id, key = stream.session.session_id, stream.process.key
        del self._by_session[session_id]
        self._by_process[key].pop(session_id, None)
        if not self._by_process[key]:
            del self._by_process[key]
