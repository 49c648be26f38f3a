"""Following the recent windows that a daemon keeps: ask, decode, ask for the next ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Union

from msmon.bus.client import Client
from msmon.bus.messages import Selection, WindowsReply, WindowsRequest
from msmon.bus.rows import RecentNote, RecentSession, RecentWindow
from msmon.errors import BusError
from msmon.records.window_frames import window_of
from msmon.records.window_header import WindowHeader
from msmon.records.windows import Window


@dataclass(frozen=True)
class SeenWindow:
    """A window and whose it is. ``number`` grows from window to window of one daemon."""

    number: int
    session: RecentSession
    window: Window


@dataclass(frozen=True)
class SeenNote:
    """A note of a session, such as "parallel_group_info"."""

    number: int
    session: RecentSession
    key: str
    value: str


Seen = Union[SeenWindow, SeenNote]


@dataclass(frozen=True)
class Page:
    """What one answer brought, in the order of the numbers."""

    items: list[Seen] = field(default_factory=list)
    missed: int = 0
    """Windows since the last page that the daemon does not keep any more."""
    unreadable: int = 0
    """Windows whose frames don't fit; they are left out."""
    more: bool = False
    """The daemon has more already."""
    restarted: bool = False
    """Another daemon answered than the last time: session numbers mean others, and what it keeps
    comes from the beginning."""

    @property
    def windows(self) -> list[SeenWindow]:
        """The windows among the items."""
        return [item for item in self.items if isinstance(item, SeenWindow)]


class RecentReader:
    """Knows how far it has read one daemon; it may go on over another connection.

    Only one reader per connection. It is used on the connection's thread.
    """

    def __init__(self, selection: Selection | None = None, most_bytes: int = 1 << 20) -> None:
        self._selection = selection or Selection()
        self._most_bytes = most_bytes
        self._epoch = ""
        self._after = 0
        self._receipt = ""
        self._client: Client | None = None

    def read(self, client: Client, timeout_s: float | None = None) -> Page:
        """Ask for what came since the last call. Never waits for new windows.

        Raises CommandRefused where the daemon is too old or says no, and what
        :meth:`Client.exchange` raises.
        """
        receipt = self._receipt if client is self._client else ""
        request = WindowsRequest(
            self._selection, self._epoch, self._after, self._most_bytes, receipt
        )
        envelope = client.exchange(request, timeout_s)
        reply = envelope.message
        if not isinstance(reply, WindowsReply):
            raise BusError(f"the daemon answered with {reply.TYPE!r} instead of windows")
        restarted = self._epoch not in ("", reply.epoch)
        self._client, self._receipt = client, reply.receipt
        self._epoch, self._after = reply.epoch, reply.last
        items, unreadable = _items(reply, b"".join(envelope.payload))
        return Page(items, reply.missed, unreadable, reply.more, restarted)

    def read_all(self, client: Client, timeout_s: float | None = None) -> Iterator[Page]:
        """Yield pages until there is no more at the moment."""
        page = Page(more=True)
        while page.more:
            page = self.read(client, timeout_s)
            yield page


def _items(reply: WindowsReply, payload: bytes) -> tuple[list[Seen], int]:
    """Return what could be decoded, and how many items could not."""
    sessions = {session.number: session for session in reply.sessions}
    items: list[Seen] = []
    unreadable, offset = 0, 0
    told: list[RecentWindow | RecentNote] = [*reply.windows, *reply.notes]
    for item in sorted(told, key=lambda each: each.number):
        frames = []
        for size_bytes in item.frame_bytes:
            frames.append(payload[offset : offset + size_bytes])
            offset += size_bytes
        session = sessions.get(item.session)
        try:
            if session is None or offset > len(payload):
                raise ValueError("an answer that contradicts itself")
            items.append(_decoded(item, session, frames))
        except ValueError:
            unreadable += 1
    return items, unreadable


def _decoded(item: RecentWindow | RecentNote, session: RecentSession, frames: list[bytes]) -> Seen:
    if isinstance(item, RecentNote):
        value = b"".join(frames).decode("utf-8", "replace")
        return SeenNote(item.number, session, item.key, value)
    header = WindowHeader(**item.header_fields())
    return SeenWindow(item.number, session, window_of(header, frames))
