"""The streams of all sessions, as the daemon takes them in.

Every message of a stream becomes one delivery to the outputs. A message that was seen before is
a duplicate: it is dropped and acknowledged again. An agent hears that a message is safe once the
outputs have said so. What can't be taken is refused for good, counted and acknowledged (see
:mod:`stream_losses <msmon.daemon.streams.losses>`). The session of a process that vanished is
closed after a grace. Some time after its end a session is forgotten, here and in everything that
keeps something of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence

from msmon.bus.messages import SessionOpened, WindowReport, WindowSoFar
from msmon.daemon.access.approvals import Approvals
from msmon.daemon.access.shares import Resource, Shares
from msmon.daemon.outputs.delivery import (
    BatchDelivery,
    Closing,
    Delivery,
    NoteDelivery,
    WindowDelivery,
)
from msmon.daemon.outputs.output_session import OpenAnswer
from msmon.daemon.outputs.outputs import Outputs
from msmon.daemon.process import Process
from msmon.daemon.recent.recent_windows import RecentWindows
from msmon.daemon.recent.shelf import KeptSession
from msmon.daemon.streams.admission import approved_settings, require_room, take_share
from msmon.daemon.streams.awaited import Awaited
from msmon.daemon.streams.from_wire import delivery_of
from msmon.daemon.streams.known_streams import KnownStreams
from msmon.daemon.streams.losses import (
    MAX_REFUSED_PER_PROCESS,
    StreamMessage,
    Unreadable,
    lost_in,
    refused_in,
)
from msmon.daemon.streams.running_windows import RunningWindows
from msmon.daemon.streams.stream import Stream, daemon_id
from msmon.errors import CommandRefused, MsmonError
from msmon.records.kinds import ActivityKind
from msmon.sessions import (
    LOST_END,
    REPLACED_END,
    Counts,
    MonitorSettings,
    SessionEnd,
    SessionInfo,
)

_log = logging.getLogger(__name__)


class Streams:
    """All streams, by the daemon's ids. Every method runs on the broker's loop, and only there.

    ``acknowledge(process, agent's session id, seq)`` tells an agent what is safe. ``on_loop`` has
    a function called on the broker's loop, for answers that come on an output's thread.
    ``grace_s``: how long a session outlives its process. ``keep_closed_s``: how long an ended
    one is remembered.
    """

    def __init__(
        self,
        outputs: Outputs,
        approvals: Approvals,
        acknowledge: Callable[[Process, str, int], None],
        on_loop: Callable[[Callable[[], None]], None],
        grace_s: float,
        keep_closed_s: float,
        recent: RecentWindows,
        shares: Shares | None = None,
    ) -> None:
        self._shares = shares or Shares()
        self._recent = recent
        self._outputs = outputs
        self._approvals = approvals
        self._acknowledge = acknowledge
        self._on_loop = on_loop
        self._grace_s = grace_s
        self._keep_closed_s = keep_closed_s
        self._streams = KnownStreams()
        self._openings: Awaited[OpenAnswer] = Awaited()
        self._writings: Awaited[bool] = Awaited()
        self._windows = RunningWindows(self._shares)

    def get(self, session_id: str) -> Stream | None:
        """Return a stream that is open, or was until a short while ago."""
        return self._streams.get(session_id)

    def id_of(self, process: Process, session_id: str) -> str:
        """Return the daemon's id of a session that a process names; "" for none or a wrong one."""
        with contextlib.suppress(CommandRefused):
            return daemon_id(process.peer, session_id) if session_id else ""
        return ""

    def take(self, process: Process, message: StreamMessage, payload: Sequence[bytes]) -> None:
        """Take one stream message of a process.

        Raises CommandRefused for a message of a session that was not opened here: its agent says
        hello and sends it again, from the opening on. So it does for an id that no agent makes, and
        for a session of another process.
        """
        stream = self._stream_of(process, message.session_id)
        if isinstance(message, SessionOpened):
            self._take_opening(process, message, stream)
        elif (stream := self._awaiting(stream, message)) is not None:
            renamed = dataclasses.replace(message, session_id=stream.session.session_id)
            self._hand_over(stream, message, delivery_of(renamed, tuple(payload)))

    def keep_so_far(self, process: Process, message: WindowSoFar, payload: Sequence[bytes]) -> None:
        """Keep what an agent tells of its open window; nothing happens without its session."""
        stream = self._stream_of(process, message.session_id)
        if stream is not None:
            self._windows.keep(stream, message, payload)

    def pass_over(self, process: Process, message: Unreadable) -> None:
        """Take a message that can't be read as a loss, so that its stream goes on after it.

        Raises what :meth:`take` raises.
        """
        stream = self._stream_of(process, message.session_id)
        if message.opens:
            if stream is None:
                self._refuse(process, message.session_id, time.time_ns(), message.reason)
            else:
                self._acknowledge(process, message.session_id, max(stream.safe_seq, 1))
        elif (stream := self._awaiting(stream, message)) is not None:
            self._hand_over(stream, message, message.delivery(stream.session.session_id))

    def _stream_of(self, process: Process, agent_id: str) -> Stream | None:
        stream = self._streams.get(daemon_id(process.peer, agent_id))
        if stream is not None:
            stream.continue_with(process)
        return stream

    def _awaiting(
        self, stream: Stream | None, message: StreamMessage | Unreadable
    ) -> Stream | None:
        """Return the stream for which a message is new; one seen before is acknowledged again."""
        if stream is None:
            raise CommandRefused(f"session {message.session_id} was not opened here")
        if stream.lost:
            self._reopen(stream)
        if message.seq > stream.last_seq and (stream.refused or not stream.closed):
            stream.last_seq = message.seq
            return stream
        self._acknowledge(stream.process, stream.agent_id, stream.safe_seq)
        return None

    def _take_opening(
        self, process: Process, message: SessionOpened, stream: Stream | None
    ) -> None:
        if stream is not None:
            if stream.lost:
                self._reopen(stream)
            self._acknowledge(process, message.session_id, max(stream.safe_seq, 1))
            return
        try:
            require_room(process, self._streams.of_process(process))
            settings = message.settings.checked()
            take_share(process.peer.owner, self._shares, self._streams, self._forget)
        except MsmonError as error:
            self._refuse(process, message.session_id, message.start_ns, error.message)
            return
        session_id = daemon_id(process.peer, message.session_id)
        settings, problem = approved_settings(process, session_id, settings, self._approvals)
        session = SessionInfo(
            session_id, process.info, settings, message.start_ns, process.peer.owner
        )
        kept = self._recent.session(session, process)
        stream = Stream(session, process, message.session_id, problem=problem, kept=kept)
        self._streams.add(stream)
        self._open(stream)

    def _refuse(self, process: Process, agent_id: str, start_ns: int, reason: str) -> None:
        """Refuse a session for good: what comes of it is counted, acknowledged and forgotten.

        Sent again and again it would keep its agent from all that lies behind it.
        """
        owner, session_id = process.peer.owner, daemon_id(process.peer, agent_id)
        _log.error("%s: session refused: %s", process.label, reason, extra={"owner": owner})
        refused = [item for item in self._streams.of_process(process) if item.refused]
        if len(refused) >= MAX_REFUSED_PER_PROCESS:
            self._forget(refused[0])
        session = SessionInfo(session_id, process.info, MonitorSettings(), start_ns, owner)
        stream = Stream(session, process, agent_id, problem=reason, closed=True, refused=True)
        stream.closed_s = time.monotonic()
        self._streams.add(stream)
        self._opened(stream, CommandRefused(f"the daemon refused the session: {reason}"))

    def _open(self, stream: Stream) -> None:
        def done(result: OpenAnswer) -> None:
            self._on_loop(lambda: self._opened(stream, result))

        try:
            self._outputs.open_session(stream.session, stream.owner, done)
        except MsmonError as error:  # the export's output can't be made at all
            settings = dataclasses.replace(stream.session.settings, log_file="")
            stream.session = dataclasses.replace(stream.session, settings=settings)
            self._outputs.open_session(stream.session, stream.owner, lambda _: None)
            self._opened(stream, error)

    def _opened(self, stream: Stream, result: OpenAnswer) -> None:
        stream.opened = result
        if isinstance(result, MsmonError):
            stream.problem = result.message
            owner = {"owner": stream.process.peer.owner}
            _log.error("%s: %s", stream.process.label, result.message, extra=owner)
        self._openings.tell(stream.session.session_id, result)
        self._acknowledge(stream.process, stream.agent_id, max(stream.safe_seq, 1))

    def _reopen(self, stream: Stream) -> None:
        owner = {"owner": stream.process.peer.owner}
        _log.info("%s is back: its session goes on", stream.process.label, extra=owner)
        stream.lost = stream.closed = stream.loss_told = False
        stream.end = None
        self._open(stream)

    def _hand_over(
        self, stream: Stream, message: StreamMessage | Unreadable, delivery: Delivery
    ) -> None:
        """Hand what a message holds to the outputs; what was lost here is counted."""
        if stream.refused:
            stream.lose(refused_in(delivery))
            stream.lose(lost_in(message, delivery))
            self.committed(stream.session.session_id, delivery.seq)
            return
        stream.lose(lost_in(message, delivery))
        if isinstance(message, WindowReport):
            self._windows.reported(stream, message)
        if isinstance(delivery, Closing):
            self._windows.forget(stream)
            stream.closed, stream.closed_s = True, time.monotonic()
            stream.end = delivery.end
        if stream.kept is not None:
            self._keep_recent(stream.kept, delivery)
        if isinstance(delivery, BatchDelivery):
            stream.arrives(ActivityKind(delivery.kind).name, delivery.count)
        self._outputs.put(delivery)

    def _keep_recent(self, kept: KeptSession, delivery: Delivery) -> None:
        """Keep a window, or a note that tells how to read it, for those who look at the job."""
        if isinstance(delivery, WindowDelivery):
            self._recent.keep(kept, delivery)
        elif isinstance(delivery, NoteDelivery):
            self._recent.keep_note(kept, delivery)

    def committed(self, session_id: str, seq: int) -> None:
        """Note that everything up to ``seq`` is safe, and tell the agent."""
        stream = self._streams.get(session_id)
        if stream is not None and seq > stream.safe_seq:
            stream.safe_seq = seq
            self._acknowledge(stream.process, stream.agent_id, seq)
            self._tell_if_written(stream)

    def _tell_if_written(self, stream: Stream) -> None:
        if stream.is_written:
            self._writings.tell(stream.session.session_id, True)

    async def opened(self, session_id: str, timeout_s: float) -> OpenAnswer | None:
        """Wait until it is known which files a session writes; None when it takes too long.

        The session's opening need not have arrived yet.
        """
        stream = self._streams.get(session_id)
        if stream is not None and stream.opened is not None:
            return stream.opened
        return await self._openings.wait(session_id, timeout_s)

    async def written(self, session_id: str, timeout_s: float) -> bool:
        """Wait until a session has ended and its outputs hold all of it; False: not in time."""
        stream = self._streams.get(session_id)
        if stream is not None and stream.is_written:
            return True
        return await self._writings.wait(session_id, timeout_s) is not None

    def expire(self, now_s: float) -> None:
        """Close the sessions of processes gone for the grace; forget those long closed.

        Outputs that hold up others are left behind.
        """
        self._outputs.check(now_s)
        self._recent.expire(now_s)
        for stream in self._streams:
            process = stream.process
            if stream.closed:
                if now_s - stream.closed_s > self._keep_closed_s:
                    self._forget(stream)
            elif not process.is_there and now_s - process.gone_s > self._grace_s:
                self._close_lost(stream, now_s)

    def _forget(self, stream: Stream) -> None:
        """Release all that is kept of a session, and its place in the owner's share."""
        session_id = stream.session.session_id
        self._streams.remove(stream)
        if stream.refused:
            return
        if stream.kept is not None:
            self._recent.end(stream.kept)
        self._shares.give_back(stream.process.peer.owner, Resource.SESSIONS)
        self._outputs.forget(session_id)
        self._approvals.end(session_id)

    def lost(self) -> list[Stream]:
        """Return the streams whose process vanished with them."""
        return [
            stream
            for stream in self._streams
            if stream.lost or not (stream.closed or stream.process.is_there)
        ]

    def end_replaced(self, process: Process) -> None:
        """Close what a process has open whose program was replaced by another one (``execv``)."""
        now_s = time.monotonic()
        for stream in self._streams.of_process(process):
            if not stream.closed:
                self._close_for(stream, now_s, REPLACED_END)

    def close_lost(self) -> None:
        """Close the sessions of all processes that are gone, whatever the grace."""
        for stream in self._streams:
            if not stream.closed and not stream.process.is_there:
                self._close_lost(stream, time.monotonic())

    def _close_lost(self, stream: Stream, now_s: float) -> None:
        self._close_for(stream, now_s, LOST_END)
        stream.lost = True

    def _close_for(self, stream: Stream, now_s: float, reason: str) -> None:
        """Close a session in the place of its agent."""
        status = stream.process.status
        silent_s = now_s - stream.process.last_seen_s
        told = Counts()
        if status is not None and status.session_id == stream.agent_id:
            told = status.counts
        end_ns = time.time_ns() - int(silent_s * 1e9)
        end = SessionEnd(end_ns, reason, stream.counts_without_agent(told))
        stream.closed, stream.closed_s = True, now_s
        stream.end = end
        if stream.so_far is not None:
            last = dataclasses.replace(stream.so_far, seq=stream.last_seq)
            if stream.kept is not None:
                self._recent.keep(stream.kept, last)
            self._outputs.put(last)
            self._windows.forget(stream)
        self._outputs.put(Closing(stream.session.session_id, stream.last_seq, end))
        self._tell_if_written(stream)
