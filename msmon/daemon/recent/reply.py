"""The answer to a question for recent windows: as many as fit, for the peer that asks."""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Iterable
from typing import Union

from msmon.bus.messages import MAX_RECENT_ITEMS, WindowsReply, WindowsRequest
from msmon.bus.rows import RecentNote, RecentSession, RecentWindow
from msmon.daemon.access.authentication import Peer
from msmon.daemon.recent.recent_windows import RecentWindows
from msmon.daemon.recent.shelf import KeptNote, KeptSession, KeptWindow
from msmon.daemon.rows import identity
from msmon.daemon.selection import Chooser

MOST_BYTES = 4 << 20
"""Frames in one answer, whatever the reader asks for. A larger window comes alone."""

MAX_EXAMINED = 20_000
"""Windows that one answer looks at. A selection may match none of very many."""

_Kept = Union[KeptWindow, KeptNote]


class _Page:
    """One answer while it is filled."""

    def __init__(self, request: WindowsRequest, peer: Peer) -> None:
        self._peer = peer
        self._most_bytes = min(request.most_bytes, MOST_BYTES)
        self._chooser = Chooser(request.selection)
        self._wanted: dict[int, bool] = {}
        self.sessions: dict[int, RecentSession] = {}
        self.windows: list[RecentWindow] = []
        self.notes: list[RecentNote] = []
        self.frames: list[bytes] = []
        self._size_bytes = 0

    def wants(self, session: KeptSession) -> bool:
        """Whether a session is of a selected process."""
        number = session.number
        if number not in self._wanted:
            self._wanted[number] = self._chooser.matches(session.process)
        return self._wanted[number]

    def has_room_for(self, item: _Kept) -> bool:
        """Whether an item fits; the first one always does."""
        count = len(self.windows) + len(self.notes)
        if count >= MAX_RECENT_ITEMS:
            return False
        return not count or self._size_bytes + item.size_bytes <= self._most_bytes

    def add(self, item: _Kept) -> None:
        """Add an item, and who its process is with the first item of a session."""
        session = item.session
        if session.number not in self.sessions:
            self.sessions[session.number] = recent_session(session, self._peer)
        self._size_bytes += item.size_bytes
        if isinstance(item, KeptNote):
            size_bytes = [len(item.value)]
            self.notes.append(RecentNote(item.number, session.number, size_bytes, item.key))
            self.frames.append(item.value)
            return
        size_bytes = [len(frame) for frame in item.frames]
        header = item.header.header_fields()
        self.windows.append(RecentWindow(item.number, session.number, size_bytes, **header))
        self.frames += item.frames


def windows_reply(
    request: WindowsRequest, peer: Peer, recent: RecentWindows
) -> tuple[WindowsReply, bytes]:
    """Return the answer and its payload: all frames, joined in the order of the numbers."""
    after = request.after if request.epoch == recent.epoch else 0
    shelves = list(recent.visible_to(peer))
    page = _Page(request, peer)
    missed = 0
    if request.epoch == recent.epoch:
        gone = (window for shelf in shelves for window in shelf.gone_after(after))
        missed = sum(page.wants(window.session) for window in gone)
    kept: list[Iterable[_Kept]] = [shelf.windows_after(after) for shelf in shelves]
    kept += [shelf.notes_after(after) for shelf in shelves]
    last, more = recent.last_number, False
    former = after
    for count, item in enumerate(heapq.merge(*kept, key=lambda each: each.number)):
        wanted = page.wants(item.session)
        if count >= MAX_EXAMINED or (wanted and not page.has_room_for(item)):
            last, more = former, True
            break
        if wanted:
            page.add(item)
        former = item.number
    reply = WindowsReply(
        recent.epoch,
        last,
        missed,
        more,
        uuid.uuid4().hex,
        list(page.sessions.values()),
        page.windows,
        page.notes,
    )
    return reply, b"".join(page.frames)


def recent_session(session: KeptSession, peer: Peer) -> RecentSession:
    """Return whose session it is, as far as the peer may know."""
    process, info = session.process, session.info
    return RecentSession(
        **identity(process, peer),
        number=session.number,
        session_id=info.session_id if peer.may_command(process.peer) else "",
        start_ns=info.start_ns,
        start_time=process.info.start_time,
        launch=process.info.launch,
    )
