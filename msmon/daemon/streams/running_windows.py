"""The windows that are still open: what each session's agent has told of its newest one.

About once a second an agent tells what its open window holds so far. Nothing comes of that while
the agent lives, because the report of the whole window follows. When the process is killed, the
last thing that it told becomes the last window of its session.
"""

from __future__ import annotations

from collections.abc import Sequence

from msmon.bus.messages import WindowReport, WindowSoFar
from msmon.daemon.access.shares import Resource, Shares
from msmon.daemon.outputs.delivery import WindowDelivery
from msmon.daemon.streams.from_wire import is_too_large
from msmon.daemon.streams.stream import Stream
from msmon.records.window_header import WindowHeader


class RunningWindows:
    """Keeps at most one window per stream, in ``Stream.so_far``; its bytes count against the owner.

    That share is their own. With the one of statuses, large windows of some ranks would have the
    statuses of all refused. Windows are compared by their index: what is told of a window may
    overtake the report of the one before it. Every method runs on the broker's loop, and only
    there.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares

    def keep(self, stream: Stream, message: WindowSoFar, payload: Sequence[bytes]) -> None:
        """Keep what an agent tells of its open window, unless it is over, too large or too much."""
        known = max(stream.reported_window, stream.so_far.header.index if stream.so_far else -1)
        if stream.closed or message.index < known or message.index == stream.reported_window:
            return
        frames = tuple(payload)
        if is_too_large(frames):
            return
        self.forget(stream)
        header = WindowHeader(**message.header_fields())
        session_id = stream.session.session_id
        so_far = WindowDelivery(session_id, stream.last_seq, header, frames, found_here=True)
        owner = stream.process.peer.owner
        if self._shares.try_take(owner, Resource.OPEN_WINDOW_BYTES, so_far.size_bytes):
            stream.so_far = so_far

    def reported(self, stream: Stream, report: WindowReport) -> None:
        """Note that a window has come as a whole: what was told of it before is void."""
        stream.reported_window = max(stream.reported_window, report.index)
        if stream.so_far is not None and stream.so_far.header.index <= report.index:
            self.forget(stream)

    def forget(self, stream: Stream) -> None:
        """Forget what was told of the open window of a stream."""
        if stream.so_far is not None:
            owner = stream.process.peer.owner
            self._shares.give_back(owner, Resource.OPEN_WINDOW_BYTES, stream.so_far.size_bytes)
            stream.so_far = None
