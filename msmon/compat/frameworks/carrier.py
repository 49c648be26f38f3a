"""What ``init_dyno`` and ``poll_dyno`` do in the helper process of a framework.

The helper registers with the daemon as a *carrier* of its rank. The daemon sends it the commands
for ranks that have no agent. The helper gives them to the framework, which passes them to the
ranks through shared memory. A carrier never calls MSPTI.
"""

from __future__ import annotations

import dataclasses
import os
import time

import msmon
from msmon.agent.agent_log import AgentLog
from msmon.agent.link.notices import Notices
from msmon.agent.link.pending import PendingCommand, PendingCommands
from msmon.agent.link.thread import Link
from msmon.agent.link.uplink import Uplink
from msmon.agent.ranks import evidence as ranks
from msmon.agent.ranks import this_process as process
from msmon.bus.endpoints import local_endpoint
from msmon.bus.messages import Answer, Hello, Status
from msmon.bus.words import MONITORING_ACTIONS, AgentAction, ProcessState
from msmon.compat.frameworks.config_text import FrameworkCommand, monitor_text, trace_text
from msmon.errors import MsmonError, UsageError
from msmon.sessions import ProcessInfo
from msmon.threads import Empty, SimpleQueue

POLL_LIMIT_S = 0.5
"""How long ``poll_dyno`` waits for a command. MindSpore asks again at once, so a short wait would
cost CPU. The job waits for the helper when it ends, so a long wait would delay it."""

APART_S = 2.1
"""Time between two texts, and before the first one. The frameworks mark a text with its time in
whole seconds, and ignore one that has the same second as the text before or as their start."""

FLUSH_LIMIT_S = 0.3

NO_AGENT = "no agent in this rank: its framework passes commands on at one of its next steps"


class Carrier:
    """The connection of one helper process to the daemon.

    The thread of the link puts commands into the queue; the helper's own thread, which calls
    :meth:`poll`, takes them out.
    """

    def __init__(self, rank: int) -> None:
        self.pid = os.getpid()
        self._parent = os.getppid()
        self._identity = _identity_of(self._parent, rank)
        self._commands: SimpleQueue[PendingCommand] = SimpleQueue()
        self._next_text_s = time.monotonic() + APART_S
        self._notices = Notices()
        log = AgentLog.from_environment(os.environ)
        self._link = Link(
            lambda: local_endpoint(os.environ),
            self._hello,
            self._status,
            Uplink(self._notices.wake),
            self._notices,
            PendingCommands(self._accept, lambda: ""),
            log,
        )
        self._link.start()

    def poll(self) -> str:
        """Return the text of the next command, or "" if none comes within POLL_LIMIT_S."""
        wait_s = self._next_text_s - time.monotonic()
        if wait_s > 0:
            time.sleep(min(wait_s, POLL_LIMIT_S))
            return ""
        try:
            command = self._commands.get(timeout=POLL_LIMIT_S)
        except Empty:
            return ""
        self._next_text_s = time.monotonic() + APART_S
        return _text(command, self._identity.launch)

    def leave(self) -> None:
        """Tell the daemon that the helper ends. Takes less than a second."""
        self._link.shut_down(FLUSH_LIMIT_S)
        self._link.join(2 * FLUSH_LIMIT_S)

    # --- on the link's thread ----------------------------------------------------------------

    def _hello(self) -> Hello:
        return Hello(msmon.__version__, "carrier", self._identity)

    def _status(self) -> Status:
        if os.getppid() != self._parent:
            self._link.shut_down(FLUSH_LIMIT_S)  # The rank has ended: nobody reads the texts.
        return Status(ProcessState.CARRIER, problem=NO_AGENT)

    def _accept(self, command: PendingCommand) -> None:
        try:
            _text(command, self._identity.launch)
        except MsmonError as error:
            self._answer(command, Answer(False, error.message, error.next_step))
            return
        self._commands.put(command)
        self._answer(command, Answer(True, _accepted(command)))

    def _answer(self, command: PendingCommand, answer: Answer) -> None:
        if command.begin():
            self._notices.add_answer(command.message_id, answer)


def _accepted(command: PendingCommand) -> str:
    """Return the text of an answer, which is sent before the framework carries the command out."""
    text = "accepted; the framework hands it to its ranks at one of their next steps"
    if not command.ranks or command.action != AgentAction.START_TRACE:
        return text
    return (
        f"{text}; only rank {', '.join(map(str, command.ranks))} is to act, but MindSpore and "
        "torch_npu 2.9 know no choice of ranks and trace all of them"
    )


def _text(command: PendingCommand, launch: str) -> str:
    """Return a command as text for the framework.

    Raises UsageError for a command that a framework can't pass on.
    """
    meant = tuple(command.ranks)
    if command.action == AgentAction.START_TRACE:
        return trace_text(command.fields, meant)
    for asked, told in MONITORING_ACTIONS.items():
        if command.action == told:
            return monitor_text(
                FrameworkCommand(asked, command.fields, command.request_id, launch, meant)
            )
    raise UsageError(
        f"{command.action} can't reach a rank through its framework",
        "call msmon.init() in the job, so that each rank has an agent",
    )


def _identity_of(parent: int, rank: int) -> ProcessInfo:
    """Return the identity of the helper's rank, which is its parent process.

    Environment and container are those of this process, because the helper was forked.
    """
    own = process.current_process()
    return dataclasses.replace(
        own,
        pid=parent,
        start_time=ranks.start_time(parent),
        rank=own.rank if own.rank >= 0 else rank,
    )
