"""The answers to questions: what the daemon knows, without asking any agent."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

from msmon import __version__
from msmon.bus import messages
from msmon.bus.messages import Reply
from msmon.bus.rows import DaemonRow, Row, StatusRow
from msmon.bus.words import Outcome
from msmon.daemon.access.authentication import Peer
from msmon.daemon.commands.command_base import probing
from msmon.daemon.outputs.outputs import Outputs
from msmon.daemon.process import Process
from msmon.daemon.recent.recent_windows import RecentWindows
from msmon.daemon.recent.reply import windows_reply
from msmon.daemon.registry import Registry
from msmon.daemon.rows import output_row, status_row
from msmon.daemon.selection import Chooser, select, unknown_text
from msmon.daemon.standing.commands import StandingCommands
from msmon.daemon.standing.standings import Standings
from msmon.daemon.streams.streams import Streams


@dataclass(frozen=True)
class DaemonFacts:
    """What a client may know of the daemon itself."""

    host: str
    pid: int
    uid: int
    insecure: bool
    listens: tuple[str, ...]


class Questions:
    """Answers from the daemon's state and changes nothing. Runs on the broker's loop.

    ``refused`` returns how many messages, and how many connections, were refused so far.
    """

    def __init__(
        self,
        registry: Registry,
        streams: Streams,
        outputs: Outputs,
        recent: RecentWindows,
        standings: Standings,
        standing: StandingCommands,
        facts: DaemonFacts,
        refused: Callable[[], tuple[int, int]],
    ) -> None:
        self._registry = registry
        self._streams = streams
        self._outputs = outputs
        self._recent = recent
        self._standings = standings
        self._standing = standing
        self._facts = facts
        self._refused = refused

    def status(self, request: messages.StatusRequest, peer: Peer) -> Reply:
        """Return a row for each selected process, or why none matched."""
        known = self._registry.all()
        now_s = time.monotonic()
        chooser = Chooser(request.selection)
        shown = [process for process in known if chooser.matches(process)]
        rows: list[Row] = [self._row(process, peer, now_s) for process in shown]
        selected = select(request.selection, known, self._facts.host, now_s, probing(peer))
        daemon = self._daemon_row(peer)
        if shown:
            return Reply(Outcome.OK, unknown_text(selected.missing), rows=rows, daemon=daemon)
        return Reply(selected.outcome, selected.text, selected.next_step, daemon=daemon)

    def _row(self, process: Process, peer: Peer, now_s: float) -> StatusRow:
        trainers = self._registry.trainers(process)
        row = status_row(process, peer, self._streams, self._outputs, now_s, trainers)
        told = self._standings.told(process)
        if not told.name or not peer.may_command(process.peer):
            return row
        return dataclasses.replace(row, order=told.name, order_problem=told.problem or None)

    def windows(
        self, request: messages.WindowsRequest, peer: Peer
    ) -> tuple[messages.WindowsReply, bytes]:
        """Return recent windows that the peer may see, and the frames that belong to them."""
        return windows_reply(request, peer, self._recent)

    def strangers(self, peer: Peer) -> float:
        """Return which part of the registered processes is not the peer's, from 0 to 1."""
        return self._registry.strangers(peer.owner)

    def version(self, peer: Peer) -> Reply:
        """Return what there is to know of the daemon itself."""
        return Reply(Outcome.OK, daemon=self._daemon_row(peer))

    def _daemon_row(self, peer: Peer) -> DaemonRow:
        refused_messages, refused_connections = self._refused()
        return DaemonRow(
            version=__version__,
            protocol=f"{messages.PROTOCOL_MAJOR}.{messages.PROTOCOL_MINOR}",
            host=self._facts.host,
            pid=self._facts.pid,
            uid=self._facts.uid,
            insecure=self._facts.insecure,
            listens=list(self._facts.listens),
            sinks=[output_row(row, peer) for row in self._outputs.status()],
            orders=self._standing.rows(peer),
            refused_messages=refused_messages,
            refused_connections=refused_connections,
            recent_windows=len(self._recent),
            recent_bytes=self._recent.size_bytes,
            recent_given_up=self._recent.given_up,
        )
