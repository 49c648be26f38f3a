"""The streams of all sessions, as the daemon takes them in.

Every message of a stream becomes one delivery to the outputs. A message that was seen before is
a duplicate: it is dropped and acknowledged again. An agent hears that a message is safe once the
outputs have said so. The session of a process that vanished is closed after a grace. Some
time after its end a session is forgotten, here and in everything that keeps something of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence

from msmon.bounds import added
from msmon.bus.messages import (
    GapReport,
    Message,
    Records,
    SessionClosed,
    SessionNote,
    SessionOpened,
    WindowReport,
)
from msmon.daemon.access.approvals import Approvals
from msmon.daemon.access.shares import Resource, Shares
from msmon.daemon.outputs.delivery import Closing, GapDelivery
from msmon.daemon.outputs.from_wire import delivery_of
from msmon.daemon.outputs.output_session import OpenAnswer
from msmon.daemon.outputs.outputs import Outputs
from msmon.daemon.registry import Life, Process
from msmon.daemon.stream import Stream, daemon_id, owner_of, writes_anywhere
from msmon.errors import CommandRefused, MsmonError
from msmon.sessions import MonitorSettings, SessionEnd, SessionInfo, merged_drops

_log = logging.getLogger(__name__)

STREAM_TYPES = (SessionOpened, Records, WindowReport, SessionNote, GapReport, SessionClosed)

MAX_OPEN_SESSIONS_PER_PROCESS = 8
WRITTEN_POLL_S = 0.02


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
        shares: Shares | None = None,
    ) -> None:
        self._shares = shares or Shares()
        self._outputs = outputs
        self._approvals = approvals
        self._acknowledge = acknowledge
        self._on_loop = on_loop
        self._grace_s = grace_s
        self._keep_closed_s = keep_closed_s
        self._streams: dict[str, Stream] = {}
        self._waiting: dict[str, list[asyncio.Future[OpenAnswer]]] = {}

    def get(self, session_id: str) -> Stream | None:
        """Return a stream that is open, or was until a short while ago."""
        return self._streams.get(session_id)

    def id_of(self, process: Process, session_id: str) -> str:
        """Return the daemon's id of a session that a process names; "" for none or a wrong one."""
        with contextlib.suppress(CommandRefused):
            return daemon_id(process.peer, session_id) if session_id else ""
        return ""

    def take(self, process: Process, message: Message, payload: Sequence[bytes]) -> None:
        """Take one stream message of a process. Raises CommandRefused when it makes no sense."""
        assert isinstance(message, STREAM_TYPES)
        session_id = daemon_id(process.peer, message.session_id)
        stream = self._streams.get(session_id)
        if stream is not None:
            stream.continue_with(process)
        if isinstance(message, SessionOpened):
            self._take_opening(process, message, session_id, stream)
            return
        if stream is None:
            raise CommandRefused(f"session {message.session_id} was not opened here")
        if stream.lost:
            self._reopen(stream)
        if message.seq <= stream.last_seq or stream.closed:
            self._acknowledge(process, stream.agent_id, stream.safe_seq)
            return
        stream.last_seq = message.seq
        self._hand_over(stream, message, payload)

    def _take_opening(
        self, process: Process, message: SessionOpened, session_id: str, stream: Stream | None
    ) -> None:
        if stream is not None:
            if stream.lost:
                self._reopen(stream)
            self._acknowledge(process, message.session_id, max(stream.safe_seq, 1))
            return
        running = [item for item in self._streams.values() if item.process is process]
        if sum(not item.closed for item in running) >= MAX_OPEN_SESSIONS_PER_PROCESS:
            raise CommandRefused(f"{process.label} has too many open sessions")
        settings = message.settings.checked()
        self._take_share(process.peer.owner)
        problem = ""
        if settings.log_file and not self._may_export(process, session_id, settings):
            problem = f"export to {settings.log_file} was not approved by this daemon"
            _log.warning("%s: %s", process.label, problem, extra={"owner": process.peer.owner})
            settings = dataclasses.replace(settings, log_file="")
        session = SessionInfo(
            session_id, process.info, settings, message.start_ns, process.peer.owner
        )
        stream = Stream(session, process, message.session_id, problem=problem)
        self._streams[session_id] = stream
        process.session_id = session_id
        self._open(stream)

    def _take_share(self, owner: str) -> None:
        """Count a session against its owner; one that ended longest ago makes room.

        Raises ShareUsedUp where the owner has too many that are open.
        """
        if self._shares.try_take(owner, Resource.SESSIONS):
            return
        ended = [
            stream
            for stream in self._streams.values()
            if stream.closed and stream.process.peer.owner == owner
        ]
        if ended:
            self._forget(min(ended, key=lambda stream: stream.closed_s))
        self._shares.take(owner, Resource.SESSIONS)

    def _may_export(self, process: Process, session_id: str, settings: MonitorSettings) -> bool:
        """The path was checked when the command came; an agent's word alone doesn't count.

        Not even an operator's, if it comes with a TCP key: the daemon would write with its own
        rights wherever the holder of that key likes.
        """
        if writes_anywhere(process.peer):
            return True
        owner = owner_of(process.peer)
        return self._approvals.claim(owner.name, session_id, settings.log_file)

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
        for waiting in self._waiting.pop(stream.session.session_id, ()):
            if not waiting.done():
                waiting.set_result(result)
        self._acknowledge(stream.process, stream.agent_id, max(stream.safe_seq, 1))

    def _reopen(self, stream: Stream) -> None:
        owner = {"owner": stream.process.peer.owner}
        _log.info("%s is back: its session goes on", stream.process.label, extra=owner)
        stream.lost = stream.closed = False
        self._open(stream)

    def _hand_over(self, stream: Stream, message: Message, payload: Sequence[bytes]) -> None:
        if isinstance(message, SessionClosed):
            stream.closed, stream.closed_s = True, time.monotonic()
        renamed = dataclasses.replace(message, session_id=stream.session.session_id)  # type: ignore[call-arg]
        delivery = delivery_of(renamed, tuple(payload))
        if isinstance(delivery, GapDelivery) and not isinstance(message, GapReport):
            lost = added(*(delivery.gap.records or {}).values())
            stream.drops = merged_drops(stream.drops, {delivery.gap.stage: lost})
        self._outputs.put(delivery)

    def committed(self, session_id: str, seq: int) -> None:
        """Note that everything up to ``seq`` is safe, and tell the agent."""
        stream = self._streams.get(session_id)
        if stream is not None and seq > stream.safe_seq:
            stream.safe_seq = seq
            self._acknowledge(stream.process, stream.agent_id, seq)

    async def opened(self, session_id: str, timeout_s: float) -> OpenAnswer | None:
        """Wait until it is known which files a session writes; None when it takes too long.

        The session's opening need not have arrived yet.
        """
        stream = self._streams.get(session_id)
        if stream is not None and stream.opened is not None:
            return stream.opened
        future: asyncio.Future[OpenAnswer] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(session_id, []).append(future)
        done, _ = await asyncio.wait([future], timeout=timeout_s)
        if done:
            return future.result()
        self._waiting.pop(session_id, None)
        return None

    async def written(self, session_id: str, timeout_s: float) -> bool:
        """Wait until a session has ended and its outputs hold all of it; False: not in time."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            stream = self._streams.get(session_id)
            if stream is not None and stream.closed and stream.safe_seq >= stream.last_seq:
                return True
            await asyncio.sleep(WRITTEN_POLL_S)
        return False

    def expire(self, now_s: float) -> None:
        """Close the sessions of processes gone for the grace; forget those long closed."""
        for stream in list(self._streams.values()):
            process = stream.process
            if stream.closed:
                if now_s - stream.closed_s > self._keep_closed_s:
                    self._forget(stream)
            elif process.life is not Life.LIVE and now_s - process.gone_s > self._grace_s:
                self._close_lost(stream, now_s)

    def _forget(self, stream: Stream) -> None:
        """Release all that is kept of a session, and its place in the owner's share."""
        session_id = stream.session.session_id
        del self._streams[session_id]
        self._shares.give_back(stream.process.peer.owner, Resource.SESSIONS)
        self._outputs.forget(session_id)
        self._approvals.end(session_id)

    def close_lost(self) -> None:
        """Close the sessions of all processes that are gone, whatever the grace."""
        for stream in self._streams.values():
            if not stream.closed and stream.process.life is not Life.LIVE:
                self._close_lost(stream, time.monotonic())

    def _close_lost(self, stream: Stream, now_s: float) -> None:
        status = stream.process.status
        silent_s = now_s - stream.process.last_seen_s
        end = SessionEnd(time.time_ns() - int(silent_s * 1e9), "lost")
        if status is not None and status.session_id == stream.agent_id:
            end = dataclasses.replace(end, counts=status.counts)
        stream.closed, stream.lost, stream.closed_s = True, True, now_s
        self._outputs.put(Closing(stream.session.session_id, stream.last_seq, end))
