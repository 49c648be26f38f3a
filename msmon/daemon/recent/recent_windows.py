"""Keeps the windows of the last minutes within bounds of time and bytes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from msmon.daemon.access.authentication import Peer
from msmon.daemon.access.shares import Resource, Shares
from msmon.daemon.outputs.delivery import NoteDelivery, WindowDelivery
from msmon.daemon.process import Process
from msmon.daemon.recent.shelf import KeptNote, KeptSession, KeptWindow, Shelf
from msmon.sessions import SessionInfo

KEPT_NOTES = frozenset({"parallel_group_info"})
"""Notes without which windows of several ranks can't be compared."""

KEEP_GONE_FACTOR = 2.0
"""How long numbers of windows that went stay known, as a multiple of the time that all are kept."""


@dataclass(frozen=True)
class RecentLimits:
    """How long windows are kept, and how many bytes of them, all owners together."""

    keep_s: float = 900.0
    most_bytes: int = 64 << 20

    @property
    def share_bytes(self) -> int:
        """What one local user may fill of it."""
        return self.most_bytes // 2


class RecentWindows:
    """The recent windows of all owners. Every method runs on the broker's loop, and only there.

    Each window and each note gets a number, which only grows. ``epoch`` is another one in each
    daemon: a reader that knows another epoch begins anew. The oldest windows make room. They are
    those of the owner that comes, where its share is used up; else those of the owner with most.
    """

    def __init__(self, shares: Shares, limits: RecentLimits | None = None) -> None:
        self.epoch = uuid.uuid4().hex
        self.last_number = 0
        self.given_up = 0
        """Windows that went before their time, for lack of room."""
        self.size_bytes = 0
        self._shares = shares
        self._limits = limits or RecentLimits()
        self._shelves: dict[str, Shelf] = {}
        self._session_count = 0

    def __len__(self) -> int:
        return sum(map(len, self._shelves.values()))

    def session(self, info: SessionInfo, process: Process) -> KeptSession:
        """Return the place for what comes of a new session."""
        self._session_count += 1
        return KeptSession(self._session_count, info, process)

    def keep(self, session: KeptSession, window: WindowDelivery) -> None:
        """Keep a window that has come. One that is larger than all the room is given up."""
        self.last_number += 1
        kept = KeptWindow(
            self.last_number, session, window.header, window.payload, time.monotonic()
        )
        if self._take_room(session, kept.size_bytes):
            self._shelf(session).append(kept)
        else:
            self.given_up += 1

    def keep_note(self, session: KeptSession, note: NoteDelivery) -> None:
        """Keep a note of a session, if readers need it; an older one with its key goes."""
        if note.key not in KEPT_NOTES:
            return
        self.last_number += 1
        kept = KeptNote(self.last_number, session, note.key, note.value)
        self._drop_note(session, note.key)
        if self._take_room(session, kept.size_bytes):
            shelf = self._shelf(session)
            session.notes[note.key] = kept
            shelf.noted[session.number] = session
            shelf.size_bytes += kept.size_bytes

    def end(self, session: KeptSession) -> None:
        """Note that nothing of a session comes again; what is kept stays its time."""
        session.ended = True
        self._forget_if_done(session)

    def visible_to(self, peer: Peer) -> Iterator[Shelf]:
        """Yield what a peer may see: all of an owner, or nothing of it."""
        for shelf in self._shelves.values():
            if peer.may_watch(shelf.peer):
                yield shelf

    def expire(self, now_s: float) -> None:
        """Forget what has been kept for its time."""
        before_s = now_s - self._limits.keep_s
        for owner, shelf in list(self._shelves.items()):
            while (oldest := shelf.oldest()) is not None and oldest.at_s < before_s:
                self._drop_oldest(shelf)
            shelf.forget_gone(now_s - KEEP_GONE_FACTOR * self._limits.keep_s)
            if shelf.is_empty:
                del self._shelves[owner]

    def _shelf(self, session: KeptSession) -> Shelf:
        peer = session.process.peer
        return self._shelves.setdefault(peer.owner, Shelf(peer))

    def _take_room(self, session: KeptSession, size_bytes: int) -> bool:
        """Make room and count it against the owner; False where there is not so much at all."""
        owner = session.process.peer.owner
        own = self._shelves.get(owner)
        if self._limits.keep_s <= 0 or size_bytes > self._limits.most_bytes:
            return False
        while not self._shares.try_take(owner, Resource.RECENT_BYTES, size_bytes):
            if own is None or not len(own):
                return False
            self._give_up_oldest(own)
        self.size_bytes += size_bytes
        while self.size_bytes > self._limits.most_bytes:
            filled = [shelf for shelf in self._shelves.values() if len(shelf)]
            if not filled:
                self._return_room(owner, size_bytes)
                return False
            self._give_up_oldest(max(filled, key=lambda shelf: shelf.size_bytes))
        return True

    def _give_up_oldest(self, shelf: Shelf) -> None:
        self.given_up += 1
        self._drop_oldest(shelf)

    def _drop_oldest(self, shelf: Shelf) -> None:
        window = shelf.drop_oldest()
        self._return_room(shelf.peer.owner, window.size_bytes)
        self._forget_if_done(window.session)

    def _forget_if_done(self, session: KeptSession) -> None:
        """Forget the notes of a session that is over and of which no window is left."""
        if session.ended and not session.window_count:
            for key in list(session.notes):
                self._drop_note(session, key)

    def _drop_note(self, session: KeptSession, key: str) -> None:
        note = session.notes.pop(key, None)
        if note is None:
            return
        shelf = self._shelf(session)
        shelf.size_bytes -= note.size_bytes
        self._return_room(shelf.peer.owner, note.size_bytes)
        if not session.notes:
            shelf.noted.pop(session.number, None)

    def _return_room(self, owner: str, size_bytes: int) -> None:
        self.size_bytes -= size_bytes
        self._shares.give_back(owner, Resource.RECENT_BYTES, size_bytes)
